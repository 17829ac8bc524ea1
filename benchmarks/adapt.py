"""Changing sizes inside one budget, eagerly: ours beside no checkpointing, HF's, a static plan, Mimose's greedy and an oracle.

Peaks: a process with MALLOC_MMAP_THRESHOLD_=65536 for each model and budget, every batch of the stream measured, the first
ones included; there also the oracle is found: for each size the fastest of many choices whose measured peak fits. Times: a
process with the default allocator, every method in turns over the first batches of that stream, the fastest of some rounds.

    python benchmarks/adapt.py [--only bert,t5] [--shares 0.4,0.6,0.8] [--batches 200] [--timed 40] [--rounds 3] [--json]

`--timed 0` is for peaks alone, `--accuracy` for how well the memory of blocks is foretold at sizes that never ran.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.asking import ask  # noqa: E402

NAMES = ("bert", "gpt2", "t5", "resnet", "unet")
METHODS = ("plain", "all blocks", "static blocks", "static", "mimose", "oracle", "ours")
"""HF's checkpointing of every block (or its like); whole blocks, and our own choice, as the longest batch needs them, for all
batches; Mimose's; for each size the best that was measured to fit; ours."""


def stream(name: str, count: int) -> tuple[Any, list[Any]]:
    from benchmarks.adapting.streams import made

    model, batch = made(name)
    draw = random.Random(1)
    batches = [batch(draw) for _ in range(count)]
    batches[0] = batches[count // 2] = batch(None)  # the longest comes first, and again
    return model, batches


def peaks(name: str, share: float, count: int, timed: int) -> dict[str, Any]:
    """Every batch measured; the oracle's choices for those that will be timed."""
    import torch
    from benchmarks.adapting.rivals import as_text
    from benchmarks.adapting.streams import run, size

    import neaptide
    from neaptide.eager.choose import Weighed

    model, batches = stream(name, count)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: Any) -> None:
        run(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    other = neaptide.measure(lambda: None).peak - sum(p.nbytes for p in model.parameters())
    other -= sum(b.nbytes for b in model.buffers())  # all batches, beside the one at hand
    step(batches[1])

    def taken(batch: Any) -> int:
        own = sum(t.nbytes for t in _tensors(batch))
        return neaptide.measure(step, batch).peak - other + own

    plain = taken(batches[0])
    handle = neaptide.adapt(model, budget="min", optimizer=optimizer)
    step(batches[0])
    smallest = handle.plan.peak
    budget = max(int(share * plain), int(1.005 * smallest))
    handle.release()
    handle = neaptide.adapt(model, budget=budget, optimizer=optimizer)
    found, errors, fills = [], [], []
    for batch in batches:
        found.append(taken(batch))
        plan = handle.plan
        errors.append(plan.peak / found[-1] - 1)
        if any(block.way != "keep" for block in plan.blocks) and handle.stats.calls > 1:
            fills.append(plan.peak / budget)
    planner = handle._session.planner
    best: dict[str, Any] = {}
    for batch in batches[:timed]:
        key = str(size(batch))
        if key in best:
            continue
        step(batch)
        _, figures, base = handle._session._last
        weighed = Weighed(figures, planner.rates)
        tried = [weighed.fastest(int(part * (budget - base))) for part in (1.06, 1.04, 1.02, 1.01, 1.0, 0.99, 0.97)]
        tried = [choice for choice in tried if choice is not None] or [weighed.lowest()]
        for choice in tried:
            with forced(handle, lambda *_, choice=choice, figures=figures: (choice, figures)):
                fits = taken(batch) <= budget
            if fits or choice is tried[-1]:
                best[key] = as_text(choice.ways)
                break
    stats = handle.stats
    return {
        "plain": plain,
        "budget": budget,
        "smallest": smallest,
        "worst": max(found) / budget,
        "error": max(map(abs, errors)),
        "usual error": statistics.median(map(abs, errors)),
        "fill": statistics.median(fills) if fills else None,
        "setup": stats.setup_seconds,
        "planning": stats.planning_seconds,
        "stats": str(stats),
        "oracle": best,
    }


class forced:  # noqa: N801
    """While it lasts, calls run as someone else chooses."""

    def __init__(self, handle: Any, choose: Any) -> None:
        self._planner, self._choose = handle._session.planner, choose

    def __enter__(self) -> None:
        plain = self._plain = self._planner.plan

        def plan(args: Any, kwargs: Any, there: int, pending: int) -> Any:
            situation, base, found, _ = plain(args, kwargs, there, pending)
            return situation, base, self._choose(situation.shapes, base, found), False

        self._planner.plan = plan

    def __exit__(self, *_: Any) -> None:
        self._planner.plan = self._plain


@contextmanager
def repeats_timed() -> Iterator[list[float]]:
    """The seconds of every forward that is run again."""
    from neaptide.eager import strengths

    seconds: list[float] = []
    plain: Any = strengths._statistics

    @contextmanager
    def timed(module: Any) -> Iterator[None]:
        start = time.perf_counter()
        try:
            with plain(module):
                yield
        finally:
            seconds.append(time.perf_counter() - start)

    strengths._statistics = timed
    try:
        yield seconds
    finally:
        strengths._statistics = plain


def _tensors(batch: Any) -> list[Any]:
    import torch

    given = [*batch.get("given", ()), *batch.values()]
    return list({t.untyped_storage().data_ptr(): t for t in given if isinstance(t, torch.Tensor)}.values())


def times(name: str, budget: int, count: int, timed: int, rounds: int, oracle: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the stream under every method, in turns."""
    import torch
    from benchmarks.adapting.rivals import Mimose, everything, from_text, told
    from benchmarks.adapting.streams import run, size

    import neaptide
    from neaptide.eager.choose import Weighed

    model, batches = stream(name, count)
    batches = batches[:timed]
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: Any) -> float:
        start = time.perf_counter()
        run(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    for batch in batches[:2]:
        step(batch)
    handle = neaptide.adapt(model, budget=budget, optimizer=optimizer)
    known: dict[Any, tuple[Any, Any, int]] = {}
    for _ in range(2):
        for batch in batches:
            step(batch)
            known[size(batch)] = handle._session._last
    planner = handle._session.planner
    area = {size(b): sum(t.numel() for t in _tensors(b)) for b in batches}
    seen = [(area[size(b)], known[size(b)][1]) for b in batches]
    longest, figures, base = known[size(batches[0])]
    whole = Weighed(figures, replace(planner.rates, only_whole=True))
    blocks = whole.fastest(budget - base) or whole.lowest()
    greedy = Mimose(seen)
    rules: dict[str, Any] = {
        "static": {s: told(f, longest.ways) for s, (_, f, _) in known.items()},
        "static blocks": {s: told(f, blocks.ways) for s, (_, f, _) in known.items()},
        "mimose": {s: greedy.choice(area[s], f, budget - base) for s, (_, f, base) in known.items()},
        "oracle": {s: told(f, from_text(oracle[str(s)])) for s, (_, f, _) in known.items() if str(s) in oracle},
        "all blocks": {s: everything(f) for s, (_, f, _) in known.items()},
    }
    handle.release()
    spent: dict[str, list[list[float]]] = {method: [] for method in METHODS}
    planning = 0.0
    for number in range(rounds):
        for method in METHODS if number % 2 else METHODS[::-1]:
            if method == "plain":
                spent[method].append([step(batch) for batch in batches])
            elif method == "all blocks" and hasattr(model, "gradient_checkpointing_enable"):
                model.gradient_checkpointing_enable()
                spent[method].append([step(batch) for batch in batches])
                model.gradient_checkpointing_disable()
            else:
                handle = neaptide.adapt(model, budget=budget, optimizer=optimizer)
                handle._session.planner = planner
                planner._adapter = handle._session
                if method == "ours":
                    spent[method].append([step(batch) for batch in batches])
                    planning = handle.stats.planning_seconds / sum(spent[method][-1])
                else:
                    choose = lambda shapes, base, found, m=method: (rules[m].get(shapes, found[0]), found[1])  # noqa: E731
                    with forced(handle, choose):
                        spent[method].append([step(batch) for batch in batches])
                handle.release()
    whole = {method: sum(map(min, zip(*rows, strict=True))) for method, rows in spent.items()}
    repeats: dict[str, list[float]] = {}
    for method in ("mimose", "ours", "ours", "mimose"):
        handle = neaptide.adapt(model, budget=budget, optimizer=optimizer)
        handle._session.planner = planner
        planner._adapter = handle._session
        choose = lambda shapes, base, found, m=method: (rules[m].get(shapes, found[0]), found[1])  # noqa: E731
        with repeats_timed() as seconds, forced(handle, choose) if method == "mimose" else nullcontext():
            for batch in batches:
                step(batch)
        repeats.setdefault(method, []).append(sum(seconds))
        handle.release()
    again = {method: min(found) for method, found in repeats.items()}
    return {"seconds": whole, "again": again, "planning": planning}


def accuracy(name: str, count: int) -> dict[str, Any]:
    """How far both predictors are off, each on its own."""
    from benchmarks.adapting.accuracy import KINDS, errors

    found = {}
    for kind in KINDS:
        model, batches = stream(name, count)
        found[kind] = errors(model, batches[1:], kind)  # without the longest, which would be looked at first
    return found


def loose(name: str, rounds: int) -> float:
    """Where nothing needs checkpointing: our step over the plain one, the median of pairs."""
    from benchmarks.adapting.streams import run

    import neaptide

    model, batches = stream(name, 4)
    batch = batches[1]

    def step() -> float:
        start = time.perf_counter()
        run(model, batch).backward()
        model.zero_grad()
        return time.perf_counter() - start

    ratios = []
    for number in range(rounds + 2):
        pair = {}
        for ours in (True, False) if number % 2 else (False, True):
            handle = neaptide.adapt(model, budget="64GiB") if ours else None
            step()
            step()
            pair[ours] = min(step() for _ in range(3))
            if handle is not None:
                handle.release()
        ratios.append(pair[True] / pair[False])
    return statistics.median(ratios[2:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--shares", default="0.4,0.6,0.8")
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--timed", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--accuracy", action="store_true", help="how well blocks are foretold, instead")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", default="")
    options = parser.parse_args()
    if options.child:
        kind, *given = json.loads(options.child)
        cases = {"peaks": peaks, "times": times, "accuracy": accuracy, "loose": lambda *g: {"ratio": loose(*g)}}
        print(json.dumps(cases[kind](*given)))
        return
    rows = []
    for name in options.only.split(","):
        if options.accuracy:
            for kind, found in ask(
                __file__, "--child", json.dumps(["accuracy", name, options.batches]), measuring=False
            ).items():
                print(f"{name}, {kind}: {found}", flush=True)
            continue
        for share in map(float, options.shares.split(",")):
            row: dict[str, Any] = {"model": name, "share": share}
            told = json.dumps(["peaks", name, share, options.batches, options.timed])
            row |= ask(__file__, "--child", told, measuring=True)
            told = json.dumps(["times", name, row["budget"], options.batches, options.timed, options.rounds, row.pop("oracle")])
            if options.timed:
                row |= ask(__file__, "--child", told, measuring=False)
            rows.append(row)
            print(json.dumps(row) if options.json else line(row), flush=True)
        if not options.timed:
            continue
        ratio = ask(__file__, "--child", json.dumps(["loose", name, options.rounds * 3]), measuring=False)["ratio"]
        print(f"{name}: where nothing needs checkpointing, {ratio:.3f}x the plain step", flush=True)
    if rows and options.timed and not options.json:
        draw(rows)


def line(row: dict[str, Any]) -> str:
    fill = f"{row['fill']:.3f}" if row["fill"] else "-"
    told = (
        f"{row['model']} at {row['share']:.0%} ({row['budget'] / 1e6:,.0f} of {row['plain'] / 1e6:,.0f} MB, smallest "
        f"{row['smallest'] / 1e6:,.0f}): worst {row['worst']:.3f} of the budget, predicted within {row['error']:.1%} (usually "
        f"{row['usual error']:.2%}), fill {fill}"
    )
    if "seconds" not in row:
        return f"{told}; {row['stats']}"
    seconds = row["seconds"]
    spent = "  ".join(f"{method} {seconds[method] / seconds['plain']:.3f}" for method in METHODS)
    won = (seconds["all blocks"] - seconds["ours"]) / max(seconds["all blocks"] - seconds["plain"], 1e-9)
    again = row["again"]["ours"] / max(row["again"]["mimose"], 1e-9)
    return (
        f"{told}; time {spent}; {won:.0%} won back, "
        f"{seconds['oracle'] / seconds['ours']:.3f} of the oracle's throughput, recomputes {again:.2f} of mimose's, "
        f"planning {row['planning']:.2%}, set-up {row['setup']:.2f} s; {row['stats']}"
    )


def draw(rows: list[dict[str, Any]]) -> None:
    """Bars: time over the stream relative to no checkpointing."""
    from benchmarks.common.drawing import sheet, text, write

    colours = dict(zip(METHODS, ("#98a2ad", "#7f9fc6", "#8d6fb0", "#b58bc9", "#c9a36b", "#6fae8f", "#d9603f"), strict=True))
    parts = [text(10, 20, "Time over a stream of changing sizes, relative to no checkpointing", "title")]
    parts += [text(480 + 80 * n, 20, method, fill=colour) for n, (method, colour) in enumerate(colours.items())]
    top = 40
    for row in rows:
        parts.append(text(10, top + 24, f"{row['model']} at {row['share']:.0%}"))
        for number, method in enumerate(METHODS):
            width = 480 * row["seconds"][method] / row["seconds"]["plain"]
            parts.append(f'<rect x="120" y="{top + 7 * number}" width="{width:.1f}" height="6" fill="{colours[method]}"/>')
        top += 7 * len(METHODS) + 12
    path = write(ROOT / "adapt.svg", "adapt", sheet(parts, top + 10))
    print(f"drawn in {path}")


if __name__ == "__main__":
    main()
