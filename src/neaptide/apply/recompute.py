"""Recompute = `Drop` + `Rerun`, offload = `Send` + `Fetch`: which values cross the turn, and how the others come back.

In: a graph, the values to keep and those to send away. Out: a program. What is sent away goes as soon as it is made, and is
fetched just before its first use in the backward. What the backward needs and was neither kept nor sent is run again just
before its first use, as late as possible; a random op is run again from its marked generator state. `write_in_place` changes a
program last, and checks what came of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from neaptide.graph import Graph
from neaptide.program import Program, with_drops
from neaptide.steps import Copy, Fetch, Mark, Rerun, Run, Send, Step, Turn


def straight(graph: Graph) -> Program:
    """An inference graph as it was traced."""
    steps: list[Step] = [Run(index) for index in _needed(graph, (), range(len(graph.ops)))]
    return with_drops(graph, steps)


def unpruned(graph: Graph) -> Program:
    """An inference graph as it was traced, with what nothing needs: for changes that look for every op."""
    return with_drops(graph, [Run(index) for index in range(len(graph.ops))])


def recompute(graph: Graph, keep: Collection[int], changing: Collection[int] = (), away: Collection[int] = ()) -> Program:
    """A training program in which the backward has of the forward only the values `keep` (and what cannot be redone), and
    those that were sent `away`.

    Inputs in `changing` may be overwritten before the backward runs: where it needs one, a copy is kept.
    """
    backward = [i for i, op in enumerate(graph.ops) if op.phase == "backward"]
    after, taken = _backward(graph, backward, frozenset(keep), frozenset(away))
    sent = {step.value for step in after if isinstance(step, Fetch)}
    copies = [v for v in graph.inputs if v in taken and v in set(changing)]
    again = {step.op for step in after if isinstance(step, Rerun) and graph.ops[step.op].random}
    forward = [i for i, op in enumerate(graph.ops) if op.phase == "forward"]
    before: list[Step] = [Copy(v) for v in copies]
    for index in _needed(graph, taken | sent, forward):
        if index in again:
            before.append(Mark(index))
        before.append(Run(index))
        before.extend(Send(v) for v in graph.ops[index].outputs if v in sent)
    return with_drops(graph, [*before, Turn(), *after])


def marked(program: Program, ops: Collection[int]) -> Program:
    """The program whose forward notes the generator's state before these random ops too: another backward may want it."""
    fresh = frozenset(ops).difference(program.marks)
    steps: list[Step] = []
    for position, step in enumerate(program.steps):
        if position < program.turn and isinstance(step, Run) and step.op in fresh:
            steps.append(Mark(step.op))
        steps.append(step)
    return replace(program, steps=tuple(steps))


def _backward(graph: Graph, ops: list[int], keep: frozenset[int], away: frozenset[int]) -> tuple[list[Step], set[int]]:
    """The steps of the backward, with what must come back fetched or run again before its first use; and the values kept."""
    given = {*graph.tangents, *graph.constants}
    outputs = {v for v in graph.outputs if v is not None}
    there = set(given)
    taken: set[int] = set()
    steps: list[Step] = []

    def fetch(value: int) -> None:
        todo = [value]
        while todo:
            wanted = todo[-1]
            maker = graph.maker[wanted]
            if wanted in there:
                todo.pop()
            elif maker is None or wanted in keep or wanted in outputs or graph.ops[maker].once:
                taken.add(wanted)
                there.add(todo.pop())
            elif wanted in away:
                steps.append(Fetch(wanted))
                there.add(todo.pop())
            else:
                missing = [v for v in graph.ops[maker].inputs if v not in there]
                if missing:
                    todo.extend(missing)
                    continue
                steps.append(Rerun(maker))
                there.update(graph.ops[maker].outputs)
                todo.pop()

    for index in ops:
        for value in graph.ops[index].inputs:
            fetch(value)
        steps.append(Run(index))
        there.update(graph.ops[index].outputs)
    for value in graph.gradients:
        if value is not None:
            fetch(value)
    return steps, taken


def _needed(graph: Graph, taken: Collection[int], ops: Collection[int]) -> list[int]:
    """The ops of `ops` that the outputs or `taken` depend on, and those with an effect of their own, in order."""
    wanted = {v for v in graph.outputs if v is not None} | set(taken)
    found: list[int] = []
    for index in sorted(ops, reverse=True):
        op = graph.ops[index]
        if op.once or op.random or any(v in wanted for v in op.outputs):
            wanted.update(op.inputs)
            found.append(index)
    return found[::-1]
