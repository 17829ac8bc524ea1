"""Kinds of regions as one table, so that at a new size all of them are weighed together.

In: forms, once. Out: their rows over sizes stacked, and how often each kind of op is in each of them. Regions of one kind, as
those of identical layers are, stand in it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from neaptide.axes import Axis
from neaptide.pricing import PRODUCTS
from neaptide.search.chunk.forms import Form, Forms
from neaptide.search.chunk.regions import Region
from neaptide.timing import in_rows, is_within_lines, read_whole, sliced


class Stack:
    """Rows of all kinds in one array, each kind's next to each other."""

    def __init__(self, rows: Sequence[np.ndarray], width: int) -> None:
        self._owners = np.flatnonzero([len(own) for own in rows])
        self._starts = np.cumsum([0, *(len(own) for own in rows)])[self._owners]
        self._rows = np.concatenate([np.zeros((0, width), dtype=np.int64), *rows])
        self._count = len(rows)

    def highest(self, sizes: np.ndarray) -> np.ndarray:
        """The most that any of a kind's rows takes."""
        found = np.zeros(self._count, dtype=np.int64)
        if len(self._owners):
            found[self._owners] = np.maximum.reduceat(self._rows @ sizes, self._starts)
        return found


class Sums:
    """Places in an array to add up for each kind."""

    def __init__(self, places: Iterable[Iterable[int]]) -> None:
        listed = [list(own) for own in places]
        self._owners = np.repeat(np.arange(len(listed)), [len(own) for own in listed])
        self._places = np.array([place for own in listed for place in own], dtype=np.int64)
        self._count = len(listed)

    def of(self, figures: np.ndarray) -> np.ndarray:
        return np.bincount(self._owners, figures[self._places], self._count) if self._count else np.zeros(0)


class Kinds:
    """Every kind of region of a graph's forms."""

    def __init__(self, forms: Forms) -> None:
        net = forms.net
        firsts: dict[int, Form] = {}
        for form in forms.forms:
            firsts.setdefault(form.kind, form)
        own = list(firsts.values())
        place = {kind: i for i, kind in enumerate(firsts)}
        self.count, width = len(own), len(forms.sizes)
        self.edges: list[list[tuple[int, bool, int, Region]]] = [[] for _ in range(forms.count + 1)]
        """For each op, the regions that begin with it: where they stop, whether they change no bit, and their kind."""
        for form in forms.forms:
            region = form.region
            self.edges[region.start].append((region.stop, region.exact, place[form.kind], region))
        self.before, self.body = (Stack(rows, width) for rows in ([f.before for f in own], [f.body for f in own]))
        names = ("standing", "fetched", "batches", "again", "copied", "added")
        self.rows = {n: np.array([getattr(f, n) for f in own], dtype=np.int64).reshape(-1, width) for n in names}
        self.extent = np.array([f.region.extent for f in own], dtype=np.int64)
        self.cut = [f.region.rows for f in own]
        self.sliced = np.array([sliced(net.graph, f.region.parts) for f in own], dtype=np.int64)
        self.made = np.array([len(f.region.made) for f in own], dtype=np.int64)
        self.first, self.missing = Sums(f.region.before for f in own), Sums(f.missing for f in own)
        self.ops = np.zeros((self.count, 1 + max(net.alike, default=0)))
        self.more = np.zeros_like(self.ops)
        """How often each kind of op is in a region, and how much more arithmetic it has there than it would have whole."""
        self.within = np.zeros_like(self.ops)
        """How often it is cut within the lines of scattered matrices."""
        self.sample = np.zeros(self.ops.shape[1], dtype=np.int64)
        """For each kind of op, one of its ops."""
        self.sample[net.alike] = np.arange(len(net.alike))
        beside: dict[tuple[int, Axis], list[int]] = {}
        readied: dict[object, tuple[int, int, list[int]]] = {}
        for number, form in enumerate(own):
            for part in form.region.parts:
                kind, target = net.alike[part.op], net.graph.ops[part.op].target
                self.ops[number, kind] += 1
                self.more[number, kind] += in_rows(net.graph, part.op, part.axis) - 1
                self.within[number, kind] += is_within_lines(net.graph, part.op, part.axis)
                if part.axis.beside is not None:
                    beside.setdefault((int(self.sample[kind]), part.axis), []).append(number)
                for i in read_whole(target, part.axis) if target in PRODUCTS else ():
                    readied.setdefault((kind, i), (part.op, i, []))[2].append(number)
        self._beside, self._readied = list(beside.items()), list(readied.values())

    def beside(self, taken: Callable[[int, Axis], int]) -> np.ndarray:
        """What parts make for themselves, if they were whole: the most of each kind, where `taken` says it of an op."""
        found = np.zeros(self.count, dtype=np.int64)
        for (op, axis), owners in self._beside:
            found[owners] = np.maximum(found[owners], taken(op, axis))
        return found

    def readied(self, seconds: Callable[[int, int], float]) -> np.ndarray:
        """Seconds in which each round copies what it multiplies by whole: `seconds` of an op's operand at a position."""
        found = np.zeros(self.count)
        for op, position, owners in self._readied:
            if taken := seconds(op, position):
                np.add.at(found, owners, taken)
        return found

    def fewest(self, sizes: Sequence[int], enough: int) -> np.ndarray:
        """The fewest units of a part that give every matrix product `enough` rows."""
        found = [max((-(-enough // max(sizes[row], 1)) for row in cut), default=1) for cut in self.cut]
        return np.array(found, dtype=np.int64)
