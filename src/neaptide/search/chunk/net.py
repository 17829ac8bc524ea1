"""A graph as chunking sees it: who reads what, along which axes each op can be done in parts, what is cheap to make again."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import torch

from neaptide.axes import Axis, Flow, along_input, along_output, axes, is_listed
from neaptide.graph import Graph, described
from neaptide.timing import alike


class Net:
    """What is asked again and again of a graph while regions grow."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.operands = [graph.operands(i) for i in range(len(graph.ops))]
        self.users: list[list[tuple[int, int]]] = [[] for _ in graph.values]
        for op, given in enumerate(self.operands):
            for position, value in enumerate(given):
                self.users[value].append((op, position))
        self.numbers = [tuple(v for v in op.inputs if graph.values[v].storage is None) for op in graph.ops]
        self.handed = frozenset(v for v in (*graph.outputs, *graph.gradients) if v is not None)
        self.sharing: dict[int | None, list[int]] = {}
        """The values in each storage."""
        for value, held in enumerate(graph.values):
            self.sharing.setdefault(held.storage, []).append(value)
        self._axes: dict[int, tuple[Axis, ...]] = {}
        self._along_input: dict[tuple[int, int, Flow], Axis | None] = {}
        self._along_output: dict[tuple[int, Flow], Axis | None] = {}
        self._read_until: dict[frozenset[int], list[int]] = {}

    def axes(self, op: int) -> tuple[Axis, ...]:
        """The ways to do an op in parts; none for one that is random, has an effect, or makes something other than tensors."""
        found = self._axes.get(op)
        if found is None:
            found = self._axes[op] = self._find_axes(op)
        return found

    def along_input(self, op: int, position: int, flow: Flow) -> Axis | None:
        """The axis of an op that runs along `flow` in an operand."""
        key = (op, position, flow)
        if key not in self._along_input:
            self._along_input[key] = along_input(self.axes(op), position, flow)
        return self._along_input[key]

    def along_output(self, op: int, value: int, flow: Flow) -> Axis | None:
        """The axis of an op that runs along `flow` in a result."""
        key = (value, flow)
        if key not in self._along_output:
            self._along_output[key] = along_output(self.axes(op), self.graph.ops[op].outputs.index(value), flow)
        return self._along_output[key]

    def _find_axes(self, index: int) -> tuple[Axis, ...]:
        op = self.graph.ops[index]
        fakes = [self.graph.values[v].fake for v in op.outputs]
        if op.random or op.once or op.writes or not all(_is_plain(fake) for fake in fakes):
            return ()
        args, kwargs = described(op.node)
        found = axes(op.target, args, kwargs, [self.graph.spec(v) for v in op.outputs])
        return tuple(axis for axis in found if len(axis.inputs) == len(self.operands[index]))

    def is_view(self, op: int) -> bool:
        """Whether an op only looks at memory that it is given."""
        values = self.graph.values
        given = {values[v].storage for v in self.graph.ops[op].inputs}
        return all(values[v].storage is not None and values[v].storage in given for v in self.graph.ops[op].outputs)

    @cached_property
    def ancestors(self) -> list[int]:
        """For each op, as bits of a number: itself and all that it depends on."""
        found: list[int] = []
        for index, op in enumerate(self.graph.ops):
            makers = {m for v in op.inputs if (m := self.graph.maker[v]) is not None}
            found.append(1 << index)
            for maker in makers:
                found[index] |= found[maker]
        return found

    @cached_property
    def descendants(self) -> list[int]:
        """For each op, as bits of a number: itself and all that depends on it."""
        found = [1 << index for index in range(len(self.graph.ops))]
        for index in reversed(range(len(found))):
            for maker in {m for v in self.graph.ops[index].inputs if (m := self.graph.maker[v]) is not None}:
                found[maker] |= found[index]
        return found

    def is_read_after(self, value: int, stop: int, again: frozenset[int], but: Collection[int] = ()) -> bool:
        """Whether any op from `stop` on needs a value, `but` some, be it only to make something `again`."""
        until = self.read_until(again)[value]
        if not but or until < stop:
            return until >= stop
        for user, _ in self.users[value]:
            if user in again:
                if any(self.is_read_after(made, stop, again, but) for made in self.graph.ops[user].outputs):
                    return True
            elif user >= stop and user not in but:
                return True
        return False

    def read_until(self, again: frozenset[int]) -> list[int]:
        """For each value the last op that needs it, be it only to make something `again`; -1 where none does."""
        found = self._read_until.get(again)
        if found is None:
            found = self._read_until[again] = [-1] * len(self.users)
            for op in range(len(self.graph.ops) - 1, -1, -1):
                until = max((found[made] for made in self.graph.ops[op].outputs), default=-1) if op in again else op
                for value in self.operands[op]:
                    found[value] = max(found[value], until)
        return found

    @cached_property
    def alike(self) -> list[int]:
        """For each op a number that is the same for ops that cost the same at every size."""
        return alike(self.graph)

    @cached_property
    def unlisted(self) -> tuple[str, ...]:
        """The ops that nobody listed, which therefore stay whole."""
        targets = dict.fromkeys(op.target for op in self.graph.ops if isinstance(op.target, torch._ops.OpOverload))
        return tuple(str(t) for t in targets if not is_listed(t))

    @cached_property
    def light(self) -> frozenset[int]:
        """Ops that cost little beside what they write: elementwise, factories and views."""

        def is_light(op: int) -> bool:
            target = self.graph.ops[op].target
            elementwise = isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
            return elementwise or not self.operands[op] or self.is_view(op)

        return frozenset(op for op in range(len(self.graph.ops)) if self.axes(op) and is_light(op))

    @cached_property
    def norms(self) -> frozenset[int]:
        """Ops that treat rows one by one and cost little more than reading them."""
        return frozenset(i for i, op in enumerate(self.graph.ops) if "_norm" in str(op.target) and self.axes(i))


def _is_plain(fake: object) -> bool:
    return isinstance(fake, torch.Tensor) and fake.layout is torch.strided
