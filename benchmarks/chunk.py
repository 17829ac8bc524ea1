"""Inference inside a budget: how much less memory, at what time, beside PyTorch's own ways and what experts do by hand.

Peaks: each case (all budgets of a model together) in a process of its own with MALLOC_MMAP_THRESHOLD_=65536, the kernel's
high-water mark of a call after one to warm up. Times: both variants in one process with the default allocator, in turns, the
median ratio of the pairs with quartiles. Activations are the peak less parameters, buffers, inputs and outputs. Rows are
printed, and written to the file of `--json`, as soon as they are known; a later run with the same file replaces the rows that
it finds anew.

    memory   written-out attention, SDPA, torch.compile, ours at -90 %, ours without rewriting at -85 %
    sdpa     ours at -50 % of what fused attention takes (-25 % for the UNet)
    experts  feed-forward chunks, sliced attention, OpenFold's rows: ours inside each one's peak
    longest  the longest input inside what written-out attention takes at a base size
    budgets  eight budgets from the plain peak to the smallest reachable: held, and peaks follow them
    rank     predicted and measured seconds of the distinct plans of such sweeps, with rewriting and without
    planning seconds of the first plan of 12 layers, and of new lengths

    python benchmarks/chunk.py [--section memory,longest] [--only gpt2,unet] [--json chunk.json] [--plot chunk.svg]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# In place of this folder, where this file would hide the standard library's `chunk`.
sys.path[0] = str(ROOT)

from benchmarks.chunking.families import FAMILIES  # noqa: E402
from benchmarks.chunking.layout import header, line  # noqa: E402
from benchmarks.chunking.processes import Bench  # noqa: E402
from benchmarks.chunking.sections import SECTIONS  # noqa: E402
from benchmarks.chunking.variants import answer  # noqa: E402


class Record:
    """All rows by section, in a file after each of them; those that other runs put there stay until they are found anew."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def add(self, section: str, family: str, row: dict[str, Any]) -> None:
        self.found.setdefault((section, family), []).append(row)
        if self.path is None:
            return
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text(json.dumps({"machine": machine(), "rows": self.rows()}, indent=1) + "\n")
        fresh.replace(self.path)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """What the file has, with what was found in place of it."""
        before = json.loads(self.path.read_text())["rows"] if self.path is not None and self.path.exists() else {}
        kept = {name: [row for row in rows if (name, row["family"]) not in self.found] for name, rows in before.items()}
        for (section, _), rows in self.found.items():
            kept[section] = [*kept.get(section, ()), *rows]
        return kept


def machine() -> dict[str, Any]:
    from importlib.metadata import version

    models = [text.split(":")[1].strip() for text in _lines("/proc/cpuinfo") if text.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        **{name: version(name) for name in ("torch", "transformers", "diffusers")},
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", default=",".join(SECTIONS), help="sections, with commas")
    parser.add_argument("--only", default=",".join(FAMILIES), help="models, with commas")
    parser.add_argument("--layers", type=int, help="layers of each model (default: 2; for the UNet 1 in each block)")
    parser.add_argument("--size", type=int, help="size of the input, instead of each model's own")
    parser.add_argument("--pairs", type=int, default=7, help="how many times the variants of a case take turns")
    parser.add_argument("--limit", type=float, default=1800, help="seconds that a process may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there, after each of them")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the rows: .svg or .html")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name, known in (("section", SECTIONS), ("only", FAMILIES)):
        unknown = set(getattr(options, name).split(",")) - set(known)
        if unknown:
            parser.error(f"--{name} does not know {', '.join(sorted(unknown))}; it knows {', '.join(known)}")
    return options


def main() -> None:
    options = parse()
    if options.case:
        print(json.dumps(answer(json.loads(options.case))))
        return
    from rich.console import Console

    out, progress = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False, soft_wrap=True)
    record = Record(options.json)
    with progress.status("starting") as status:

        def say(what: str) -> None:
            status.update(what)
            if not progress.is_terminal:
                progress.print(what, markup=False)

        bench = Bench(options.layers, options.size, options.pairs, options.limit, say)
        for section in options.section.split(","):
            begin = time.perf_counter()
            out.print(f"\n[bold]{section}[/bold]: {SECTIONS[section].__doc__}")
            out.print(header(section), style="bold", markup=False)
            for family in options.only.split(","):
                for row in SECTIONS[section](bench, family):
                    record.add(section, family, row)
                    out.print(line(section, row), markup=False)
            out.print(f"{section} took {time.perf_counter() - begin:.0f} s", style="dim")
    if options.plot:
        from benchmarks.chunking.picture import draw
        from benchmarks.common.drawing import write

        path = write(options.plot, "Chunked inference", draw(record.rows()))
        out.print(f"The picture is in {path.resolve()}", markup=False)


if __name__ == "__main__":
    main()
