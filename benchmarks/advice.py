"""Is the advice right? What is recommended beside all that could have been, and the largest batch beside the true one.

best     for each model and three budgets, every exact row is turned on and run: whether the recommended one stays inside the
         budget, and its time beside the fastest of those that really do. Peaks in a process with MALLOC_MMAP_THRESHOLD_=65536;
         times in one with the default allocator, each method's steps beside plain ones, the median ratio.
largest  for each model and method, the largest batch inside three budgets by closed form, from dry runs at one batch size and
         its double, beside the largest whose measured peak is inside.

    python benchmarks/advice.py [--section best,largest] [--only gpt2,vit] [--steps 5] [--json advice.json]
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

from benchmarks.advise import METHODS, NAMES, around, case  # noqa: E402
from benchmarks.common.asking import try_to_ask  # noqa: E402

BATCH = 8
SHARES = (1.1, 0.75, 0.5)
"""Budgets, of what the plain step takes beyond parameters, gradients and the optimizer's state."""
SIZES = (5, 11, 18)
"""Batch sizes whose plain peak is a budget."""
MOST = 48
"""The largest batch that is run."""
Row = dict[str, Any]


def _asked_of(name: str, budget: int) -> tuple[Any, Callable[[], None]]:
    """Advice for a model, and a step of it."""
    import neaptide

    model, inputs, optimizer, step = case(name, BATCH)
    return neaptide.advise(model, inputs, budget, optimizer), step


def budgets_of(name: str) -> Row:
    """What the budgets are, from a dry run."""
    import neaptide

    model, inputs, optimizer, _ = case(name, BATCH)
    predicted = neaptide.estimate(model, inputs, optimizer=optimizer)
    fixed = sum(predicted.timeline.parts.get(kind, 0) for kind in ("parameter", "gradient", "optimizer", "buffer"))
    return {"plain": predicted.peak, "budgets": [int(fixed + share * (predicted.peak - fixed)) for share in SHARES]}


def peaks(name: str, budget: int) -> Row:
    """What each exact row takes when it runs."""
    from neaptide.measurement import measure

    advice, step = _asked_of(name, budget)
    found = []
    for row in advice.rows:
        if row.lossy or not row.ours:
            continue
        handle = advice.apply(row.method)
        try:
            for _ in range(2):
                step()
            taken = measure(step).peak
        finally:
            handle.release()
        told = {"method": row.method, "predicted": row.peak, "seconds": row.seconds, "fits": advice.fits(row)}
        found.append({**told, "peak": taken})
    return {"best": None if advice.best is None else advice.best.method, "found": found}


def times(name: str, budget: int, methods: list[str], steps: int) -> Row:
    """Steps of some rows beside plain ones."""
    advice, step = _asked_of(name, budget)

    def timed() -> float:
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    found = {}
    for method in methods:
        handle = advice.apply(method)
        for _ in range(3):
            step()
        own = [timed() for _ in range(steps)]
        handle.release()
        step()
        plain = [timed() for _ in range(steps)]
        found[method] = statistics.median(own) / statistics.median(plain)
    return {"found": found}


def best(name: str, steps: int) -> Iterator[Row]:
    """The recommended row of each budget beside all others."""
    asked = _ask("budgets_of", name)
    for share, budget in zip(SHARES, asked.get("budgets", ()), strict=False):
        row: Row = {"model": name, "share": share, "budget": budget}
        taken = _ask("peaks", name, budget)
        if "failed" in taken:
            yield {**row, **taken}
            continue
        inside = [each["method"] for each in taken["found"] if each["peak"] <= 1.02 * budget]
        told = _ask("times", name, budget, inside, steps, measuring=False)
        yield {**row, **taken, "times": told.get("found", {}), **({"failed": told["failed"]} if "failed" in told else {})}


def best_line(row: Row) -> str:
    begin = f"{row['model']:<8}{row['share']:>5}{row['budget'] / 1e6:>10,.1f}  "
    if "failed" in row:
        return begin + row["failed"]
    chosen = next((each for each in row["found"] if each["method"] == row["best"]), None)
    if chosen is None:
        return f"{begin}{row['best'] or 'nothing fits'}; inside are {', '.join(row['times']) or 'none'}"
    fastest = min(row["times"], key=row["times"].__getitem__)
    behind = row["times"].get(row["best"], float("nan")) / row["times"][fastest]
    held = "held" if chosen["peak"] <= 1.02 * row["budget"] else "OVER"
    return f"{begin}{row['best']:<24}{chosen['peak'] / 1e6:>9,.1f} {held}{behind:>8.3f}  fastest: {fastest}"


def largest(name: str, steps: int) -> Iterator[Row]:
    """The largest batches of each method, by closed form and in truth."""
    told = _ask("largest_of", name)
    yield from ({"model": name, **each} for each in told.get("found", [told]))


def largest_of(name: str) -> Row:
    import neaptide
    from neaptide.measurement import measure

    known: dict[tuple[str, int], int] = {}

    def taken(method: str, batch: int) -> int:
        if (method, batch) not in known:
            model, _, optimizer, step = case(name, batch)
            with around(method)([model], optimizer):
                step()
                known[method, batch] = measure(step).peak
        return known[method, batch]

    model, inputs, optimizer, _ = case(name, BATCH)
    rows = {row.method: row for row in neaptide.advise(model, inputs, optimizer=optimizer).rows}
    del model, inputs, optimizer
    found = []
    for size in SIZES:
        budget = taken("plain", size)
        for method in METHODS:
            closed = rows[method].largest(budget) or 0
            truth = min(closed, MOST)
            while truth and taken(method, truth) > budget:
                truth -= 1
            while truth < MOST and truth >= closed and taken(method, truth + 1) <= budget:
                truth += 1
            found.append({"method": method, "budget": budget, "closed": min(closed, MOST), "truth": truth})
    return {"found": found}


def largest_line(row: Row) -> str:
    if "failed" in row:
        return f"{row['model']:<8}{row['failed']}"
    told = f"{row['model']:<8}{row['method']:<24}{row['budget'] / 1e6:>10,.1f}{row['closed']:>8}{row['truth']:>8}"
    return told + ("" if int(0.97 * row["truth"]) <= row["closed"] <= row["truth"] else "  OFF")


def _ask(what: str, *args: Any, measuring: bool = True) -> Row:
    return try_to_ask(__file__, "--case", json.dumps([what, *args]), measuring=measuring, limit=1800)


CASES: dict[str, Callable[..., Row]] = {"budgets_of": budgets_of, "peaks": peaks, "times": times, "largest_of": largest_of}
SECTIONS = {
    "best": (best, best_line, f"{'model':<8}{'share':>5}{'budget':>10}  {'recommended':<24}{'peak MB':>9}     {'behind':>8}"),
    "largest": (largest, largest_line, f"{'model':<8}{'method':<24}{'budget MB':>10}{'closed':>8}{'truth':>8}"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", default=",".join(SECTIONS), help="sections, with commas")
    parser.add_argument("--only", default=",".join(NAMES), help="models, with commas")
    parser.add_argument("--steps", type=int, default=5, help="steps of each method that are timed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there, after each of them")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        what, *args = json.loads(options.case)
        print(json.dumps(CASES[what](*args)))
        return
    rows: list[Row] = []
    for section in options.section.split(","):
        find, line, head = SECTIONS[section]
        print(head)
        for name in options.only.split(","):
            for row in find(name, options.steps):
                rows.append({"section": section, **row})
                print(line(row), flush=True)
                if options.json:
                    options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
