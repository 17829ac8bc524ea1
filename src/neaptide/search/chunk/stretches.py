"""Stretches of a graph that are alike, as identical layers are: what is found in one of them holds in all.

In: a net, and the ops that are made again for each use. Out: regions between bounds. A region depends on the ops between its
bounds alone: on what they are, on who reads whom, and on what of the rest they touch. That is written down with every number
counted from the first op, and where it was met before, the region found there is moved instead of grown.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from neaptide.axes import Axis
from neaptide.graph import expression
from neaptide.search.chunk.net import Net
from neaptide.search.chunk.regions import Region, grow
from neaptide.steps import Made, Part


@dataclass(slots=True)
class Outside:
    """What a stretch touches of the rest of its graph, in the order in which it does."""

    values: dict[int, int] = field(default_factory=dict)
    storages: dict[int | None, int] = field(default_factory=dict)
    ops: dict[int, int] = field(default_factory=dict)
    """Those outside that are made again in it."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Where a region came from: the ops there from the `first` on are so many further on here, and `others` are others."""

    origin: Region
    first: int
    by: int
    others: Mapping[int, int]

    def op(self, there: int) -> int:
        """The op here that is what one there is."""
        return there + self.by if there >= self.first else self.others.get(there, there)


class Stretches:
    """The stretches of one graph: which storages its ops make, `born`, and need until `last`, and what runs `again`."""

    def __init__(self, net: Net, again: frozenset[int], born: Mapping[int, int], last: Mapping[int, int]) -> None:
        self.net, self.again, self.born, self.last = net, again, born, last
        self.moved: dict[Region, Moved] = {}
        self._known: dict[Hashable, tuple[int, Outside, Region | None]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._read_until = net.read_until(again)
        graph = net.graph
        self._refs = [(*net.operands[op], *net.numbers[op]) for op in range(len(graph.ops))]
        lent = [graph.values[v].storage for v in (*graph.inputs, *graph.constants)]
        self._own = {  # read once, and in memory of its own: nobody can tell it from another
            v
            for v in (*graph.inputs, *graph.constants)
            if len(net.users[v]) == 1 and lent.count(graph.values[v].storage) == 1 and v not in net.handed
        }
        self._kinds = [self._number(self._kind(op)) for op in range(len(graph.ops))]
        self._inner = [self._number((self._kinds[op], self._nearby(op))) for op in range(len(graph.ops))]
        self._since = [self._reach(op) for op in range(len(graph.ops))]
        self._until = [self._end(op) for op in range(len(graph.ops))]

    def grow(self, seed: int, axis: Axis, start: int, stop: int) -> Region | None:
        """The largest region between two bounds with an op done along an axis."""
        outside = Outside()
        about = (seed - start, axis.inputs, axis.outputs, self._described(start, stop, outside))
        known = self._known.get(about)
        if known is None:
            found = grow(self.net, seed, axis, start, stop, self.again)
            self._known[about] = start, outside, found
            return found
        first, theirs, found = known
        return None if found is None else self._move(found, first, start - first, theirs, outside)

    def _move(self, region: Region, first: int, by: int, theirs: Outside, ours: Outside) -> Region:
        graph = self.net.graph
        here = Moved(region, first, by, dict(zip(theirs.ops, ours.ops, strict=True)))
        values = dict(zip(theirs.values, ours.values, strict=True))

        def value(v: int) -> int:
            if v in values:
                return values[v]
            maker = graph.maker[v]
            assert maker is not None
            return graph.ops[here.op(maker)].outputs[graph.ops[maker].outputs.index(v)]

        made = tuple(Made(value(m.value), m.how, None if m.onto is None else value(m.onto)) for m in region.made)
        moved = replace(
            region,
            start=region.start + by,
            stop=region.stop + by,
            before=tuple(map(here.op, region.before)),
            parts=tuple(Part(here.op(part.op), part.axis) for part in region.parts),
            made=made,
            after=tuple(map(here.op, region.after)),
        )
        self.moved.setdefault(moved, here)
        return moved

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))

    def _kind(self, index: int) -> Hashable:
        """All that matters of an op by itself."""
        graph, net = self.net.graph, self.net
        op = graph.ops[index]
        storages = [graph.values[v].storage for v in (*self._refs[index], *op.outputs)]
        sizes = tuple(None if s is None else (graph.storages[s].size, s in self.born) for s in storages)
        numbers = tuple(str(expression(graph.values[v].fake)) for v in net.numbers[index])
        given = [graph.values[v].storage for v in self._refs[index]]
        shared = tuple(given.index(s) if s in given else s is not None and self.born.get(s) == index for s in storages)
        fixed = (op.random, op.once, bool(op.writes), op.workspace, index in self.again)
        return net.alike[index], net.axes(index), sizes, numbers, shared, fixed

    def _nearby(self, op: int) -> Hashable:
        """Who makes what an op reads, counted from it."""
        return tuple(None if v in self._own else self._place(v, op) for v in self._refs[op])

    def _place(self, value: int, reader: int) -> Hashable:
        maker = self.net.graph.maker[value]
        return None if maker is None else (reader - maker, self.net.graph.ops[maker].outputs.index(value))

    def _reach(self, op: int) -> int:
        """The first op that an op reads something of; before all of them where it is given something that others are too."""
        makers = (self.net.graph.maker[v] for v in self._refs[op] if v not in self._own)
        return min((-1 if maker is None else maker for maker in makers), default=op)

    def _end(self, op: int) -> int:
        """The last op that needs what an op makes, or the memory that it lies in."""
        graph, net, found = self.net.graph, self.net, op
        for v in graph.ops[op].outputs:
            storage = graph.values[v].storage
            uses = [user for user, _ in net.users[v]]
            kept = -1 if storage is None else self.last.get(storage, -1)
            found = max(found, *uses, kept, len(graph.ops) if v in net.handed else -1)
        return found

    def _described(self, start: int, stop: int, outside: Outside) -> Hashable:
        """All that a region between two bounds depends on."""
        inner, since, until = self._inner, self._since, self._until
        told: list[Hashable] = [
            inner[op] if since[op] >= start and until[op] < stop else self._touching(op, start, stop, outside)
            for op in range(start, stop)
        ]
        return tuple(told)

    def _touching(self, op: int, start: int, stop: int, outside: Outside) -> Hashable:
        """An op that reads something of the rest of the graph, or is read by it."""
        read: Hashable = self._inner[op]
        if self._since[op] < start:
            read = (self._kinds[op], *(self._reading(v, op, start, stop, outside) for v in self._refs[op]))
        if self._until[op] < stop:
            return read
        return (read, *(self._lasting(v, stop) for v in self.net.graph.ops[op].outputs))

    def _reading(self, value: int, reader: int, start: int, stop: int, outside: Outside) -> Hashable:
        if value in self._own:
            return None
        graph, maker = self.net.graph, self.net.graph.maker[value]
        if maker is not None and maker >= start:
            return self._place(value, reader)
        if value in outside.values:
            return outside.values[value]
        outside.values[value] = number = len(outside.values)
        storage = graph.values[value].storage
        alone = len(self.net.sharing[storage]) == 1
        place = outside.storages.setdefault(storage, len(outside.storages))
        made: Hashable = maker is None
        if maker is not None and maker in self.again:
            made = self._again(maker, value, start, stop, outside)
        return (number, place, alone, made, *self._lasting(value, stop))

    def _again(self, maker: int, value: int, start: int, stop: int, outside: Outside) -> Hashable:
        """An op outside that is made again inside."""
        part = self.net.graph.ops[maker].outputs.index(value)
        if maker in outside.ops:
            return outside.ops[maker], part
        outside.ops[maker] = number = len(outside.ops)
        given = (self._reading(v, maker, start, stop, outside) for v in self._refs[maker])
        return (number, part, self._kinds[maker], *given)

    def _lasting(self, value: int, stop: int) -> tuple[bool, bool, bool]:
        """Whether a value is handed on, whether it is needed after a stretch, and whether its memory is."""
        storage = self.net.graph.values[value].storage
        kept = storage is not None and self.last.get(storage, -1) >= stop
        return value in self.net.handed, self._read_until[value] >= stop, kept
