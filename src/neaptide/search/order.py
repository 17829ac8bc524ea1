"""The order of ops with the lowest peak: bounded from below first, then sought, and taken only where it is lower.

In: an inference graph and sizes. Out: an order of its ops, or None where the traced one is as good. At each op all that was
made before it, whatever the order, and is needed after it must be there: where that bound is met already, nothing is sought.
Two searches follow: one keeps the best few ways to have done each number of ops, the other looks for an order inside a limit
that comes nearer and nearer to the bound. What takes nothing and frees something is done at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neaptide.apply.inplace import overwritable
from neaptide.graph import Graph
from neaptide.memory import sizes_at

WIDTH = 8
"""How many ways are kept side by side."""
LOOKS = 20_000
"""How many next ops are looked at before a search is given up."""
NEAR = 0.01
"""How near to the bound, or to what could not be reached, a peak is near enough."""
TINY = 2000
"""What is below this part of a limit is done as if it took nothing."""
GAIN = 0.99
"""An order is worth having if it takes this much of the traced one's peak or less."""
AROUND = (0.25, 4.0)
"""At these multiples of the size it was found at, an order must not be worse than the traced one."""


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """Ops done so far, and what that took."""

    done: int
    ready: frozenset[int]
    alive: int
    peak: int
    last: int
    before: _Way | None


class Orders:
    """The orders of one graph that mean the same."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        count = len(graph.ops)
        self.after: list[int] = [0] * count
        """For each op, those that must come before it, as bits."""
        self.reads: list[tuple[int, ...]] = []
        self.makes: list[tuple[int, ...]] = []
        self.over = [self._storage(overwritable(graph, i, self._storage)) for i in range(count)]
        self.next: list[list[int]] = [[] for _ in range(count)]
        lent = {graph.values[v].storage for v in (*graph.inputs, *graph.constants)}
        self.users: dict[int, int] = {}
        """For each storage that the graph makes and does not hand out, its readers, as bits."""
        self._link()
        for index, op in enumerate(graph.ops):
            made = {graph.values[v].storage for v in op.outputs} - lent
            self.makes.append(tuple(s for s in made if s is not None and s not in self.users))
            self.users.update((s, 1 << index) for s in self.makes[-1])
            read = {graph.values[v].storage for v in (*op.inputs, *op.outputs)}
            self.reads.append(tuple(s for s in read if s is not None and s in self.users))
            for storage in self.reads[-1]:
                self.users[storage] |= 1 << index
        for value in graph.outputs:
            storage = graph.values[value].storage if value is not None else None
            if storage is not None:
                self.users[storage] = -1

    def _storage(self, value: int | None) -> int | None:
        return None if value is None else self.graph.values[value].storage

    def _link(self) -> None:
        """Who must come before whom: makers, writers and readers of one memory, and all that has effects of its own."""
        graph = self.graph
        wrote: dict[int, int] = {}
        read: dict[int, list[int]] = {}
        effect: int | None = None
        for index, op in enumerate(graph.ops):
            before = {maker for v in op.inputs if (maker := graph.maker[v]) is not None}
            written = {graph.values[v].storage for v in op.writes}
            for storage in {graph.values[v].storage for v in op.inputs}:
                if storage is None:
                    continue
                if storage in wrote:
                    before.add(wrote[storage])
                if storage in written:
                    before.update(read.pop(storage, ()))
                    wrote[storage] = index
                else:
                    read.setdefault(storage, []).append(index)
            if op.random or op.once:
                if effect is not None:
                    before.add(effect)
                effect = index
            for other in before - {index}:
                self.after[index] |= 1 << other
                self.next[other].append(index)

    def bytes_at(self, dims: Sequence[int]) -> tuple[list[int], list[int]]:
        """The bytes of storages and of workspaces."""
        sizes = sizes_at(self.graph, dims)
        return [sizes[size] for size in self.graph.held], [sizes[op.workspace] for op in self.graph.ops]

    def bound(self, dims: Sequence[int]) -> int:
        """No order has a lower peak."""
        held, hidden = self.bytes_at(dims)
        count = len(self.graph.ops)
        ancestors = list(self.after)
        for index in range(count):
            for other in _bits(self.after[index]):
                ancestors[index] |= ancestors[other]
        maker = {s: index for index, made in enumerate(self.makes) for s in made}
        highest = 0
        users = {s: (u if u >= 0 else 1 << count) for s, u in self.users.items()}
        descendants = [1 << count] * count
        for index in range(count - 1, -1, -1):
            for other in self.next[index]:
                descendants[index] |= descendants[other] | 1 << other
        for index in range(count):
            here = hidden[index] + sum(held[s] for s in self.makes[index])
            over = self.over[index]
            later = descendants[index] | 1 << index
            for storage, made in maker.items():
                if held[storage] and ancestors[index] >> made & 1 and users[storage] & later:
                    taken_over = storage == over and not users[storage] & descendants[index]
                    here += 0 if taken_over else held[storage]
            highest = max(highest, here)
        return highest

    def peak(self, order: Sequence[int], dims: Sequence[int]) -> int:
        """The peak of one order."""
        held, hidden = self.bytes_at(dims)
        done = alive = highest = 0
        for op in order:
            highest = max(highest, alive + self._here(op, done, held, hidden))
            alive += self._change(op, done, held)
            done |= 1 << op
        return highest

    def _here(self, op: int, done: int, held: list[int], hidden: list[int]) -> int:
        over = self.over[op]
        saved = held[over] if over is not None and over in self.users and not self.users[over] & ~(done | 1 << op) else 0
        return sum(held[s] for s in self.makes[op]) + hidden[op] - saved

    def _change(self, op: int, done: int, held: list[int]) -> int:
        left = ~(done | 1 << op)
        freed = sum(held[s] for s in self.reads[op] if not self.users[s] & left)
        return sum(held[s] for s in self.makes[op]) - freed

    def lowest(self, dims: Sequence[int], bound: int = 0) -> list[int] | None:
        """The order with the lowest peak that was found; below the bound all peaks are as good. None if there was no time.

        Limits between the bound and the best so far are tried, halving the distance, until there is little left of it.
        """
        held, hidden = self.bytes_at(dims)
        best = self._beam(held, hidden, bound)
        if best is None:
            return None
        low, high = bound, max(self.peak(best, dims), bound)
        while high - low > NEAR * high:
            limit = (low + high) // 2
            found, _ = self.within(limit, dims)
            if found is None:
                low = limit
            else:
                best, high = found, max(self.peak(found, dims), low)
        return best

    def within(self, limit: int, dims: Sequence[int]) -> tuple[list[int] | None, bool]:
        """An order that stays inside a limit, None where none was found; and whether that is certain: all was looked at.

        What takes next to nothing in the end is done as soon as it can be: with a limit, no order gains by waiting.
        """
        held, hidden = self.bytes_at(dims)
        count = len(self.graph.ops)
        start = _Way(0, frozenset(i for i in range(count) if not self.after[i]), 0, limit, -1, None)
        todo, seen, looks = [self._settled(start, held, hidden, limit // TINY)], set(), 0
        while todo and looks < LOOKS:
            way = todo.pop()
            if not way.ready:
                return _walk(way), True
            if way.done in seen:
                continue
            seen.add(way.done)
            looks += len(way.ready)
            steps = [
                self._settled(self._do(way, op, held, hidden), held, hidden, limit // TINY)
                for op in way.ready
                if way.alive + self._here(op, way.done, held, hidden) <= limit
            ]
            todo.extend(sorted(steps, key=lambda step: -step.alive))
        return None, not todo

    def _beam(self, held: list[int], hidden: list[int], bound: int) -> list[int] | None:
        """The best of a few ways at a time; None if that takes too long."""
        count = len(self.graph.ops)
        start = _Way(0, frozenset(i for i in range(count) if not self.after[i]), 0, bound, -1, None)
        ways = [self._settled(start, held, hidden)]
        looks = 0
        while looks < LOOKS:
            found: dict[int, _Way] = {}
            for way in ways:
                if not way.ready:
                    found.setdefault(way.done, way)
                    continue
                looks += len(way.ready)
                for op in way.ready:
                    step = self._settled(self._do(way, op, held, hidden), held, hidden)
                    known = found.get(step.done)
                    if known is None or step.peak < known.peak:
                        found[step.done] = step
            ways = sorted(found.values(), key=lambda w: (max(w.peak, bound), w.alive))[:WIDTH]
            if all(not way.ready for way in ways):
                return _walk(ways[0])
        return None

    def _do(self, way: _Way, op: int, held: list[int], hidden: list[int]) -> _Way:
        peak = max(way.peak, way.alive + self._here(op, way.done, held, hidden))
        alive = way.alive + self._change(op, way.done, held)
        done = way.done | 1 << op
        fresh = [n for n in self.next[op] if not self.after[n] & ~done]
        return _Way(done, (way.ready - {op}) | frozenset(fresh), alive, peak, op, way)

    def _settled(self, way: _Way, held: list[int], hidden: list[int], tiny: int = 0) -> _Way:
        """Everything done that takes nothing, or next to it, and stays below what there was: no order gains by waiting."""
        again = True
        while again:
            again = False
            for op in sorted(way.ready):
                rises = way.alive + self._here(op, way.done, held, hidden) > way.peak
                if self._change(op, way.done, held) <= tiny and not rises:
                    way = self._do(way, op, held, hidden)
                    again = True
        return way


def _walk(way: _Way) -> list[int]:
    found: list[int] = []
    step: _Way | None = way
    while step is not None and step.last >= 0:
        found.append(step.last)
        step = step.before
    return found[::-1]


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def better_order(graph: Graph, dims: Sequence[int]) -> tuple[int, ...] | None:
    """An order of a graph's ops with a lower peak than the traced one, at sizes around `dims`; None where there is none."""
    if len(graph.ops) < 3:
        return None
    orders = Orders(graph)
    traced = range(len(graph.ops))
    before = orders.peak(traced, dims)
    bound = orders.bound(dims)
    if bound > GAIN * before:
        return None
    found = orders.lowest(dims, bound)
    if found is None:
        return None
    around = filter(None, (graph.sizes.around(dims, times) for times in AROUND))
    worse = any(orders.peak(found, at) > orders.peak(traced, at) for at in around)
    return None if worse or orders.peak(found, dims) > GAIN * before else tuple(found)
