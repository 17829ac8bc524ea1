"""The one judge of time: what ops, parts of ops and whole programs take, from a small model calibrated on this machine.

In: a program and dims. Out: seconds, summed up from what its ops cost (pricing.py). In a loop, all but what is fixed per call
is shared out among the parts. It is good for comparing plans, not for promising seconds to a stopwatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from neaptide.allocator import KEPT_AT_ALL, KEPT_PAGES
from neaptide.axes import Axis, Flow
from neaptide.graph import Graph, spec_of
from neaptide.hardware import Machine, this_machine
from neaptide.memory import fresh_pages, inner_peak, sizes_at, spans
from neaptide.pricing import LOOKED_UP, NOTHING, PRODUCTS, Cost, in_parts, is_causal, price, whole
from neaptide.program import Program
from neaptide.shapes import Concrete, rows_of, shapes_of
from neaptide.steps import Fetch, Loop, Part, Rerun, Run, cuts_of_parts
from neaptide.workspaces import Spec

TRIANGLE = 1.25
"""Half of causal attention's scores need not be made; in parts, at most this much more than half are."""


def seconds(program: Program, dims: Sequence[int], machine: Machine | None = None) -> float:
    """What a program takes at the sizes `dims`."""
    machine = machine or this_machine(program.graph.device)
    shapes = shapes_of(program.graph).at(dims)
    total = 0.0
    if program.graph.trains:
        total, machine = _touched(program, dims) * machine.touch, replace(machine, touch=0.0)
    for step in program.steps:
        if isinstance(step, (Run, Rerun)):
            total += whole(cost(shapes, step.op, machine), machine, fresh=step.onto is None)
        elif isinstance(step, Loop):
            total += looped(shapes, step, machine, inner_peak(program.graph, step, dims))
        elif isinstance(step, Fetch):
            spec = shapes.spec(step.value)
            total += spec.nbytes * machine.away if spec is not None else 0.0
    return total


def _touched(program: Program, dims: Sequence[int]) -> int:
    """Bytes of fresh pages in a step of training."""
    labels, found = spans(program)
    sizes = sizes_at(program.graph, dims)
    own = [(span.born, span.dies, sizes[span.size]) for span in found if not span.lent and span.loop is None]
    begins, stops, amounts = np.array(own, dtype=np.int64).reshape(-1, 3).T
    return fresh_pages(begins, stops, amounts, len(labels) + 1)


def looped(shapes: Concrete, loop: Loop, machine: Machine, taken: int = 0) -> float:
    """A loop whose rounds take so many bytes each: every op in parts, and the results written to their places."""
    extent = shapes.sizes[loop.extent]
    rows = rows_of(extent, loop.chunk)
    rounds = -(-extent // loop.chunk)
    costs = [cost(shapes, part.op, machine, part.axis) for part in loop.parts]
    total = sum(in_parts(each, rounds, rows / extent, machine) for each in costs)
    total += rounds * machine.view * sliced(shapes.graph, loop.parts)
    if taken > KEPT_AT_ALL:
        large = sum(each.fresh for each in costs if each.fresh * rows / extent > KEPT_PAGES)
        total += max(rounds * taken - large, 0) * machine.touch
    for made in loop.made:
        spec = shapes.spec(made.value)
        assert spec is not None
        total += written(spec, made.how, made.onto is not None, rounds, machine)
    return total


def sliced(graph: Graph, parts: Sequence[Part]) -> int:
    """Of how many values each round of a loop takes a slice."""
    return sum(cut.flow is not None for cut in cuts_of_parts(graph, parts))


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
    if called.node.kwargs.get("beta") == 0:  # what the product would be added to is not read
        given[0] = NOTHING
    again = [] if axis is None else read_whole(called.target, axis)
    found = price(called.target, given, results, machine, again, _is_causal(graph, op))
    if axis is None:
        return found
    if is_within_lines(graph, op, axis):
        found = replace(found, work=found.work + found.scattered * machine.far, scattered=0)
    return replace(found, work=found.work * in_rows(graph, op, axis))


def is_within_lines(graph: Graph, op: int, axis: Axis) -> bool:
    """Whether parts of a product have neighbouring numbers of scattered matrices: each reads every line of the cache there is
    of them, so that parts are no nearer than the whole."""
    if graph.ops[op].target not in PRODUCTS:
        return False
    given = (spec_of(graph.values[v].fake) for v in graph.operands(op))
    cut = ((spec, how) for spec, how in zip(given, axis.inputs, strict=True) if how is not None and len(spec.shape) > 1)
    return any(spec.stride[how.dim] == 1 and spec.is_scattered for spec, how in cut)


def in_rows(graph: Graph, op: int, axis: Axis) -> float:
    """How much more arithmetic an op has in parts: rows of causal attention but the first see keys that are masked."""
    return TRIANGLE if axis.instead is not None and _is_causal(graph, op) else 1.0


def alike(graph: Graph) -> list[int]:
    """For each op a number that is the same for ops that cost the same at every size."""
    shapes = shapes_of(graph)
    numbers: dict[object, int] = {}
    found: list[int] = []
    for index, op in enumerate(graph.ops):
        tensors = shapes.form(graph.operands(index)), shapes.form(op.outputs)
        key = (op.target, _is_view(graph, index), _is_causal(graph, index), op.node.kwargs.get("beta"), *tensors)
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
    node = graph.ops[op].node
    return is_causal(node.target, node.args, node.kwargs)
