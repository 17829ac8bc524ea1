"""A graph and its regions as rows over sizes: what is there at each step, whatever the sizes will be.

In: a net and regions, once. Out: integer rows over the graph's distinct sizes, so that a new
size costs a product of matrices. No program is made for a look.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from neaptide.axes import Flow
from neaptide.pricing import PRODUCTS, is_batch
from neaptide.rounds import ADDED
from neaptide.search.chunk.net import Net
from neaptide.search.chunk.regions import Region
from neaptide.search.chunk.stretches import Moved
from neaptide.steps import reads_of_parts
from neaptide.timing import read_whole


@dataclass(frozen=True, slots=True)
class Form:
    """A region as rows over sizes. While it runs `standing` is there whatever the chunk; `body` is a round over everything."""

    region: Region
    before: np.ndarray
    standing: np.ndarray
    body: np.ndarray
    fetched: np.ndarray
    """What every round multiplies by whole: matrices."""
    batches: np.ndarray
    """And batches of them."""
    again: np.ndarray
    """What every round reads whole besides."""
    copied: np.ndarray
    """What is written to its place."""
    added: np.ndarray
    """What every round adds to, or compares with, from end to end."""
    missing: tuple[int, ...]
    """The late ops whose whole results it needs."""
    kind: int
    """The same for regions that weigh the same at every size, as those of identical layers do."""


class Forms:
    """A graph and its regions as rows over sizes. `late` ops are not there whole between uses, but made again for each."""

    def __init__(self, net: Net, late: Collection[int] = ()) -> None:
        self.net, self.late = net, frozenset(late)
        graph = net.graph
        self.count = len(graph.ops)
        used = {s.size for s in graph.storages} | {op.workspace for op in graph.ops}
        self.sizes = np.array(sorted(used), dtype=np.int64)
        self._column = {size: i for i, size in enumerate(self.sizes)}
        self.born, self.last = self._lives()
        self.entry = self._entries()
        self.plain = self._stack(self._plain(op) for op in range(self.count))
        self.preparing = self._stack(self._preparing(op) for op in range(self.count))
        self.forms: list[Form] = []
        self._alike = net.alike if not late else [(kind, *self._late_kinds(op)) for op, kind in enumerate(net.alike)]
        self._kinds: dict[Hashable, int] = {}

    def _late_kinds(self, op: int) -> list[int]:
        return sorted(self.net.alike[m] for m in self.late_makers([op]))

    def add(self, regions: Iterable[Region], moved: Mapping[Region, Moved]) -> None:
        """Look at regions, of which some are others that were moved."""
        known: dict[Region, Form] = {}
        for region in regions:
            here = moved.get(region)
            origin = None if here is None else known.get(here.origin)
            known[region] = self._form(region) if here is None or origin is None else self._moved(region, origin, here)
        self.forms.extend(known.values())

    def _moved(self, region: Region, origin: Form, here: Moved) -> Form:
        """The form of a region that is another one elsewhere, where something else may be there besides."""
        besides = self.entry[region.start] - self.entry[origin.region.start]
        kind = origin.kind
        if besides.any():
            kind = self._kinds.setdefault((kind, besides.tobytes()), len(self._kinds))
        return replace(
            origin,
            region=region,
            before=origin.before + besides,
            standing=origin.standing + besides,
            missing=tuple(sorted(map(here.op, origin.missing))),
            kind=kind,
        )

    def _stack(self, rows: Iterable[np.ndarray]) -> np.ndarray:
        return np.array([*rows], dtype=np.int64).reshape(-1, len(self.sizes))

    def _row(self, storages: Iterable[int | None], workspaces: Iterable[int] = ()) -> np.ndarray:
        row = np.zeros(len(self.sizes), dtype=np.int64)
        for storage in storages:
            if storage is not None:
                row[self._column[self.net.graph.storages[storage].size]] += 1
        for size in workspaces:
            row[self._column[size]] += 1
        return row

    def _held(self, values: Iterable[int]) -> set[int]:
        """The memory that values lie in, of what the graph makes."""
        storages = (self.net.graph.values[v].storage for v in values)
        return {s for s in storages if s is not None and s in self.born}

    def _lives(self) -> tuple[dict[int, int], dict[int, int]]:
        """For each storage that the graph makes: the op that makes it and the last that needs it."""
        graph = self.net.graph
        born: dict[int, int] = {}
        last: dict[int, int] = {}
        lent = {graph.values[v].storage for v in (*graph.inputs, *graph.constants)}
        for index, op in enumerate(graph.ops):
            for value in (*op.outputs, *op.inputs):
                storage = graph.values[value].storage
                if storage is not None and storage not in lent and graph.storages[storage].device == graph.device:
                    born.setdefault(storage, index)
                    last[storage] = index
        last.update((s, self.count) for v in self.net.handed if (s := graph.values[v].storage) in last and s is not None)
        return born, last

    def _entries(self) -> np.ndarray:
        """What is there when each op begins."""
        change = np.zeros((self.count + 2, len(self.sizes)), dtype=np.int64)
        for storage, first in self.born.items():
            if first not in self.late:
                column = self._column[self.net.graph.storages[storage].size]
                change[first + 1, column] += 1
                change[self.last[storage] + 1, column] -= 1
        return change.cumsum(axis=0)[: self.count + 1]

    def _plain(self, op: int) -> np.ndarray:
        """What is there while an op runs whole: what was there, what it makes and hides, and what is made again for it."""
        called = self.net.graph.ops[op]
        if op in self.late:
            return np.zeros(len(self.sizes), dtype=np.int64)
        fresh = {s for s in self._held(called.outputs) if self.born[s] == op}
        return self.entry[op] + self._row([*fresh, *self.again([op])], [called.workspace])

    def _preparing(self, op: int) -> np.ndarray:
        """What is there at most while that is made again which an op needs whole."""
        makers = self.late_makers([op]) if op not in self.late else ()
        if not makers:
            return np.zeros(len(self.sizes), dtype=np.int64)
        return self.entry[op] + self._row(self.again([op]), [self.net.graph.ops[m].workspace for m in makers])

    def again(self, ops: Collection[int]) -> set[int]:
        """The memory of late results that some ops need whole."""
        return self._held(v for op in self.late_makers(ops) for v in self.net.graph.ops[op].outputs)

    def late_makers(self, ops: Iterable[int]) -> set[int]:
        """The late ops on which some ops depend."""
        graph = self.net.graph
        todo = [v for op in ops for v in graph.ops[op].inputs] if self.late else []
        found: set[int] = set()
        while todo:
            maker = graph.maker[todo.pop()]
            if maker is not None and maker in self.late and maker not in found:
                found.add(maker)
                todo.extend(graph.ops[maker].inputs)
        return found

    def _form(self, region: Region) -> Form:
        graph = self.net.graph
        before, standing = self._before(region)
        made = self._held(m.value for m in region.made if m.onto is None)
        body, fixed = self._body(region)
        ops = [part.op for part in region.parts]
        values = graph.values
        fetched: list[int | None] = []
        batches: list[int | None] = []
        again: list[int | None] = []
        for part in region.parts:
            target = graph.ops[part.op].target
            for value in (self.net.operands[part.op][i] for i in read_whole(target, part.axis)):
                among = batches if is_batch(target, values[value].fake.dim()) else fetched if target in PRODUCTS else again
                among.append(values[value].storage)
        rows = (
            before,
            standing + self._row(made) + fixed,
            body,
            self._row(fetched),
            self._row(batches),
            self._row(again),
            self._row(values[m.value].storage for m in region.made if isinstance(m.how, Flow)),
            self._row(values[m.value].storage for m in region.made if not isinstance(m.how, Flow)),
        )
        looks = tuple(row.tobytes() for row in rows)
        steps = tuple(tuple(self._alike[op] for op in part) for part in (ops, region.before, range(region.start, region.stop)))
        kind = self._kinds.setdefault((looks, steps, region.extent, region.rows, len(region.made)), len(self._kinds))
        inside = {part.op for part in region.parts}
        return Form(region, *rows, tuple(sorted(self.late_makers(inside) - inside)), kind)

    def _before(self, region: Region) -> tuple[np.ndarray, np.ndarray]:
        """The steps before the loop, and what is there when it begins."""
        graph = self.net.graph
        inside = {part.op for part in region.parts}
        needed = self._held(v for op in (*inside, *region.after) for v in graph.ops[op].inputs)
        needed |= self._held(reads_of_parts(graph, region.parts))
        ends: dict[int, list[int]] = {}
        final = {s: op for op in region.before for s in self._held((*graph.ops[op].inputs, *graph.ops[op].outputs))}
        for storage, op in final.items():
            if storage not in needed and self.last[storage] < region.stop and self.born[storage] not in self.late:
                ends.setdefault(op, []).append(storage)
        now = self.entry[region.start].copy()
        rows = [now.copy()]
        for op in region.before:
            called = graph.ops[op]
            now += self._row(s for s in self._held(called.outputs) if self.born[s] == op)
            rows.append(now + self._row(self.again([op]), [called.workspace]))
            if makers := self.late_makers([op]):
                rows.append(now + self._row(self.again([op]), [graph.ops[m].workspace for m in makers]))
            now -= self._row(ends.get(op, ()))
        missing = self.late_makers(inside) - inside
        now += self._row(self._held(v for op in missing for v in graph.ops[op].outputs))
        rows.append(now + self._row((), [graph.ops[m].workspace for m in missing]))
        return _undominated(np.stack(rows)), now

    def _body(self, region: Region) -> tuple[np.ndarray, np.ndarray]:
        """One round over everything, step by step, and what does not depend on the round's length."""
        graph, parts = self.net.graph, region.parts
        last: dict[int, int] = {}
        birth: dict[int, int] = {}
        constant: list[int | None] = []
        fresh = {graph.values[v].storage for part in parts if not self.net.is_view(part.op) for v in graph.ops[part.op].outputs}
        for position, part in enumerate(parts):
            op = graph.ops[part.op]
            for value in op.inputs:
                storage = graph.values[value].storage
                if storage in birth:
                    last[storage] = position
            for value, how in zip(op.outputs, part.axis.outputs, strict=True):
                storage = graph.values[value].storage
                if storage is None or storage not in fresh:
                    continue
                if not isinstance(how, Flow):
                    if how != "sum" or op.target not in ADDED:  # which are added to what the rounds before made
                        constant.append(storage)
                    continue
                birth.setdefault(storage, position)
                last[storage] = position
        late = {graph.values[m.value].storage for m in region.made if m.onto is not None}
        last.update((s, len(parts) - 1) for s in late if s is not None and s in last)
        change = np.zeros((len(parts) + 1, len(self.sizes)), dtype=np.int64)
        for storage, first in birth.items():
            column = self._column[graph.storages[storage].size]
            change[first, column] += 1
            change[last[storage] + 1, column] -= 1
        rows = change.cumsum(axis=0)[:-1]
        tiles: set[int] = set()
        for position, part in enumerate(parts):
            workspace = graph.ops[part.op].workspace
            if _is_tiled(graph.ops[part.op].target):
                tiles.add(workspace)
            else:
                rows[position, self._column[workspace]] += 1
        return _undominated(rows), self._row(constant, tiles)


def _is_tiled(target: object) -> bool:
    """Whether an op's workspace is a few tiles, however long its input."""
    return "scaled_dot_product" in str(target)


def _undominated(rows: np.ndarray) -> np.ndarray:
    """The rows that no other row is at least as large as in every column."""
    rows = rows[list({row.tobytes(): number for number, row in enumerate(rows)}.values())]
    rows = rows[np.argsort(-rows.sum(axis=1), kind="stable")]  # a row can only be dominated by one before it
    kept = np.empty_like(rows)
    count = 0
    for row in rows:
        if not (kept[:count] >= row).all(axis=1).any():
            kept[count] = row
            count += 1
    return kept[:count].copy()
