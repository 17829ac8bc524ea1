"""How near predicted peaks are to measured ones: seven models, three sizes each, inference and training.

Every case runs in a process of its own with MALLOC_MMAP_THRESHOLD_=65536, so that freed tensors go back to the kernel:
predict, two steps to warm up, gradients cleared, then one measured step. `estimate` is plain eager PyTorch, `plan` the
compiled model. Errors count for peaks over 200 MB.

    python benchmarks/estimate_accuracy.py [--mode estimate,plan] [--only gpt2,bert] [--sizes 0,1,2] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.asking import AskError, ask  # noqa: E402

NAMES = ("gpt2", "llama", "bert", "t5", "vit", "unet", "resnet")
WITH_ADAMW = ("gpt2", "vit", "resnet")
COUNTED = 200e6


def predict_and_measure_eager(name: str, size: int, train: bool) -> tuple[int, int]:
    """The dry run's peak of plain eager PyTorch, and what that took."""
    from neaptide.dryrun import estimate, run_step

    return _compare(
        name, size, train, lambda model, inputs, optimizer: (estimate(model, inputs, train, optimizer).peak, run_step)
    )


def predict_and_measure_compiled(name: str, size: int, train: bool) -> tuple[int, int]:
    """The peak that `plan` says `compile` will take, and what it took."""
    import neaptide
    from neaptide.dryrun import run_step

    def predict(model: Any, inputs: Any, optimizer: Any) -> tuple[int, Callable[..., Any]]:
        predicted = neaptide.plan(model, inputs, None, train, optimizer).peak
        neaptide.compile(model, optimizer=optimizer)
        return predicted, run_step

    return _compare(name, size, train, predict)


MODES: dict[str, Callable[[str, int, bool], tuple[int, int]]] = {
    "estimate": predict_and_measure_eager,
    "plan": predict_and_measure_compiled,
}
"""What is compared: a mode takes a case and gives its predicted and its measured peak."""


def _compare(name: str, size: int, train: bool, predict: Callable[..., tuple[int, Callable[..., Any]]]) -> tuple[int, int]:
    """`predict` gives the predicted peak and the step to run for it."""
    import torch
    from tests.workloads.models import make

    from neaptide.measurement import measure

    model, inputs = make(name, size, large=True, train=train)
    optimizer = torch.optim.AdamW(model.parameters()) if train and name in WITH_ADAMW else None
    predicted, step = predict(model, inputs, optimizer)
    for _ in range(2):  # a compiled model captures in the first step, and learns from it what changes and what flows back
        step(model, inputs, train, optimizer)
        model.zero_grad()
    return predicted, measure(step, model, inputs, train, optimizer).peak


def run_case(mode: str, name: str, size: int, train: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "mode": mode,
        "model": name,
        "size": size,
        "train": train,
        "adamw": train and name in WITH_ADAMW,
    }
    begin = time.perf_counter()
    try:
        predicted, measured = ask(__file__, "--case", mode, name, str(size), str(int(train)), measuring=True)
        row |= {"predicted": predicted, "measured": measured, "error": predicted / measured - 1}
    except AskError as failed:
        row["failed"] = str(failed)
    return {**row, "seconds": time.perf_counter() - begin}


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    counted = [abs(row["error"]) for row in rows if "error" in row and row["measured"] > COUNTED]
    figures = {"cases": len(counted), "failed": sum("failed" in row for row in rows)}
    if not counted:
        return figures
    return {**figures, "median": statistics.median(counted), "largest": max(counted)}


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{'model':<8}{'size':>5}  {'step':<16}{'predicted MB':>14}{'measured MB':>13}{'error %':>9}"
    for row in rows:
        kind = "inference" if not row["train"] else "training, AdamW" if row["adamw"] else "training"
        start = f"{row['model']:<8}{row['size']:>5}  {kind:<16}"
        if "failed" in row:
            yield start + row["failed"]
            continue
        figures = f"{row['predicted'] / 1e6:>14.1f}{row['measured'] / 1e6:>13.1f}{100 * row['error']:>+9.2f}"
        yield start + figures + ("" if row["measured"] > COUNTED else "  (not counted)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="estimate,plan", help=f"one of {', '.join(MODES)}, or several with commas")
    parser.add_argument("--only", default=",".join(NAMES), help="models, with commas")
    parser.add_argument("--sizes", default="0,1,2")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        mode, name, size, train = options.case
        print(json.dumps(MODES[mode](name, int(size), train == "1")))
        return
    result = {}
    for mode in options.mode.split(","):
        cases = [(n, int(s), t) for n in options.only.split(",") for s in options.sizes.split(",") for t in (False, True)]
        rows = []
        for position, case in enumerate(cases, 1):
            print(
                f"[{position}/{len(cases)}] {mode}: {case[0]} {case[1]} {'train' if case[2] else 'infer'}",
                file=sys.stderr,
            )
            rows.append(run_case(mode, *case))
            print(next(line for line in list(table(rows))[::-1]), file=sys.stderr)
        result[mode] = {"rows": rows, "summary": summarise(rows)}
    if options.json:
        print(json.dumps(result, indent=1))
        return
    for mode, part in result.items():
        figures = part["summary"]
        print(f"\n{mode}", *table(part["rows"]), sep="\n")
        if "median" in figures:
            print(
                f"{figures['cases']} cases over 200 MB: median error {100 * figures['median']:.2f} %, "
                f"largest {100 * figures['largest']:.2f} %; {figures['failed']} failed"
            )


if __name__ == "__main__":
    main()
