"""Are results the same? Models of transformers and diffusers as they come, plain and in as small parts as can be.

Each model runs in a process of its own, with random weights and attention written out where the library has that. Rows say how
far the results are from the plain model's (as a share of their scale) at two sizes with one handle, and how much of the
activations is saved: of the predicted peak less parameters, buffers and inputs. A row that fails says what failed.

With `--train` a step of training instead: how far its gradients and statistics are from plain PyTorch's, with dropout on. With
`--adapt` that step eagerly, with no capture, with the least memory, with half of what can be saved, and after `release()`.

    python benchmarks/models.py [--only gpt2,unet] [--train | --adapt] [--json models.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# In place of this folder, where a file of the same name would hide a module of the standard library.
sys.path[0] = str(ROOT)

from benchmarks.common.asking import try_to_ask  # noqa: E402
from benchmarks.zoo import ZOO  # noqa: E402

COLUMNS = (
    "model",
    "whole MB",
    "min MB",
    "saved",
    "apart",
    "graphs",
    "ops",
    "regions",
    "rewrites",
    "captures",
    "breaks",
    "plan s",
    "",
)


QUIET = {"TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}


def row_of(name: str, limit: float, kind: str) -> dict[str, Any]:
    """The row of one model, from a process of its own."""
    begin = time.perf_counter()
    told = try_to_ask(__file__, "--trial", name, f"--{kind}", measuring=False, limit=limit, **QUIET)
    return {"name": name, **told, "took": time.perf_counter() - begin}


def cells(row: dict[str, Any]) -> list[str]:
    def show(key: str, form: str = "", scale: float = 1.0) -> str:
        value = row.get(key)
        return "" if value is None else format(value / scale if form else value, form)

    remarks = [row[key] for key in ("failed", "remark") if row.get(key)]
    if row.get("unlisted"):
        remarks.append("whole: " + ", ".join(op.removeprefix("aten.") for op in row["unlisted"]))
    if row.get("fixed_sizes"):
        remarks.append("captured once per size")
    apart = f"{max(row['apart']):.0e}" if row.get("apart") else ""
    sizes = [show("whole", ".2f", 1e6), show("least", ".2f", 1e6), show("saved", ".1%")]
    counts = [show(key) for key in ("graphs", "ops", "regions", "rewrites", "captures", "breaks")]
    return [row["name"], *sizes, apart, *counts, show("planning", ".1f"), "; ".join(remarks)]


def table(rows: list[dict[str, Any]]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    made = Table(*COLUMNS, header_style="bold", box=None)
    for column in made.columns[1:-1]:
        column.justify = "right"
        column.no_wrap = True
    made.columns[-1].overflow = "fold"
    for row in rows:
        made.add_row(*map(escape, cells(row)), style="red" if row.get("failed") else "")
    return made


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ZOO), help="models, with commas")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--infer", dest="kind", action="store_const", const="infer", help="inference (what it does anyway)")
    kinds.add_argument("--train", dest="kind", action="store_const", const="train", help="a step of training instead")
    kinds.add_argument("--adapt", dest="kind", action="store_const", const="adapt", help="an eager step under adapt instead")
    parser.set_defaults(kind="infer")
    parser.add_argument("--limit", type=float, default=300, help="seconds that a model may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there, after each of them")
    parser.add_argument("--trial", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.only.split(",")) - set(ZOO):
        parser.error(f"--only does not know {', '.join(sorted(unknown))}; it knows {', '.join(ZOO)}")
    return options


def main() -> int:
    options = parse()
    if options.trial:
        from benchmarks.zoo.adapting import try_adapting
        from benchmarks.zoo.training import try_training
        from benchmarks.zoo.trial import try_out

        print(json.dumps({"infer": try_out, "train": try_training, "adapt": try_adapting}[options.kind](options.trial)))
        return 0
    from rich.console import Console

    out, progress = Console(highlight=False, width=None if sys.stdout.isatty() else 180), Console(stderr=True, highlight=False)
    rows: list[dict[str, Any]] = []
    names = options.only.split(",")
    for number, name in enumerate(names, 1):
        row = row_of(name, options.limit, options.kind)
        rows.append(row)
        said = row.get("failed") or f"saves {row['saved']:.1%}, {max(row['apart'], default=0.0):.0e} apart"
        progress.print(f"{number}/{len(names)} {name}: {said} ({row['took']:.0f} s)", markup=False, soft_wrap=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    out.print(table(rows))
    wrong = sum(bool(row.get("failed")) for row in rows)
    saved = sorted(row["saved"] for row in rows if "saved" in row)
    middle = f"; half of them save {saved[len(saved) // 2]:.1%} of activations or more" if saved else ""
    out.print(f"{len(rows) - wrong} of {len(rows)} models give what they give plain{middle}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
