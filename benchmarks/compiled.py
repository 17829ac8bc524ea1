"""Training with fused kernels inside a budget: peak against step time, beside inductor and its own budget.

Ways: eager, inductor with `activation_memory_budget` from 1 to 0, block checkpointing under inductor; ours with fused kernels
and no budget, beside inductor; ours with each distinct peak of inductor's as its budget, beside it; ours at half of eager's
peak and at its lowest, beside eager, with fused kernels and without. Models, peaks and times as in remat.py.

    python benchmarks/compiled.py [--only llama,gpt2] [--pairs 21] [--json compiled.json] [--plot compiled.svg]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import remat  # noqa: E402
from benchmarks.remat import FUSED, NAMES, Row, asked, is_new, line, rows_beside  # noqa: E402

THEIRS = ("eager", *FUSED, "blocks inductor")
HALF = 0.5


def rows_of(name: str, pairs: int) -> Iterator[Row]:
    """Every way; ours without a budget; ours inside the peak of each; ours at half of eager's and at the lowest."""
    taken = asked("theirs", name, THEIRS)
    if "failed" in taken:
        yield {"model": name, "way": "others", **taken}
        return
    ways = [way for way in taken if way != "eager" and is_new(way, taken)]
    fixed, half = taken["eager"]["fixed"], int(taken["eager"]["peak"] * HALF)
    yield {"model": name, "way": "eager", **taken["eager"]}
    free = next(rows_beside(name, "free", pairs, [("inductor 1.0", None)]))
    yield {"model": name, "way": "ours, no budget", "fixed": fixed, **free}
    lowest: list[tuple[str, int | str | None]] = [("eager", half), ("eager", "min")]
    beside: list[tuple[str, int | str | None]] = [(way, taken[way]["peak"]) for way in ways]
    fused = rows_beside(name, "lowered", pairs, [*beside, *lowest])
    for way in taken:
        if way != "eager":
            yield {"model": name, "way": way, **taken[way]}
        if way in ways:
            yield {"model": name, "way": "  ours inside it", "fixed": fixed, "budget": taken[way]["peak"], **next(fused)}
    plain = rows_beside(name, "ours", pairs, lowest)
    for kind, rows in (("fused", fused), ("plain", plain)):
        yield {"model": name, "way": f"ours {kind}, half of eager", "fixed": fixed, "budget": half, **next(rows)}
        yield {"model": name, "way": f"ours {kind}, min", "fixed": fixed, **next(rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), help="models, with commas")
    parser.add_argument("--pairs", type=int, default=21, help="how many times the two take turns; 0 for peaks alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there, after each of them")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw peaks and times: .svg or .html")
    options = parser.parse_args()
    print(remat.HEADS)
    found = []
    for name in options.only.split(","):
        for row in rows_of(name, options.pairs):
            found.append(row)
            print(line(row), flush=True)
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.plot:
        from benchmarks.common.drawing import write
        from benchmarks.common.tradeoff import draw

        print(f"The picture is in {write(options.plot, 'Fused kernels inside a budget', draw(found)).resolve()}")


if __name__ == "__main__":
    main()
