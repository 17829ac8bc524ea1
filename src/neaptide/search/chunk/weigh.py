"""What ops and regions take at one size, in bytes and seconds.

In: forms and prices at some dims. Out: bytes and seconds of each op run whole, and of each region, by its chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neaptide.allocator import KEPT_AT_ALL, KEPT_PAGES, allocated
from neaptide.hardware import Machine
from neaptide.pricing import CACHED, PRODUCTS, Cost, turning, whole
from neaptide.search.chunk.exactness import ENOUGH_ROWS
from neaptide.search.chunk.forms import Form, Forms
from neaptide.search.chunk.net import Net
from neaptide.search.chunk.regions import Region
from neaptide.shapes import shapes_of
from neaptide.timing import cost, in_rows, read_whole

CHUNKS = np.array(sorted({1 << i for i in range(20)} | {3 << i for i in range(18)}, reverse=True), dtype=np.int64)

WORTH = 1.05
"""What fits whole runs in parts only where that looks faster by more than predictions are usually off."""


class Prices:
    """What each op costs at one size, run whole; ops that are alike are asked for once."""

    def __init__(self, net: Net, dims: Sequence[int], machine: Machine) -> None:
        self.machine = machine
        self.shapes = shapes_of(net.graph).at(dims)
        known: dict[int, Cost] = {}
        for op, kind in enumerate(net.alike):
            if kind not in known:
                known[kind] = cost(self.shapes, op, machine)
        costs = [known[kind] for kind in net.alike]
        self.whole = np.array([whole(c, machine) for c in costs])
        self.fixed = np.array([c.fixed for c in costs])
        self.work = np.array([c.work for c in costs])
        self.moved = np.array([c.moved for c in costs], dtype=np.int64)
        self.made = np.array([c.fresh for c in costs], dtype=np.int64)


class Scales:
    """Weighs everything at one size."""

    def __init__(self, forms: Forms, prices: Prices) -> None:
        self.forms, self.machine = forms, prices.machine
        graph = forms.net.graph
        self.shapes = prices.shapes
        self.bytes = np.array([allocated(self.shapes.sizes[s], graph.device) for s in forms.sizes], dtype=np.int64)
        self.entry = forms.entry @ self.bytes
        self.plain = np.maximum(forms.plain @ self.bytes, forms.preparing @ self.bytes)
        self.prices = prices
        self.seconds = prices.whole.copy()
        for op in range(forms.count):
            if forms.late:
                self.seconds[op] += sum(prices.whole[m] for m in forms.late_makers([op]))
        self.seconds[list(forms.late)] = 0.0

    def storage_bytes(self, storage: int) -> int:
        return allocated(self.shapes.sizes[self.forms.net.graph.storages[storage].size], self.forms.net.graph.device)

    def weigh(self) -> list[tuple[Region, Weighed]]:
        """Every region that is known; those of one kind are weighed once."""
        known: dict[int, Weighed] = {}
        for form in self.forms.forms:
            if form.kind not in known:
                known[form.kind] = self._weighed(form)
        return [(form.region, known[form.kind]) for form in self.forms.forms]

    def _weighed(self, form: Form) -> Weighed:
        region, prices, machine = form.region, self.prices, self.machine
        fetched, again = int(form.fetched @ self.bytes), int(form.again @ self.bytes)
        copied, added = int(form.copied @ self.bytes), int(form.added @ self.bytes)
        written, turned = machine.byte + machine.stream, self._turned(region)
        fixed = float(prices.fixed[form.ops].sum()) + turned
        fixed += fetched * machine.fetch + again * machine.stream + added * written
        moved = prices.moved[form.ops]
        more = [in_rows(self.forms.net.graph, part.op, part.axis) - 1 for part in region.parts]
        shared = float(prices.work[form.ops].sum() + prices.work[[part.op for part in region.parts]] @ more) - turned
        shared += max(int(moved.sum()) - fetched - again, 0) * machine.byte
        fresh = sum(size for size in (copied, added) if size > KEPT_PAGES)
        before = float(self.seconds[list(region.before)].sum() + prices.whole[list(form.missing)].sum())
        return Weighed(
            self.shapes.sizes[region.extent],
            max((-(-ENOUGH_ROWS // max(self.shapes.sizes[r], 1)) for r in region.rows), default=1),
            int((form.before @ self.bytes).max()),
            int(form.standing @ self.bytes),
            int((form.body @ self.bytes).max(initial=0)) + self._beside(region),
            before + fresh * machine.touch,
            fixed + len(region.made) * 2 * machine.call,
            shared + copied * written,
            moved,
            prices.made[form.ops],
            machine,
        )

    def _beside(self, region: Region) -> int:
        """What parts make for themselves, if they were whole."""
        return max((self.shapes.beside(part.op, part.axis) for part in region.parts if part.axis.beside is not None), default=0)

    def _turned(self, region: Region) -> float:
        """Seconds in which each round copies what it multiplies by whole, to have it dense."""
        graph, total = self.forms.net.graph, 0.0
        for part in region.parts:
            target = graph.ops[part.op].target
            if target in PRODUCTS:
                whole = (self.shapes.spec(self.forms.net.operands[part.op][i]) for i in read_whole(target, part.axis))
                total += sum(turning(spec, self.machine) for spec in whole if spec is not None)
        return total


@dataclass(frozen=True, eq=False)
class Weighed:
    """A region at one size, and all that are like it."""

    extent: int
    fewest: int
    """The fewest units of a part that give every matrix product enough rows."""
    before: int
    standing: int
    body: int
    once: float
    fixed: float
    shared: float
    moved: np.ndarray
    made: np.ndarray
    machine: Machine

    @cached_property
    def options(self) -> Options:
        """The chunks that it can run in, the largest first, with the bytes at the highest step and the seconds of each."""
        chunks = CHUNKS[self.extent > CHUNKS]
        rounds = -(-self.extent // chunks)
        long_enough = self.extent // rounds >= self.fewest
        chunks, rounds = chunks[long_enough], rounds[long_enough]
        rows = -(-self.extent // rounds)
        share = (rows / max(self.extent, 1))[:, None]
        far = (self.moved * share - CACHED).clip(0).sum(axis=1) * (self.machine.stream - self.machine.byte)
        taken = -(-self.body * rows // max(self.extent, 1))
        large = np.where(self.made * share > KEPT_PAGES, self.made, 0).sum(axis=1)
        touched = np.maximum(np.where(taken > KEPT_AT_ALL, rounds * taken, 0), large) * self.machine.touch
        peaks = np.maximum(self.before, self.standing + taken)
        return Options(chunks, peaks, self.once + WORTH * (rounds * (self.fixed + far) + self.shared + touched))


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """Chunks, and what a region takes with each."""

    chunks: np.ndarray
    peaks: np.ndarray
    seconds: np.ndarray

    def fastest(self, limit: int) -> tuple[float, int, int] | None:
        """Seconds, chunk and peak of the fastest that fits; of equals the largest."""
        fits = self.peaks <= limit
        if not fits.any():
            return None
        best = int(np.where(fits, self.seconds, np.inf).argmin())
        return float(self.seconds[best]), int(self.chunks[best]), int(self.peaks[best])

    @property
    def lowest(self) -> int | None:
        """The peak with the smallest chunk."""
        return int(self.peaks[-1]) if len(self.peaks) else None
