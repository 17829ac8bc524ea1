"""What of a program a compiler may take in one go: stretches of plain ops.

In: the steps of a piece, and what is wanted of them in the end. Out: the same steps, with each stretch as one. What has to
happen at its own place stays a step of its own: random numbers, writes to what is given, other ranks, loops, what is sent
away or fetched.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import fx
from torch.fx.node import map_arg

from neaptide.graph import Graph
from neaptide.inner.fragment import Fragment, Home
from neaptide.inner.look import Look, look
from neaptide.memory import executed
from neaptide.program import Program
from neaptide.sizes import print_expression
from neaptide.steps import Drop, Rerun, Run, Same, Step, makes, reads

FEWEST = 2
"""Ops that compute something, of a stretch: with fewer there is nothing to put together."""
SHORT, LONG = 12, 160
"""And how many, of a stretch that is cut off from the rest, as a layer is: identical layers are compiled once."""


@dataclass(frozen=True, eq=False)
class Stretch(Fragment):
    """Steps that run as one: what they are given, and what of what they make is read afterwards."""

    graph: Graph
    steps: tuple[Step, ...]
    given: tuple[int, ...]
    made: tuple[int, ...]
    after: frozenset[int]
    """What is read after it, by whomever."""
    first: int
    """The position of its first step among those of its piece."""
    dims: tuple[int, ...] = ()
    """The sizes that a compiler is to have in mind."""

    @property
    def key(self) -> Hashable:
        return self.first

    def at(self, dims: tuple[int, ...]) -> Stretch:
        return replace(self, dims=dims)

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        free = self.graph.sizes
        return tuple((symbol.name, dim) for symbol, dim in zip(free.symbols, self.dims or free.hints, strict=True))

    @cached_property
    def module(self) -> fx.GraphModule:
        made, given = self.begin()
        names = dict(zip(self.given, given, strict=True))

        def argument(node: fx.Node) -> fx.Node:
            return names[self.graph.value_of[node]]

        for step in self.steps:
            if isinstance(step, Same):
                names[self.graph.ops[step.op].outputs[0]] = names[step.value]
            elif isinstance(step, (Run, Rerun)):
                op = self.graph.ops[step.op]
                args, kwargs = map_arg(op.node.args, argument), map_arg(op.node.kwargs, argument)
                result = made.create_node("call_function", op.target, args, kwargs, op.name)
                for value in op.outputs:
                    part = self.graph.values[value].part
                    names[value] = result if part is None else made.call_function(operator.getitem, (result, part))
        made.output(tuple(names[v] for v in self.made))
        made.eliminate_dead_code()
        return fx.GraphModule({}, made)

    @property
    def looks(self) -> tuple[Look, ...]:
        return tuple(look(self.graph.values[v].fake) for v in self.given)

    @property
    def homes(self) -> tuple[Home | None, ...]:
        values = self.graph.values
        stay = {values[v].storage for v in (*self.graph.inputs, *self.graph.constants, *self.after)}
        return tuple(home(self.graph, v, values[v].storage not in stay) for v in self.given)

    def cases(self, dims: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [dims]

    def places(self, program: Program, begin: int) -> list[int]:
        return [sum(map(executed, program.steps[: begin + self.first]))]


def home(graph: Graph, value: int, goes: bool) -> Home | None:
    """Where a value lies."""
    storage = graph.values[value].storage
    if storage is None:
        return None
    size = graph.sizes.expressions[graph.storages[storage].size]
    return Home(storage, print_expression(size), goes)


def stretches(graph: Graph, steps: Sequence[Step], wanted: Collection[int]) -> Iterator[Step | Stretch]:
    """The steps of a piece in order, those that can run as one put together; `wanted` is what is handed out in the end."""
    needed = _needed(graph, steps, wanted)
    begin = 0
    while begin < len(steps):
        end = begin
        while end < len(steps) and is_plain(graph, steps[end]):
            end += 1
        if end == begin:
            yield steps[begin]
            begin += 1
            continue
        end = _cut(graph, steps, begin, end, needed, wanted)
        if sum(_computes(graph, step) for step in steps[begin:end]) < FEWEST:
            yield from steps[begin:end]
        else:
            yield _stretch(graph, tuple(steps[begin:end]), needed[end], begin)
        begin = end


def _cut(
    graph: Graph, steps: Sequence[Step], begin: int, end: int, needed: Sequence[frozenset[int]], wanted: Collection[int]
) -> int:
    """Where a stretch that may go on to `end` is best cut: where another block of the model begins, else where least of what it
    makes is read behind it."""
    inside: set[int] = set()
    computed, block, best = 0, "", (0, end)
    for position in range(begin, end):
        step = steps[position]
        if _computes(graph, step):
            here = _block(graph, step)
            if block and here and here != block and computed >= SHORT:
                return position
            block = here or block
            computed += 1
        if computed > LONG:
            return best[1]
        inside.update(makes(graph, step))
        if computed > LONG // 2:
            across = len({graph.values[v].storage for v in inside & needed[position + 1] if v not in wanted})
            best = (across, position + 1) if best[1] == end or across <= best[0] else best
    return end


def _block(graph: Graph, step: Step) -> str:
    """The member of a list of modules that an op belongs to, as `layers.3`; nothing where it belongs to none."""
    path = graph.ops[step.op].path if isinstance(step, (Run, Rerun)) else ""
    found = re.match(r"(.*\.\d+)(\.|$)", path)
    return found[1] if found else ""


def is_plain(graph: Graph, step: Step) -> bool:
    """Whether a step does nothing but make values from others."""
    if not isinstance(step, (Run, Rerun)):
        return isinstance(step, (Drop, Same))
    op = graph.ops[step.op]
    return not (op.random or op.once or op.writes) and all(_is_known(graph, v) for v in (*op.inputs, *op.outputs))


def _is_known(graph: Graph, value: int) -> bool:
    """Whether a value is a dense tensor, or a number, of a size that follows from those of the inputs."""
    fake = graph.values[value].fake
    if isinstance(fake, torch.Tensor):
        return type(fake).__name__ == "FakeTensor" and fake.layout is torch.strided
    return isinstance(fake, (int, torch.SymInt))


def _computes(graph: Graph, step: Step) -> bool:
    """Whether a step makes memory."""
    if not isinstance(step, (Run, Rerun)):
        return False
    homes = {graph.values[v].storage for v in graph.ops[step.op].inputs} | {None}
    return any(graph.values[v].storage not in homes for v in graph.ops[step.op].outputs)


def _stretch(graph: Graph, steps: tuple[Step, ...], needed: frozenset[int], first: int) -> Stretch:
    inside: set[int] = set()
    given: dict[int, None] = {}
    for step in steps:
        given.update(dict.fromkeys(v for v in reads(graph, step) if v not in inside))
        inside.update(makes(graph, step))
    made = dict.fromkeys(v for step in steps for v in makes(graph, step) if v in needed)
    return Stretch(graph, steps, tuple(given), tuple(made), needed, first)


def _needed(graph: Graph, steps: Sequence[Step], wanted: Collection[int]) -> list[frozenset[int]]:
    """For each position among the steps, what is read from there on."""
    found = [frozenset(wanted)]
    for step in reversed(steps):
        found.append(found[-1].difference(makes(graph, step)).union(reads(graph, step)))
    return found[::-1]
