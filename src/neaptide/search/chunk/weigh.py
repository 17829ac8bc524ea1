"""What ops and regions take at one size, in bytes and seconds.

In: forms and prices at some dims. Out: bytes and seconds of each op run whole, and of each kind of region, by its chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neaptide.allocator import KEPT_AT_ALL, KEPT_PAGES, allocated
from neaptide.hardware import Machine
from neaptide.pricing import CACHED, NOTHING, Cost, fetching, from_afar, readying, scattered_bytes, whole
from neaptide.search.chunk.exactness import ENOUGH_ROWS
from neaptide.search.chunk.forms import Forms
from neaptide.search.chunk.kinds import Kinds
from neaptide.search.chunk.net import Net
from neaptide.shapes import shapes_of
from neaptide.timing import cost
from neaptide.workspaces import Spec

CHUNKS = np.array(sorted({1 << i for i in range(20)} | {3 << i for i in range(18)}, reverse=True), dtype=np.int64)

NEVER = np.iinfo(np.int64).max
"""What chunks take that a region cannot run in."""
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
        self.longer = np.array([c.longer for c in costs])
        self.scattered = np.array([c.scattered for c in costs], dtype=np.int64)


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

    def weigh(self, kinds: Kinds) -> Options:
        """Every kind of region, in every chunk."""
        prices, machine = self.prices, self.machine
        rows = {name: held @ self.bytes for name, held in kinds.rows.items()}
        fetched, batches, again = (rows[name] for name in ("fetched", "batches", "again"))
        copied, added = rows["copied"], rows["added"]
        fixed, work, moved, made = (each[kinds.sample] for each in (prices.fixed, prices.work, prices.moved, prices.made))
        scattered, longer = prices.scattered[kinds.sample], prices.longer[kinds.sample]
        written, readied = machine.byte + machine.stream, kinds.readied(self._readied)
        read = again * machine.byte + _beyond(again) * (machine.stream - machine.byte)
        ready = np.array([fetching(each, machine) for each in fetched.tolist()])
        every = kinds.ops @ fixed + readied + ready + batches * machine.heads + read + added * written
        every += kinds.made * 2 * machine.call + kinds.sliced * machine.view + kinds.readied(self._from_afar)
        shared = kinds.ops @ work + kinds.more @ work - readied + copied * written
        shared += kinds.within @ scattered * machine.far
        shared += (kinds.ops @ moved - fetched - batches - again).clip(0) * machine.byte
        fresh = sum(np.where(size > KEPT_PAGES, size, 0) for size in (copied, added))
        once = kinds.first.of(self.seconds) + kinds.missing.of(prices.whole) + fresh * machine.touch
        before, body = kinds.before.highest(self.bytes), kinds.body.highest(self.bytes) + kinds.beside(self.shapes.beside)
        cut = _Cut(np.array(self.shapes.sizes, dtype=np.int64)[kinds.extent], kinds.fewest(self.shapes.sizes, ENOUGH_ROWS))
        far = cut.sums(kinds.ops, lambda share: _beyond(moved[:, None] * share) * longer[:, None])
        far += cut.sums(kinds.ops - kinds.within, lambda share: _beyond(scattered[:, None] * share)) * machine.far
        large = cut.sums(kinds.ops, lambda share: np.where(made[:, None] * share > KEPT_PAGES, made[:, None], 0))
        taken = -(-body[:, None] * cut.rows // cut.extent[:, None].clip(1))
        touched = np.maximum(np.where(taken > KEPT_AT_ALL, cut.rounds * taken, 0), large) * machine.touch
        seconds = once[:, None] + WORTH * (cut.rounds * (every[:, None] + far) + shared[:, None] + touched)
        peaks = np.maximum(before[:, None], rows["standing"][:, None] + taken)
        return Options(np.where(cut.allowed, peaks, NEVER), seconds)

    def _readied(self, op: int, position: int) -> float:
        return readying(self._target(op), position, self._given(op), self.machine)

    def _from_afar(self, op: int, position: int) -> float:
        return from_afar(scattered_bytes(self._target(op), self._given(op)[position]), self.machine)

    def _target(self, op: int) -> Any:
        return self.forms.net.graph.ops[op].target

    def _given(self, op: int) -> list[Spec]:
        return [self.shapes.spec(v) or NOTHING for v in self.forms.net.graph.operands(op)]


def _beyond(moved: np.ndarray) -> np.ndarray:
    """How many of the bytes that calls move are not in the cache."""
    return (moved - CACHED).clip(0)


class _Cut:
    """Extents in every chunk, the largest first: how many rounds, and rows in each at most."""

    def __init__(self, extent: np.ndarray, fewest: np.ndarray) -> None:
        self.extent = extent
        self.rounds = -(-extent[:, None] // CHUNKS)
        self.allowed = (extent[:, None] > CHUNKS) & (extent[:, None] // self.rounds.clip(1) >= fewest[:, None])
        self.rows = -(-extent[:, None] // self.rounds.clip(1))

    def sums(self, counts: np.ndarray, each: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """For each row and chunk, the sum over kinds of ops of what `each` takes with a share of the whole."""
        found = np.zeros(self.rows.shape)
        for extent in np.unique(self.extent):
            same = self.extent == extent
            share = self.rows[int(same.argmax())] / max(int(extent), 1)
            found[same] = counts[same] @ each(share)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """For each kind of region and each chunk, the bytes at the highest step and the seconds."""

    peaks: np.ndarray
    seconds: np.ndarray

    def fastest(self, limit: int) -> list[tuple[float, int, int] | None]:
        """Seconds, chunk and peak of each kind's fastest chunk that fits; of equals the largest."""
        seconds = np.where(self.peaks <= limit, self.seconds, np.inf)
        best = seconds.argmin(axis=1)
        every = np.arange(len(best))
        found = zip(seconds[every, best].tolist(), CHUNKS[best].tolist(), self.peaks[every, best].tolist(), strict=True)
        return [None if told[0] == np.inf else told for told in found]

    def lowest(self) -> list[int]:
        """The lowest peak of each kind."""
        return self.peaks.min(axis=1).tolist()
