"""Training with changing lengths inside one budget: one capture, a plan for each length, beside plans made for one alone.

Batches of lengths as texts have them (most short, a few long) run one after the other. Peaks: in a process of its own with
MALLOC_MMAP_THRESHOLD_=65536, the kernel's high-water mark of each step, beside the budget. Planning: what each new length
costs. Times: in a process with the default allocator, steps of the one model in turns with those of a model captured at that
length alone, under the same budget; the median ratio of the pairs, and the ratio of what both take.

    python benchmarks/dynamic.py [--model gpt2] [--batches 40] [--share 0.3] [--pairs 21] [--json dynamic.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.asking import AskError, ask  # noqa: E402

LONGEST = 512
ALONE = 5
"""For how many of the lengths a model is captured for that one alone."""


def lengths(count: int) -> list[int]:
    """Lengths of texts: most short, a few long, the same every time."""
    import torch

    drawn = torch.empty(count).log_normal_(5.2, 0.6, generator=torch.Generator().manual_seed(0))
    return [int(length) for length in drawn.clamp(32, LONGEST)]


def batch(name: str, length: int) -> Any:
    """The batch of a model, cut to a length."""
    from benchmarks.remat import build

    _, inputs = build(name)
    return {key: value[:, :length].contiguous() for key, value in inputs.items()}


def compiled(name: str, budget: int | None) -> tuple[Any, Any]:
    """A model, and its handle if it has a budget."""
    from benchmarks.remat import build

    import neaptide

    model, _ = build(name)
    return model, neaptide.compile(model, budget=budget) if budget is not None else None


def step(model: Any, inputs: Any) -> None:
    from neaptide.dryrun import run_step

    run_step(model, inputs, True)
    model.zero_grad()


def ends(name: str, share: float) -> dict[str, Any]:
    """The budget: a share of the way from the smallest reachable peak to the plain one, at the longest length."""
    from benchmarks.remat import build

    import neaptide

    model, _ = build(name)
    inputs = batch(name, LONGEST)
    plain = neaptide.estimate(model, inputs).peak
    least = neaptide.plan(model, inputs, budget="min", train=True).peak
    return {"plain": plain, "least": least, "budget": int(least + share * (plain - least))}


def peaks(name: str, budget: int, count: int) -> dict[str, Any]:
    """What each step takes, and what planning does."""
    import neaptide

    model, handle = compiled(name, budget)
    rows: list[dict[str, Any]] = []
    for length in lengths(count):
        inputs = batch(name, length)
        before = (handle.stats.plans, handle.stats.planning_seconds)
        taken = neaptide.measure(step, model, inputs).peak
        plans, seconds = handle.stats.plans - before[0], handle.stats.planning_seconds - before[1]
        rows.append({"length": length, "peak": taken, "planned": handle.plan.peak, "plans": plans, "planning": seconds})
    return {"rows": rows, "captures": handle.stats.captures, "recoveries": handle.stats.recoveries}


def alone(name: str, budget: int, count: int, length: int, pairs: int) -> dict[str, Any]:
    """One length: the model that has seen all lengths beside one captured at this length alone."""
    inputs = batch(name, length)
    model, handle = compiled(name, budget)
    for other in sorted(set(lengths(count)))[:: max(count // 6, 1)]:
        step(model, batch(name, other))
    own, own_handle = compiled(name, budget)
    for _ in range(2):
        step(model, inputs)
        step(own, inputs)
    ratios = []
    for _ in range(pairs):
        taken = []
        for each in (model, own):
            start = time.perf_counter()
            step(each, inputs)
            taken.append(time.perf_counter() - start)
        ratios.append(taken[0] / taken[1])
    return {"time": statistics.median(ratios), "peak": handle.plan.peak / own_handle.plan.peak}


CASES = {"ends": ends, "peaks": peaks, "alone": alone}


def answer(case: str, *args: Any, measuring: bool = False) -> dict[str, Any]:
    """What a case finds, in a process of its own."""
    try:
        return ask(__file__, "--case", json.dumps([case, *args]), measuring=measuring)
    except AskError as failed:
        raise SystemExit(f"{case} {args}: {failed}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2", help="one of those of remat.py that read texts")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--share", type=float, default=0.3, help="of the way from the smallest reachable peak to the plain one")
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case, *args = json.loads(options.case)
        print(json.dumps(CASES[case](*args)))
        return
    from rich.console import Console

    out, progress = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False)
    with progress.status("finding the budget"):
        limits = answer("ends", options.model, options.share)
    out.print(", ".join(f"{key} {value / 1e6:,.1f} MB" for key, value in limits.items()))
    budget = limits["budget"]
    with progress.status(f"{options.batches} batches"):
        found = answer("peaks", options.model, budget, options.batches, measuring=True)
    rows = found["rows"]
    new = [row["planning"] for row in rows[2:] if row["plans"]]
    worst = max(rows, key=lambda row: row["peak"])
    off = statistics.median(abs(row["planned"] / row["peak"] - 1) for row in rows)
    seen = len({row["length"] for row in rows})
    out.print(f"{len(rows)} steps, {seen} lengths, {found['captures']} captures, {found['recoveries']} recoveries")
    high = f"highest peak {worst['peak'] / 1e6:,.1f} MB at length {worst['length']}, {worst['peak'] / budget:.3f} of the budget"
    out.print(f"{high}; predictions off by {off:.2%} (median)")
    if new:
        usual, most = statistics.median(new) * 1e3, max(new) * 1e3
        out.print(f"planning: first {rows[0]['planning']:.2f} s, a new length {usual:.1f} ms (median), {most:.1f} ms (most)")
    lined = sorted({row["length"] for row in rows})
    chosen = [lined[round(i * (len(lined) - 1) / (ALONE - 1))] for i in range(ALONE)]
    out.print("length  time / alone  peak / alone", style="bold")
    for length in chosen:
        with progress.status(f"length {length} alone"):
            beside = answer("alone", options.model, budget, options.batches, length, options.pairs)
        found.setdefault("alone", []).append({"length": length, **beside})
        out.print(f"{length:6}  {beside['time']:12.3f}  {beside['peak']:12.3f}")
    if options.json:
        options.json.write_text(json.dumps({**limits, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
