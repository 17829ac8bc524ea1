"""From an op and one of its axes outwards: the largest region between two bounds that can run in parts.

In: a seed (an op and an axis of it) and the first and last op that the region may reach. Out: a `Region`, or None. What an op
in the region reads along the axis is made in the region too, if it can be; what it needs whole is made before; all that reads
what the region makes joins it, and the region ends before the first op that cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from neaptide.axes import Axis, Flow, equal, quotient
from neaptide.graph import expression
from neaptide.search.chunk.exactness import is_row_by_row, rows_cut
from neaptide.search.chunk.net import Net
from neaptide.steps import Made, Part


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of a graph's ops, `start <= op < stop`, to be run as: `before`, a loop over `parts`, `after`.

    The parts may include cheap ops from before `start`, made again in each round. `after` are views of what was made.
    """

    start: int
    stop: int
    before: tuple[int, ...]
    parts: tuple[Part, ...]
    made: tuple[Made, ...]
    after: tuple[int, ...]
    extent: int
    rows: tuple[int, ...]
    """How many rows of each matrix product one unit is, as places in the table of sizes."""
    exact: bool
    """Whether results stay the same to the last bit, with enough rows."""

    def __hash__(self) -> int:
        return hash((self.start, self.stop, self.extent, len(self.parts), len(self.made), self.parts[0].op))

    def __repr__(self) -> str:
        return f"Region({self.start}-{self.stop}, {len(self.parts)} ops in parts, {len(self.made)} results)"


class _EndError(Exception):
    """The region must end before this op."""

    def __init__(self, op: int) -> None:
        self.op = op


class _NoError(Exception):
    """There is no such region."""


def grow(
    net: Net, seed: int, axis: Axis, start: int, stop: int, again: frozenset[int] = frozenset(), claims: bool = False
) -> Region | None:
    """The largest region with `seed` done along `axis`; ops in `again` run again in it, for the parts it reads.

    Where it `claims` what they make, all that reads it between the bounds joins the region, as with what is made in it.
    """
    while seed < stop:
        growth = _Growth(net, seed, start, stop, again, claims)
        try:
            growth.grow(axis)
            return growth.region()
        except _EndError as end:
            stop = end.op
        except _NoError:
            return None
    return None


@dataclass(slots=True)
class _Growth:
    net: Net
    seed: int
    start: int
    stop: int
    again: frozenset[int]
    claims: bool
    loop: dict[int, Axis] = field(default_factory=dict)
    whole: int = 0
    after_seed: int = 0
    """Ops that are done before the loop, and those that depend on the seed, as bits."""
    waiting: list[int] = field(default_factory=list)

    def grow(self, axis: Axis) -> None:
        self.after_seed = self.net.descendants[self.seed]
        self._join(self.seed, axis)
        while self.waiting:
            op = self.waiting.pop()
            if op in self.loop:
                self._claim_users(op)

    def _join(self, op: int, axis: Axis) -> None:
        """Take an op into the loop, and with it what it reads along the axis."""
        todo = [(op, axis)]
        while todo:
            op, axis = todo.pop()
            known = self.loop.get(op)
            if known == axis or self.whole >> op & 1:
                continue
            if known is not None:
                self._make_whole(op)
                continue
            self.loop[op] = axis
            if self.claims or self._is_inside(op):
                self.waiting.append(op)
            for number in self.net.numbers[op]:
                maker = self.net.graph.maker[number]
                if maker is not None and self._is_between(maker):
                    self._need_whole(maker, op)
            for value, flow in zip(self.net.operands[op], axis.inputs, strict=True):
                if op not in self.loop:
                    break
                maker = self.net.graph.maker[value]
                if maker is None or self.whole >> maker & 1:
                    continue
                if not self._is_between(maker) and maker not in self.again:
                    continue
                needed = None if flow is None else self.net.along_output(maker, value, flow)
                if needed is None or self.loop.get(maker, needed) != needed:
                    self._need_whole(maker, op)
                elif maker not in self.loop:
                    todo.append((maker, needed))

    def _is_between(self, op: int) -> bool:
        return self.start <= op < self.stop

    def _is_inside(self, op: int) -> bool:
        """Whether the region is where an op is done: what others make again for themselves binds none of them."""
        return self._is_between(op) and op not in self.again

    def _need_whole(self, op: int, reader: int) -> None:
        if self.after_seed >> op & 1:
            raise _EndError(reader) if reader != self.seed else _NoError
        self._make_whole(op)

    def _make_whole(self, op: int) -> None:
        """Have an op and all that it depends on done before the loop."""
        if self.after_seed >> op & 1:
            raise _EndError(op) if op != self.seed else _NoError
        earlier = (self.net.ancestors[op] >> self.start << self.start | 1 << op) & ~self.whole
        if earlier:
            self.whole |= earlier
            for joined in [joined for joined in self.loop if earlier >> joined & 1]:
                del self.loop[joined]

    def _claim_users(self, op: int) -> None:
        """What reads the results of an op in the loop joins the loop."""
        for value, how in zip(self.net.graph.ops[op].outputs, self.loop[op].outputs, strict=True):
            for user, position in self.net.users[value]:
                if op not in self.loop:
                    return
                if not self._is_inside(user):
                    continue
                found = self.net.along_input(user, position, how) if isinstance(how, Flow) else None
                if found is None or self.loop.get(user, found) != found:
                    self._refuse(op, user)
                elif user not in self.loop and not self.whole >> user & 1:
                    self._join(user, found)
                elif self.whole >> user & 1:
                    self._make_whole(op)

    def _refuse(self, op: int, user: int) -> None:
        """A reader cannot join: either the loop ends before it, or what it reads is made before the loop."""
        if self.after_seed >> op & 1:
            raise _EndError(user)
        self._make_whole(op)

    def region(self) -> Region | None:
        self._take_out_idle()
        graph = self.net.graph
        inner = {v for op in self.loop for v in graph.ops[op].outputs}
        order = sorted(self.loop)
        inside = [op for op in order if self._is_inside(op)]
        if not inside or self.seed not in self.loop:
            return None
        start, stop = inside[0], inside[-1] + 1
        self.stop = stop
        before = tuple(op for op in range(start, stop) if op not in self.loop and op not in self.again)
        for op in before:
            if any(v in inner for v in self._reads(op)) or graph.ops[op].once or graph.ops[op].writes or graph.ops[op].random:
                return None
        roots: dict[int, None] = {}
        after: set[int] = set()
        for op in inside:
            for value in graph.ops[op].outputs:
                if value in self.net.handed or self._is_read_after(value, stop):
                    roots[self._root(value, after)] = None
        taken: set[int] = set()
        made = tuple(self._made(value, stop, taken) for value in roots if value in inner)
        extent = self._extent()
        if not made or extent is None or any(m is None for m in made):
            return None
        parts = tuple(Part(op, self.loop[op]) for op in order)
        rows = dict.fromkeys(r for part in parts if (r := rows_cut(self.net, part)) is not None)
        rows_at = tuple(graph.sizes.add(r) for r in rows)
        whole = tuple(m for m in made if m is not None)
        exact = all(isinstance(m.how, Flow) for m in whole) and all(is_row_by_row(self.net, part) for part in parts)
        return Region(start, stop, before, parts, whole, tuple(sorted(after)), graph.sizes.add(extent), rows_at, exact)

    def _reads(self, op: int) -> Iterator[int]:
        """What an op reads, by itself and to make again what it needs."""
        for value in self.net.graph.ops[op].inputs:
            yield value
            maker = self.net.graph.maker[value]
            if maker is not None and maker in self.again:
                yield from self._reads(maker)

    def _take_out_idle(self) -> None:
        """Views of what is there whole, small things and what nothing in the loop reads are made before it."""
        graph = self.net.graph
        for op in sorted(self.loop):
            makers = (graph.maker[v] for v in graph.ops[op].inputs)
            if op == self.seed or not self._is_inside(op) or any(m in self.loop for m in makers if m is not None):
                continue
            read = any(user in self.loop for v in graph.ops[op].outputs for user, _ in self.net.users[v])
            if self.net.is_view(op) or not read or self._is_small(op):
                del self.loop[op]
        for op in sorted(self.loop, reverse=True):
            read = any(user in self.loop for v in graph.ops[op].outputs for user, _ in self.net.users[v])
            if not self._is_inside(op) and not read:
                del self.loop[op]

    def _is_small(self, op: int) -> bool:
        """Whether a result is at every size a small share of the seed's: a table of positions beside scores."""
        graph = self.net.graph
        made = [graph.storages[s].size for v in graph.ops[op].outputs if (s := graph.values[v].storage) is not None]
        seed = [graph.storages[s].size for v in graph.ops[self.seed].outputs if (s := graph.values[v].storage) is not None]
        sizes = graph.sizes.evaluate(graph.sizes.hints)
        return 32 * sum(sizes[i] for i in made) <= sum(sizes[i] for i in seed)

    def _root(self, value: int, after: set[int]) -> int:
        """The value that a view looks at; the views on the way are to be made again of the whole."""
        graph = self.net.graph
        while (maker := graph.maker[value]) in self.loop and maker is not None and self.net.is_view(maker):
            storage = graph.values[value].storage
            after.add(maker)
            value = next(v for v in graph.ops[maker].inputs if graph.values[v].storage == storage)
        if maker is not None and maker not in self.loop and maker in self.again:
            raise _NoError
        return value

    def _made(self, value: int, stop: int, taken: set[int]) -> Made | None:
        graph = self.net.graph
        maker = graph.maker[value]
        if maker is None or not self._is_inside(maker):
            return None
        how = self.loop[maker].outputs[graph.ops[maker].outputs.index(value)]
        storage = graph.values[value].storage
        if how is None or storage is None:
            return None
        fake = graph.values[value].fake
        full = expression(fake.numel()) * fake.element_size()
        if not equal(graph.sizes.canonical(full), graph.sizes.expressions[graph.storages[storage].size]):
            return None
        onto = self._onto(value, how, stop, taken) if isinstance(how, Flow) else None
        if onto is not None:
            taken.add(onto)
        return Made(value, how, onto)

    def _onto(self, value: int, how: Flow, stop: int, taken: set[int]) -> int | None:
        """A value read only here, and only along `how`, whose memory the result can take over part by part."""
        graph = self.net.graph
        spec = graph.spec(value)
        read = dict.fromkeys(v for op in self.loop for v in self.net.operands[op])
        for candidate in read:
            if candidate in taken:
                continue
            held = graph.values[candidate]
            maker = graph.maker[candidate]
            if maker is None or maker in self.loop or held.storage is None or candidate in self.net.handed:
                continue
            if self.net.sharing[held.storage] != [candidate] or graph.spec(candidate) != spec:
                continue
            cuts = {self.loop[user].inputs[p] for user, p in self.net.users[candidate] if user in self.loop}
            if cuts == {how} and not self._is_read_after(candidate, stop):
                return candidate
        return None

    def _is_read_after(self, value: int, stop: int) -> bool:
        """Whether anything needs a value after the region, which ends at `stop`."""
        return self.net.is_read_after(value, stop, self.again, self.loop)

    def _extent(self) -> object:
        axis = self.loop[self.seed]
        graph = self.net.graph
        pairs = [
            *zip(graph.ops[self.seed].outputs, axis.outputs, strict=True),
            *zip(self.net.operands[self.seed], axis.inputs, strict=True),
        ]
        for value, flow in pairs:
            if isinstance(flow, Flow):
                return quotient(expression(graph.values[value].fake.shape[flow.dim]), flow.block)
        return None
