"""What generated code costs beside `aot_eager`: time in turns in one process, peaks in processes of their own.

Time: one process with the default allocator, both compiled (aot_eager for this very size, which is its best), steps taken in
turns, the median ratio of many pairs. Peak: for
each of eager, aot_eager and neaptide a process with MALLOC_MMAP_THRESHOLD_=65536. Last, the look-up of a seen size.

    python benchmarks/overhead.py [--only gpt2,bert] [--pairs 21] [--json]
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

from benchmarks.common.asking import ask  # noqa: E402

NAMES = ("gpt2", "llama", "bert", "t5", "vit", "unet", "resnet")
WAYS = ("eager", "aot_eager", "neaptide")


def step_of(way: str, name: str, train: bool) -> Callable[[], None]:
    """One step of a model under one of the ways to run it."""
    import torch
    from tests.workloads.models import make

    import neaptide
    from neaptide.dryrun import run_step

    model, inputs = make(name, 0, large=True, train=train)
    call: Any = model
    if way == "aot_eager":
        call = torch.compile(model, backend="aot_eager")
    elif way == "neaptide":
        neaptide.compile(model)

    def step() -> None:
        run_step(call, inputs, train)
        call.zero_grad()

    for _ in range(3):
        step()
    return step


def ratios(name: str, train: bool, pairs: int) -> list[float]:
    """Our time over aot_eager's, pair by pair, taking turns at going first."""
    theirs, ours = step_of("aot_eager", name, train), step_of("neaptide", name, train)
    found = []
    for pair in range(pairs):
        seconds = {}
        for step in (theirs, ours) if pair % 2 else (ours, theirs):
            begin = time.perf_counter()
            step()
            seconds[step] = time.perf_counter() - begin
        found.append(seconds[ours] / seconds[theirs])
    return found


def peak(way: str, name: str, train: bool) -> int:
    from neaptide.measurement import measure

    return measure(step_of(way, name, train)).peak


def look_up() -> float:
    """Seconds to find the plan of a size that was seen before, in the largest of the models."""
    from tests.workloads.models import make

    import neaptide
    from neaptide.runtime.runner import Unit

    model, inputs = make("llama", 0, train=True)
    neaptide.compile(model)
    seen: list[Any] = []
    plain = Unit.call

    def watch(self: Any, args: Any) -> Any:
        seen[:] = [self, list(args)]
        return plain(self, args)

    Unit.call = watch  # type: ignore[method-assign]
    model(**inputs)
    Unit.call = plain  # type: ignore[method-assign]
    unit, args = seen
    begin = time.perf_counter()
    for _ in range(10_000):
        unit.call(args)
    return (time.perf_counter() - begin) / 10_000


def answer(what: list[str]) -> Any:
    match what:
        case ["ratios", name, train, pairs]:
            return ratios(name, train == "1", int(pairs))
        case ["peak", way, name, train]:
            return peak(way, name, train == "1")
        case _:
            return look_up()


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    heads = f"{'time / aot_eager':>18}{'quartiles':>16}{'eager MB':>11}{'aot_eager MB':>14}{'neaptide MB':>13}"
    yield f"{'model':<8}{'step':<11}{heads}"
    for row in rows:
        low, middle, high = statistics.quantiles(row["ratios"], n=4)
        peaks = "".join(f"{row[way] / 1e6:>{width}.1f}" for way, width in zip(WAYS, (11, 14, 13), strict=True))
        yield f"{row['model']:<8}{row['step']:<11}{middle:>18.3f}{f'{low:.3f}-{high:.3f}':>16}{peaks}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), help="models, with commas")
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--case", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(answer(options.case)))
        return
    rows = []
    for name in options.only.split(","):
        for train in (False, True):
            row: dict[str, Any] = {"model": name, "step": "training" if train else "inference"}
            flag = str(int(train))
            row["ratios"] = ask(__file__, "--case", "ratios", name, flag, str(options.pairs), measuring=False)
            row |= {way: ask(__file__, "--case", "peak", way, name, flag, measuring=True) for way in WAYS}
            rows.append(row)
            print(list(table(rows))[-1], file=sys.stderr)
    seconds = ask(__file__, "--case", "look_up", measuring=False)
    if options.json:
        print(json.dumps({"rows": rows, "look_up": seconds}, indent=1))
        return
    print(*table(rows), sep="\n")
    print(f"looking up a seen size: {1e6 * seconds:.1f} microseconds")


if __name__ == "__main__":
    main()
