"""Would more starting points find better plans? What PyTorch's own partitioner saves at each of its budgets, beside ours.

For each of the models of remat.py, the joint graph's partition is asked for at every `activation_memory_budget` (in seconds:
what that takes), and judged by our timeline: its peak beyond what is there anyway, and what it recomputes, as a share of a
step. Beside it the fastest of our choices that stays inside that peak, which were sought without it; nothing runs in parts or
is sent away. Nothing is executed but the step that captures the graph.

    python benchmarks/seeds.py [--only gpt2,unet] [--json seeds.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.asking import AskError, ask_each  # noqa: E402
from benchmarks.remat import NAMES, SHARES, build  # noqa: E402

Row = dict[str, Any]


def rows_of(name: str) -> Iterator[Row]:
    """What each partition takes, and what our choice inside its peak does."""
    from torch._functorch import config

    import neaptide
    from neaptide import capture
    from neaptide.dryrun import run_step
    from neaptide.search.recompute.replay import Choice
    from neaptide.search.recompute.seeds import keep_min_cut

    theirs: dict[float, tuple[Any, float]] = {}
    plain = capture.starting_points

    def noted(graph: Any, *given: Any) -> Any:
        for share in SHARES:
            begin = time.perf_counter()
            with config.patch(activation_memory_budget=share):
                kept = keep_min_cut(graph, *given[:-1])
            theirs[share] = kept, time.perf_counter() - begin
        return plain(graph, *given)

    model, inputs = build(name)
    handle = neaptide.compile(model, budget="min", exact=True, offload=False)
    capture.starting_points = noted
    try:
        run_step(model, inputs, True)
    finally:
        capture.starting_points = plain
    run_step(model, inputs, True)
    (unit,) = handle._session.units
    search = unit._searches_now[0]
    ours, whole, scene = search.at(unit.last), search.whole(unit.last), search._scene(unit.last)
    for share, (kept, seconds) in theirs.items():
        row: Row = {"model": name, "share": share, "asking": seconds}
        if kept is not None:
            played = scene.play(Choice(search._judge.storages(kept)))
            inside = [w.take.seconds for w in ours if w.take.peak <= played.peak]
            row |= {"peak": played.peak, "again": played.seconds / whole, "ours": min(inside) / whole if inside else None}
        yield row


def line(row: Row) -> str:
    begin = f"{row['model']:<11}{row['share']:>6}{row['asking']:>9.1f}"
    if "peak" not in row:
        return f"{begin}  cannot say"
    ours = "none inside" if row["ours"] is None else f"{row['ours']:.2%}"
    return f"{begin}{row['peak'] / 1e6:>10,.1f}{row['again']:>10.2%}{ours:>12}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), help="models, with commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        for row in rows_of(options.case):
            print(json.dumps(row), flush=True)
        return
    print(f"{'model':<11}{'budget':>6}{'asking s':>9}{'peak MB':>10}{'its time':>10}{'our time':>12}")
    found: list[Row] = []
    for name in options.only.split(","):
        try:
            for row in ask_each(__file__, "--case", name, measuring=False):
                found.append(row)
                print(line(row), flush=True)
        except AskError as failed:
            print(f"{name:<11}{failed}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
