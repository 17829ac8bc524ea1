"""What steps really take, beside what was planned: the first step in each new situation is watched.

In: the first call of a step, then each graph that has run. Out: an `Observation`, and the bytes by which the plan was too
low. On an accelerator the allocator counts. On the CPU it is the kernel's high-water mark, where freed tensors go back to it
at once; elsewhere it would tell of what the C library keeps, and nothing is watched. Marks are only read, never reset: they
are the user's. So a step is seen that takes more than any before it, which is the one that matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from neaptide.measurement import high_water, is_true, mapped_bytes, resident_bytes

NOISE, SHARE = 16 << 20, 0.02
"""Bytes, and the share of what was planned, up to which a peak is as planned: code and tables of ours are in it too."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a step took beyond what was there before it, planned and measured.

    >>> Observation((8, 128), 400 << 20, 401 << 20).excess, Observation((8, 128), 400 << 20, 450 << 20).excess >> 20
    (0, 50)
    """

    dims: tuple[int, ...]
    planned: int
    measured: int

    @property
    def excess(self) -> int:
        """Bytes beyond the plan, where that is more than noise."""
        beyond = self.measured - self.planned
        return beyond if beyond > max(NOISE, SHARE * self.planned) else 0


class Watch:
    """One step under way, in a situation that was not met before."""

    def __init__(self, device: str, dims: tuple[int, ...]) -> None:
        self._on_cpu, self._dims = device == "cpu", dims
        self._highest = self._mark()
        self._before = resident_bytes() if self._on_cpu else int(torch.accelerator.memory_allocated())
        self._code = self._mapped()
        self._taken = 0

    def _mark(self) -> int:
        return high_water() if self._on_cpu else int(torch.accelerator.max_memory_allocated())

    def look(self) -> None:
        """A graph has run: so much was taken up to now, if it was more than ever."""
        mark = self._mark()
        if mark > self._highest:
            self._highest, self._taken = mark, mark - self._before - max(0, self._mapped() - self._code)

    def _mapped(self) -> int:
        """Bytes of files in memory: kernels that ran for the first time are loaded with them, and stay."""
        return mapped_bytes() if self._on_cpu else 0

    def ends(self, planned: int) -> Observation | None:
        """The step is over; None where nothing was seen."""
        return Observation(self._dims, planned, self._taken) if self._taken else None


def watch(device: str, dims: tuple[int, ...]) -> Watch | None:
    """Begin to watch a step; None where what is seen would not be the truth."""
    return Watch(device, dims) if _can_be_watched(device) else None


@cache
def _can_be_watched(device: str) -> bool:
    return is_true() if device == "cpu" else torch.accelerator.is_available()
