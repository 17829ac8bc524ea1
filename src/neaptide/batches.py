"""Memory and time of a step against the batch size, in closed form; and what follows for the best batch inside a budget.

In: a few batch sizes with their peaks and seconds, dry-run or measured. Out: `Peaks`, the largest of some lines; `Seconds`, a
line with a floor below which a device only waits for its next op; and `Scaling`, both together, which says the largest batch,
the best throughput, and whether another method pays. The model is PAPAYA's (arXiv 2303.14633); its line for the peak became the
largest of several, since what holds the peak changes with the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from neaptide.errors import InputError
from neaptide.timeline import Timeline
from neaptide.twins import KNOWN_BYTES


@dataclass(frozen=True, slots=True)
class Line:
    """`fixed + each * batch`.

    >>> Line(10.0, 2.0)(3)
    16.0
    """

    fixed: float
    each: float

    def __call__(self, batch: float) -> float:
        return self.fixed + self.each * batch


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peak of a step in bytes: the highest of some lines, but no more than a ceiling, where a method has one of its own.

    >>> peaks = Peaks((Line(100, 1), Line(0, 11)))
    >>> peaks(5), peaks(20), peaks.largest(230)
    (105, 220, 20)
    """

    lines: tuple[Line, ...]
    ceiling: float = math.inf

    def __call__(self, batch: float) -> int:
        return math.ceil(min(max(line(batch) for line in self.lines), self.ceiling))

    def largest(self, limit: float) -> int:
        """The largest batch whose peak is within a limit; 0 where not even one sample is."""
        if self.ceiling <= limit:
            return 1 << 31
        rooms = [(limit - line.fixed) / line.each if line.each > 0 else math.inf for line in self.lines]
        if any(line.each <= 0 and line.fixed > limit for line in self.lines):
            return 0
        room = min(rooms)
        return max(0, math.floor(room + 1e-9)) if room < math.inf else 1 << 31


@dataclass(frozen=True, slots=True)
class Seconds:
    """The time of a step: a line, and a floor that it does not go below.

    >>> seconds = Seconds(0.5, Line(0.1, 0.1))
    >>> seconds(1), seconds(9)
    (0.5, 1.0)
    """

    floor: float
    line: Line

    def __call__(self, batch: float) -> float:
        return max(self.floor, self.line(batch))

    @property
    def bend(self) -> float:
        """The batch from which on more samples take more time."""
        return max(0.0, (self.floor - self.line.fixed) / self.line.each) if self.line.each > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Best:
    """A batch size, and the samples per second with it."""

    batch: int
    throughput: float


@dataclass(frozen=True, slots=True)
class Scaling:
    """A way to run a step: what it takes at every batch size."""

    peaks: Peaks
    seconds: Seconds

    def throughput(self, batch: int) -> float:
        """Samples per second."""
        return batch / self.seconds(batch) if batch else 0.0

    def best(self, limit: float) -> Best:
        """The batch inside a limit with the most samples per second: the largest, or one at which the floor ends."""
        largest = self.peaks.largest(limit)
        bend = self.seconds.bend
        inside = {largest, *(min(largest, max(1, round_(bend))) for round_ in (math.floor, math.ceil) if bend < math.inf)}
        batch = max(inside, key=lambda b: (self.throughput(b), -b))
        return Best(batch, self.throughput(batch))

    def pays(self, plain: Scaling, limit: float) -> bool:
        """Whether the best throughput inside a limit is higher than another way's."""
        return self.best(limit).throughput > plain.best(limit).throughput

    def pays_by_rule(self, plain: Scaling, limit: float) -> bool:
        """The same by PAPAYA's rule of thumb, which holds where both peaks and both times are lines and batches may be broken
        numbers: bytes that a sample saves for each second that it takes longer exceed free bytes for each fixed second."""
        (high, low), (slow, fast) = (plain.peaks.lines[-1], self.peaks.lines[-1]), (self.seconds.line, plain.seconds.line)
        longer, fixed = slow.each - fast.each, fast.fixed
        if longer <= 0:
            return True
        if fixed <= 0:
            return False
        return (high.each - low.each) / longer > (limit - high.fixed) / fixed


def peaks_of(first: tuple[int, Timeline], second: tuple[int, Timeline]) -> Peaks | None:
    """The peak at every batch size, from dry runs at two: each step's level is a line. None where the runs' steps differ.

    >>> from neaptide.timeline import Life
    >>> def run(b): return b, Timeline(("a", "b"), (Life("w", "parameter", 100, 0, 2), Life("x", "input", 8 * b, 1, 2)))
    >>> peaks_of(run(2), run(3))(10)
    180
    """
    (few, one), (more, other) = first, second
    if few == more:
        raise InputError(f"two batch sizes are needed, and both are {few}")
    if one.steps != other.steps:
        return None
    low, high = np.array(one.bytes, dtype=float), np.array(other.bytes, dtype=float)
    each = np.maximum((high - low) / (more - few), 0.0)
    return Peaks(_highest(Line(*pair) for pair in zip((low - each * few).tolist(), each.tolist(), strict=True)))


def _highest(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Those lines that are the highest at some batch, from the flattest to the steepest."""
    kept: list[Line] = []
    for line in sorted(set(lines), key=lambda line: (line.each, line.fixed)):
        while kept and (kept[-1].each == line.each or kept[-1].fixed <= line.fixed):
            kept.pop()
        while len(kept) > 1 and _crossing(kept[-2], line) <= _crossing(kept[-2], kept[-1]):
            kept.pop()
        kept.append(line)
    return tuple(kept)


def _crossing(flat: Line, steep: Line) -> float:
    return (flat.fixed - steep.fixed) / (steep.each - flat.each)


def fit_peaks(batches: Sequence[int], taken: Sequence[float]) -> Peaks:
    """The peak at every batch size, through measured ones: a line, a level that becomes one, or one that ends at a ceiling."""
    floor, line = _bent(batches, taken)
    made = Peaks((Line(floor, 0.0), line) if floor > line(min(batches)) else (line,))
    known = sorted(zip(batches, taken, strict=True))
    if len(known) < 4:
        return made
    below = known[:-1]
    rising = Peaks((_line(*(np.array(column, dtype=float) for column in zip(*below, strict=True))),), max(taken))
    return min(made, rising, key=lambda peaks: sum(abs(peaks(b) / t - 1) for b, t in known))


def fit_seconds(batches: Sequence[int], taken: Sequence[float]) -> Seconds:
    """The time at every batch size, through measured ones.

    >>> fit_seconds([1, 2, 4, 8], [0.5, 0.5, 0.5, 0.9])(16) > 0.9
    True
    """
    return Seconds(*_bent(batches, taken))


def _bent(batches: Sequence[int], taken: Sequence[float]) -> tuple[float, Line]:
    """A floor and a line, by the least relative error: all points on the line, or some of the smallest on the floor."""
    if len(batches) != len(taken) or len(set(batches)) < 2:
        raise InputError(f"at least two batch sizes are needed, each with what it took: got {list(batches)} and {list(taken)}")
    x, y = (np.array(column, dtype=float) for column in zip(*sorted(zip(batches, taken, strict=True)), strict=True))
    best: tuple[float, float, Line] | None = None
    for below in range(len(set(batches)) - 1):
        start = int(np.searchsorted(x, np.unique(x)[below]))
        line = _line(x[start:], y[start:])
        floor = float(np.average(y[:start], weights=1 / y[:start])) if start else float(y.min())
        floor = min(floor, line(float(x[start]))) if start else min(floor, line(float(x[0])))
        wrong = float(np.abs(np.maximum(floor, line.fixed + line.each * x) / y - 1).mean()) + 0.002 * below
        if best is None or wrong < best[0]:
            best = (wrong, floor, line)
    assert best is not None
    return best[1:]


def _line(x: np.ndarray, y: np.ndarray) -> Line:
    """The line with the least relative error that does not fall."""
    weights = 1 / np.maximum(y, 1e-12)
    each, fixed = np.polyfit(x, y, 1, w=weights)
    return Line(float(fixed), float(each)) if each > 0 else Line(float(np.average(y, weights=weights)), 0.0)


def spread(batches: Sequence[int], count: int) -> list[int]:
    """So many of some batch sizes, from the smallest to the largest, evenly by their ratio.

    >>> spread([1, 2, 3, 4, 8, 16, 32], 3)
    [1, 8, 32]
    """
    known = sorted(set(batches))
    if len(known) <= count:
        return known
    marks = np.geomspace(known[0], known[-1], count)
    found = {min(known, key=lambda b: abs(math.log(b / mark))) for mark in marks}
    gaps = sorted(pairwise(sorted(found)), key=lambda gap: gap[0] / gap[1])
    for low, high in gaps:
        inside = [b for b in known if low < b < high]
        if len(found) < count and inside:
            found.add(inside[len(inside) // 2])
    return sorted(found)


def with_batch(inputs: Any, batch: int, size: int) -> Any:
    """Inputs as they would be with another batch size: small ones of integers repeat what is there, others have no values.

    >>> with_batch({"ids": torch.arange(2), "x": torch.ones(2, 3)}, 2, 5)["x"].shape
    torch.Size([5, 3])
    """

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != batch:
            return tensor
        if not tensor.is_floating_point() and tensor.nbytes // batch * size <= KNOWN_BYTES and tensor.device.type != "meta":
            return tensor[torch.arange(size, device=tensor.device) % batch]
        made = torch.empty((size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
        return made.requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, resized, inputs)
