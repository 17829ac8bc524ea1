"""The one judge of time: what ops, parts of ops and whole programs take, from a small model calibrated on this machine.

In: an op's specs, or a program and dims. Out: seconds. An op costs its call, its arithmetic, the bytes it moves, and the first
touch of fresh memory where its result is too large for the allocator to have kept the pages. In a loop, all but what is fixed
per call is shared out among the parts. It is good for comparing plans, not for promising seconds to a stopwatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from neaptide.axes import Axis, Flow
from neaptide.graph import Graph
from neaptide.hardware import Machine, this_machine
from neaptide.program import Fetch, Loop, Program, Rerun, Run
from neaptide.shapes import Concrete, rows_of, shapes_of
from neaptide.workspaces import Spec

aten = torch.ops.aten
NOTHING = Spec((0,), (1,), torch.uint8)
KEPT_PAGES = (32 << 20) - 4096
"""Blocks up to this are reused with their pages by the C library's allocator; larger ones are touched afresh each time.
Its limit counts what it puts around them, so that 32 MiB itself, which powers of two often come to, is past it."""


CACHED = 2 << 20
"""What one call reads and writes beyond so many bytes has left the cache before, and leaves it again."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One op: seconds `fixed` for each call of it; and if it is done in parts, shared among them, seconds of arithmetic `work`,
    `moved` bytes and `fresh` bytes of its results."""

    fixed: float
    work: float
    moved: int = 0
    fresh: int = 0


def seconds(program: Program, dims: Sequence[int], machine: Machine | None = None) -> float:
    """What a program takes at the sizes `dims`."""
    machine = machine or this_machine(program.graph.device)
    shapes = shapes_of(program.graph).at(dims)
    total = 0.0
    for step in program.steps:
        if isinstance(step, (Run, Rerun)):
            total += whole(cost(shapes, step.op, machine), machine, fresh=step.onto is None)
        elif isinstance(step, Loop):
            total += looped(shapes, step, machine)
        elif isinstance(step, Fetch):
            spec = shapes.spec(step.value)
            total += spec.nbytes * machine.away if spec is not None else 0.0
    return total


def whole(price: Cost, machine: Machine, fresh: bool = True) -> float:
    """An op done at once."""
    return in_parts(price if fresh else replace(price, fresh=0), 1, 1.0, machine)


def looped(shapes: Concrete, loop: Loop, machine: Machine) -> float:
    """A loop: every op in parts, and the results written to their places."""
    extent = shapes.sizes[loop.extent]
    rows = rows_of(extent, loop.chunk)
    rounds = -(-extent // loop.chunk)
    total = sum(in_parts(cost(shapes, part.op, machine, part.axis), rounds, rows / extent, machine) for part in loop.parts)
    for made in loop.made:
        spec = shapes.spec(made.value)
        assert spec is not None
        total += written(spec, made.how, made.onto is not None, rounds, machine)
    return total


def in_parts(price: Cost, rounds: int, share: float, machine: Machine) -> float:
    """An op done in so many rounds."""
    far = max(price.moved * share - CACHED, 0.0)
    touched = price.fresh * machine.touch if price.fresh * share > KEPT_PAGES else 0.0
    return rounds * (price.fixed + far * (machine.stream - machine.byte)) + price.work + price.moved * machine.byte + touched


def written(spec: Spec, how: Any, over: bool, rounds: int, machine: Machine) -> float:
    """Writing the parts of a result to their places."""
    copied = spec.nbytes * (1 if isinstance(how, Flow) else rounds)
    touched = spec.nbytes * machine.touch if spec.nbytes > KEPT_PAGES and not over else 0.0
    return rounds * 2 * machine.call + copied * (machine.byte + machine.stream) + touched


def cost(shapes: Concrete, op: int, machine: Machine, axis: Axis | None = None) -> Cost:
    """The cost of an op; along an axis, what is needed whole by every part is paid for each time."""
    graph = shapes.graph
    called = graph.ops[op]
    if _is_view(graph, op):
        return Cost(machine.view, 0.0)
    results = [spec for v in called.outputs if (spec := shapes.spec(v)) is not None]
    given = [spec or NOTHING for spec in map(shapes.spec, graph.operands(op))]
    made = sum(r.nbytes for r in results)
    moved = sum(min(g.nbytes, made) if called.target in LOOKED_UP else g.nbytes for g in given)
    again = 0 if axis is None else sum(given[i].nbytes for i in read_whole(called.target, axis))
    rate = machine.fetch if called.target in PRODUCTS else machine.stream
    work = _work(called.target, given, results, machine) * (0.5 if _is_causal(graph, op) else 1.0)
    return Cost(machine.call + again * rate, work, max(moved - again, 0) + made, made)


def alike(graph: Graph) -> list[int]:
    """For each op a number that is the same for ops that cost the same at every size."""
    shapes = shapes_of(graph)
    numbers: dict[object, int] = {}
    found: list[int] = []
    for index, op in enumerate(graph.ops):
        tensors = shapes.form(graph.operands(index)), shapes.form(op.outputs)
        key = (op.target, _is_view(graph, index), _is_causal(graph, index), *tensors)
        found.append(numbers.setdefault(key, len(numbers)))
    return found


def read_whole(target: Any, axis: Axis) -> list[int]:
    """Which operands every part of an op reads from end to end."""
    return [] if target in LOOKED_UP else [i for i, flow in enumerate(axis.inputs) if flow is None]


def _is_view(graph: Graph, op: int) -> bool:
    called = graph.ops[op]
    held = [graph.values[v].storage for v in called.outputs]
    read = {graph.values[v].storage for v in called.inputs}
    return all(s is None or s in read for s in held)


def _is_causal(graph: Graph, op: int) -> bool:
    """Whether an attention looks at half of the keys only."""
    node = graph.ops[op].node
    if not isinstance(node.target, torch._ops.OpOverload) or "attention" not in str(node.target):
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}.get("is_causal") is True


PRODUCTS = frozenset(
    {
        aten.mm.default,
        aten.bmm.default,
        aten.matmul.default,
        aten.addmm.default,
        aten.baddbmm.default,
        aten.linear.default,
        aten.convolution.default,
    }
)
"""Ops that multiply matrices and do nothing else with them."""
LOOKED_UP = frozenset({aten.embedding.default, aten.index.Tensor, aten.gather.default, aten.index_select.default})
"""Ops that read no more of their operands than they return."""
FUNCTIONS = frozenset({"exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "gelu", "silu", "sigmoid", "pow", "softplus"})
"""Elementwise ops whose arithmetic costs more than their bytes."""


def _work(target: Any, args: Sequence[Spec], results: Sequence[Spec], machine: Machine) -> float:
    """Seconds of arithmetic."""
    if not isinstance(target, torch._ops.OpOverload) or not results:
        return 0.0
    name = target._schema.name.split("::")[-1]
    elements = _count(results[0])
    if name in ("mm", "bmm", "matmul", "addmm", "baddbmm", "linear"):
        left, right = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
        rate = machine.batched if len(right.shape) > 2 else machine.product
        return 2.0 * elements * left.shape[-1] * rate
    if name == "convolution":
        weight = args[1]
        return 2.0 * elements * (_count(weight) // max(weight.shape[0], 1)) * machine.convolution
    if name == "convolution_backward":
        grad, _, weight = args[:3]
        return 4.0 * _count(grad) * (_count(weight) // max(weight.shape[0], 1)) * machine.convolution
    if "attention" in name:
        back = name.endswith("_backward")
        q, k = args[1:3] if back else args[:2]
        pairs = _count(q) // q.shape[-1] * k.shape[-2]
        return (10.0 if back else 4.0) * pairs * q.shape[-1] * machine.attention
    if "softmax" in name:
        return elements * machine.softmax
    if name in FUNCTIONS:
        return elements * machine.function
    if "norm" in name:
        return elements * machine.softmax / 2
    return 0.0


def _count(spec: Spec) -> int:
    total = 1
    for size in spec.shape:
        total *= size
    return total
