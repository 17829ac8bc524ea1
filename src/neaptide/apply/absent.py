"""A backward in which nothing flows back from some outputs: what depends on those alone is zero, and is not computed.

In: a training program and the tangents that are absent. Out: the program without them. Gradients are linear in the tangents,
so a value that depends only on absent ones is zero, and a sum with it is the other summand. Eager PyTorch skips these too;
AOTAutograd would fill them with zeros (for a language model, a tensor as large as its logits).
"""

from __future__ import annotations

from collections.abc import Collection, Set
from functools import lru_cache

import torch

from neaptide.graph import Graph
from neaptide.program import Program, with_drops
from neaptide.steps import Drop, Fetch, Rerun, Run, Same, Step, makes, reads

ADD = torch.ops.aten.add.Tensor


def without(program: Program, absent: Collection[int]) -> Program:
    """The program for when the tangents `absent` are not given; `write_in_place`, which comes last, checks it."""
    graph = program.graph
    zero = zeros(graph, frozenset(absent))
    kept: list[Step] = []
    for step in program.steps:
        if isinstance(step, Drop):
            continue
        if isinstance(step, (Run, Rerun)):  # what may be written over is judged anew, with fewer readers
            step = type(step)(step.op)
        if isinstance(step, Run) and graph.ops[step.op].phase == "backward":
            outputs = graph.ops[step.op].outputs
            if outputs and all(v in zero for v in outputs):
                continue
            other = other_summand(graph, step.op, zero)
            if other is not None:
                step = Same(step.op, other)
        kept.append(step)
    skipped = frozenset(v for v in absent if v in zero)
    return with_drops(graph, _needed(graph, kept), skipped, frozenset(program.saved))


def usually_absent(graph: Graph) -> frozenset[int]:
    """The tangents that a step is expected to lack: with a scalar output, a loss, all others."""
    scalars = [v for v in graph.tangents if graph.values[v].fake.dim() == 0]
    return frozenset(v for v in graph.tangents if v not in scalars) if scalars else frozenset()


@lru_cache(maxsize=4)
def zeros(graph: Graph, absent: frozenset[int]) -> frozenset[int]:
    """The values that are zero and need not be made.

    An op that needs a zero beside other tangents, and is not a plain sum, needs it made: then it is no longer among these.
    """
    needed: set[int] = set()
    while True:
        zero, flowing = set(absent - needed), set(graph.tangents) | needed
        wanted: set[int] = set()
        for index, op in enumerate(graph.ops):
            if op.phase != "backward":
                continue
            back = [v for v in op.inputs if v in flowing]
            flowing.update(op.outputs)
            zeros = [v for v in back if v in zero]
            if back and len(zeros) == len(back) and not op.once and not needed & set(op.outputs):
                zero.update(op.outputs)
            elif zeros and other_summand(graph, index, zero) is None:
                wanted.update(zeros)
        if not wanted:
            return frozenset(zero)
        needed |= wanted | _makers(graph, wanted, flowing)


def _makers(graph: Graph, values: set[int], flowing: set[int]) -> set[int]:
    """The tangent-dependent values from which `values` are made."""
    found: set[int] = set()
    todo = list(values)
    while todo:
        maker = graph.maker[todo.pop()]
        before = [] if maker is None else [v for v in graph.ops[maker].inputs if v in flowing and v not in found]
        found.update(before)
        todo.extend(before)
    return found


def other_summand(graph: Graph, index: int, zero: Set[int]) -> int | None:
    """If op `index` adds a zero to something of the result's own shape, that something."""
    op = graph.ops[index]
    if op.target is not ADD or len(op.inputs) != 2 or op.node.kwargs.get("alpha", 1) != 1:
        return None
    left, right = op.inputs
    other = right if left in zero else left if right in zero else None
    if other is None or other in zero:
        return None
    return other if graph.spec(other) == graph.spec(op.outputs[0]) else None


def _needed(graph: Graph, steps: list[Step]) -> list[Step]:
    """`steps` without what was only run again for something that is no longer there."""
    wanted = {v for v in graph.gradients if v is not None}
    kept: list[Step] = []
    for step in reversed(steps):
        if isinstance(step, (Rerun, Fetch)) and not any(v in wanted for v in makes(graph, step)):
            continue
        wanted.update(reads(graph, step))
        kept.append(step)
    return kept[::-1]
