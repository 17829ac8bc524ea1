"""The order of ops alone, for inference: what it takes as eager PyTorch runs it, as traced, as we order it, and at the least.

As traced: each tensor is let go of at its last use, and results are written over what nothing needs any more, as in ours; so
this is order alone. No order can be below the bound; where ours is not near it, "proven" says that no order is 2 % below ours:
all were looked at. Peaks are measured too: each in a process of its own with MALLOC_MMAP_THRESHOLD_=65536, the kernel's
high-water mark: of eager, of PyTorch's own code in the traced order (`aot_eager`), of ours. Nothing runs in parts here. All
figures are without parameters, buffers and inputs.

    python benchmarks/order.py [--only unet,inception] [--json order.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from benchmarks.common.asking import try_to_ask  # noqa: E402

Row = dict[str, Any]
NAMES = ("unet", "conditional unet", "inception", "inception, wide stem", "line")
THEIRS = ("eager", "traced")
CLOSE = 0.98


def build(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A model ready for inference, and its inputs."""
    import torch
    from benchmarks.branches import Inception, conditional_unet, unet
    from torch import nn

    torch.manual_seed(0)
    match name:
        case "unet":
            made = unet(), (torch.randn(1, 3, 128, 128), torch.tensor(5))
        case "conditional unet":
            made = conditional_unet(), (torch.randn(1, 4, 64, 64), torch.tensor(10), torch.randn(1, 77, 128))
        case "inception":
            made = Inception(128), (torch.randn(1, 128, 64, 64),)
        case "inception, wide stem":
            made = Inception(192, wide=True), (torch.randn(1, 192, 56, 56),)
        case _:
            layers = [nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.SiLU()) for _ in range(6)]
            made = nn.Sequential(*layers), (torch.randn(1, 32, 64, 64),)
    return made[0].eval(), made[1]


def resident(model: Any, inputs: Any) -> int:
    return sum(t.nbytes for t in (*model.parameters(), *model.buffers(), *inputs))


def planned(name: str) -> Row:
    """What orders take, and how long it took to find ours."""
    import torch

    import neaptide
    from neaptide.apply import reordered, straight, write_in_place
    from neaptide.memory import envelope
    from neaptide.search.order import Orders, better_order

    model, inputs = build(name)
    handle = neaptide.compile(model)
    with torch.no_grad():
        model(*inputs)
    (unit,) = handle._session.units
    graph, dims = unit.graph, unit.last
    handle.release()
    orders = Orders(graph)
    begin = time.perf_counter()
    order = better_order(graph, dims)
    seconds = time.perf_counter() - begin
    traced = envelope(write_in_place(straight(graph))).peak(dims)
    ours = traced if order is None else envelope(write_in_place(straight(reordered(graph, order)))).peak(dims)
    bound = orders.bound(dims)
    proven = bound < CLOSE * ours and orders.within(int(CLOSE * ours), dims) == (None, True)
    eager = neaptide.estimate(model, inputs, train=False).peak - resident(model, inputs)
    return {
        "ops": len(graph.ops),
        "eager": eager,
        "traced": traced,
        "ours": ours,
        "bound": bound,
        "proven": proven,
        "seconds": seconds,
    }


def measured(name: str, way: str) -> Row:
    """The high-water mark of a call: of PyTorch, `eager` or `traced`, or of the code made of our order."""
    import torch

    import neaptide
    from neaptide.apply import reordered, straight, write_in_place
    from neaptide.emit import emit_inference
    from neaptide.measurement import measure
    from neaptide.runtime.session import run
    from neaptide.search.order import better_order

    model, inputs = build(name)
    given: list[Any] = []

    def noted(piece: Any, args: list[Any]) -> Any:
        given[:] = args
        return run(piece, args)

    with torch.no_grad():
        if way in THEIRS:
            call = model if way == "eager" else torch.compile(model, backend="aot_eager")
            call(*inputs)
            return {"peak": measure(call, *inputs).peak - resident(model, inputs)}
        handle = neaptide.compile(model)
        handle._session.run = noted
        model(*inputs)
        (unit,) = handle._session.units
        order = better_order(unit.graph, unit.last)
        graph = unit.graph if order is None else reordered(unit.graph, order)
        piece = emit_inference(write_in_place(straight(graph)))
        piece.run(list(given))
        return {"peak": measure(lambda: piece.run(list(given))).peak - resident(model, inputs)}


def row_of(name: str) -> Row:
    row = {"model": name, **_asked("planned", name)}
    if "failed" not in row:
        row |= {f"measured {way}": _asked("measured", name, way, measuring=True).get("peak") for way in (*THEIRS, "ours")}
    return row


def line(row: Row) -> str:
    if "failed" in row:
        return f"{row['model']:<22}{row['failed']}"

    def show(key: str) -> str:
        return f"{row[key] / 1e6:>9.2f}" if row.get(key) is not None else f"{'-':>9}"

    least = "proven" if row["proven"] else f"{row['ours'] / row['bound']:.3f}"
    figures = "".join(map(show, ("eager", "traced", "ours", "bound")))
    real = " " + "".join(map(show, (f"measured {way}" for way in (*THEIRS, "ours"))))
    shares = f"{row['ours'] / row['eager']:>9.3f}{row['ours'] / row['traced']:>9.3f}"
    return f"{row['model']:<22}{row['ops']:>5}{figures}{least:>9}{shares}{row['seconds']:>10.2f}{real}"


def _asked(case: str, *args: Any, measuring: bool = False) -> Row:
    return try_to_ask(__file__, "--case", json.dumps([case, *args]), measuring=measuring)


CASES = {"planned": planned, "measured": measured}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="models, with semicolons", default=";".join(NAMES))
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case, *args = json.loads(options.case)
        print(json.dumps(CASES[case](*args)))
        return
    heads = ("eager", "traced", "ours", "bound", "of it", "/eager", "/traced")
    ran = f"{'eager ran':>10}{'traced':>9}{'ours':>9}"
    print(f"{'MB':<22}{'ops':>5}{''.join(f'{head:>9}' for head in heads)}{'search s':>10}{ran}")
    found = []
    for name in options.only.split(";"):
        found.append(row_of(name))
        print(line(found[-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
