"""What each call of a block takes and leaves behind, kept whole or made again: bytes out of the lives of one sheltered step.

In: a `Record`, and bytes for its storages (its own, or those predicted for other sizes). Out: `Figures`. A level is what is
alive beyond what was there before the step. In a forward a call finds there what earlier calls left behind; in its backward
that, and what later ones made. Only the first depends on how those calls run, so that levels are kept as differences to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, combinations
from typing import Any

import numpy as np

from neaptide import away
from neaptide.eager.observe import AGAIN, BACKWARD, FORWARD, GRADIENT, OUTPUT, Record
from neaptide.generator import STATE_BYTES

FEW = 3
"""So many parts are weighed in every combination; of more, each alone, all from the last on, and all."""


@dataclass(frozen=True, slots=True)
class PartWay:
    """Some parts of a block are made again: bytes that need not be kept, how high forward and backward then reach."""

    parts: tuple[str, ...]
    saved: int
    plain: int
    back: int


@dataclass(frozen=True, slots=True)
class CallFigures:
    """One call of a block (or what lies between two, whose name is empty). Bytes.

    `entry` and `back_entry` are there when its forward and backward begin, beside what earlier calls leave behind. Beyond
    that its forward reaches `forward` where it is checkpointed and `plain` where all is kept; its backward `again` while
    the forward is repeated and `back` afterwards. It leaves `kept` behind in any case, and `saved` more where all is kept.
    """

    name: str
    alike: int
    entry: int
    back_entry: int
    forward: int
    back: int
    kept: int
    plain: int = 0
    again: int = 0
    saved: int = 0
    products: int = 0
    """Of results that selective checkpointing keeps, and of those the ones that a plain forward would not."""
    unsaved: int = 0
    small: int = 0
    """What would stay if the saved were sent away."""
    parts: tuple[PartWay, ...] = ()

    @property
    def is_block(self) -> bool:
        return bool(self.name)


@dataclass(frozen=True)
class Figures:
    """All calls of a step in order; `margin` is what a prediction may be wrong by."""

    calls: tuple[CallFigures, ...]
    margin: int = 0

    @property
    def sheltered(self) -> int:
        """How high a step reaches in which every block is checkpointed."""
        return self.margin + max(_levels(self.calls), default=0)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Figures:
        calls = []
        for told in data["calls"]:
            parts = tuple(PartWay(**{**part, "parts": tuple(part["parts"])}) for part in told["parts"])
            calls.append(CallFigures(**{**told, "parts": parts}))
        return Figures(tuple(calls), int(data["margin"]))


def _levels(calls: Iterable[CallFigures]) -> Iterable[int]:
    there = 0
    for call in calls:
        yield there + max(call.entry + call.forward, call.back_entry + max(call.again, call.back))
        there += call.kept


class Reading:
    """A record read once: which ops and storages make up which figure. For bytes of any size it then gives the figures."""

    def __init__(self, record: Record) -> None:
        self.record = record
        marks, self._lives = record.marks, record.lives
        self._steps: dict[tuple[int, int], np.ndarray] = {}
        keys = marks[:, 0] * 3 + marks[:, 1]
        order = np.argsort(keys, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            self._steps[int(marks[group[0], 0]), int(marks[group[0], 1])] = group

    @cached_property
    def _own(self) -> np.ndarray:
        """Which storages were made by the op they are born at: sums that autograd makes in place are born one later."""
        at = self.record.marks[np.minimum(self._lives[:, 0], len(self.record.marks) - 1)]
        return (at[:, 0] == self._lives[:, 2]) & (at[:, 1] == self._lives[:, 3])

    @cached_property
    def _made(self) -> dict[tuple[int, int], np.ndarray]:
        """The storages that were made at a place, in a phase."""
        keys = self._lives[:, 2] * 3 + self._lives[:, 3]
        order = np.argsort(keys, kind="stable")
        found = {}
        if len(order):
            for group in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
                found[int(self._lives[group[0], 2]), int(self._lives[group[0], 3])] = group
        return found

    def figures(self, taken: np.ndarray, accumulates: bool = False, margin: int = 0, holds: bool = True) -> Figures:
        """The figures for storages of these bytes. Where gradients `accumulate`, new ones are added to those there; where the
        caller `holds` the model's outputs, they are there until the end."""
        born, dies = self._lives[:, 0], self._lives[:, 1]
        if accumulates:
            dies = np.where(self._lives[:, 5] == GRADIENT, np.minimum(dies, born + 2), dies)
        if holds:
            dies = np.where(self._lives[:, 5] == OUTPUT, len(self.record.marks), dies)
        self._dies = dies
        size = len(self.record.marks) + 2
        there = dies > born
        new = np.bincount(born, taken * there, size)
        self._profile = np.cumsum(new - np.bincount(np.minimum(dies, size - 1), taken * there, size)).astype(np.int64)
        self._before = self._profile - np.bincount(born, taken * (there & self._own), size).astype(np.int64)
        self._taken = taken
        calls, earlier = [], 0
        spoken: dict[int, CallFigures] = {}
        last = 2 * len(self.record.calls)
        for place in range(last + 1):
            call = self._call(place, earlier, spoken)
            if call is not None:
                calls.append(call)
                earlier += call.kept
        return Figures(tuple(calls), margin)

    def _call(self, place: int, earlier: int, spoken: dict[int, CallFigures]) -> CallFigures | None:
        none = np.array([], dtype=np.int64)
        forward = self._steps.get((place, FORWARD), none)
        again = self._steps.get((place, AGAIN), none)
        back = self._steps.get((place, BACKWARD), none)
        name, alike, speaks, parts = self.record.calls[place // 2] if place % 2 else ("", -1, place, ())
        if not len(forward) + len(back) and not name:
            return None
        entry = int(self._before[forward[0]]) if len(forward) else earlier
        starts = [steps[0] for steps in (again, back) if len(steps)]
        back_entry = int(self._before[min(starts)]) if starts else earlier
        made = self._made.get((place, FORWARD), none)
        kept = int(self._taken[made[self._dies[made] > self.record.turn]].sum())
        if name and speaks != place:
            said = spoken[speaks]
            return replace(said, name=name, entry=entry - earlier, back_entry=back_entry - earlier, kept=kept)
        told = CallFigures(
            name,
            alike,
            entry - earlier,
            back_entry - earlier,
            self._above(forward, entry),
            self._above(back, back_entry),
            kept,
        )
        if name and len(again):
            told = self._repeated(told, place, again, back, back_entry, parts)
        spoken[place] = told
        return told

    def _above(self, steps: np.ndarray, level: int) -> int:
        return max(int(self._profile[steps].max()) - level, 0) if len(steps) else 0

    def _repeated(
        self, told: CallFigures, place: int, again: np.ndarray, back: np.ndarray, back_entry: int, parts: Sequence[str]
    ) -> CallFigures:
        """With what the repeated forward of a call shows."""
        lives, turn = self._lives, self.record.turn
        first = self._made.get((place, FORWARD), np.array([], dtype=np.int64))
        result_stays = bool(((lives[first, 6] == 1) & (self._dies[first] > turn)).any())
        made = self._made.get((place, AGAIN), np.array([], dtype=np.int64))
        end = int(again[-1]) + 1
        stays = lives[made, 1] > end
        if result_stays:
            stays &= lives[made, 6] != 2
        saved = made[stays]
        products = made[lives[made, 7] > 0]
        sizes = self._taken
        return replace(
            told,
            plain=self._above(again, int(self._before[again[0]])),
            again=self._above(again, back_entry),
            saved=int(sizes[saved].sum()),
            products=int(sizes[products].sum()),
            unsaved=int(sizes[products].sum() - sizes[np.intersect1d(products, saved)].sum()),
            small=int(sizes[saved][sizes[saved] < away.SMALL].sum()),
            parts=tuple(self._part_ways(saved, again, back, back_entry, parts)) if len(back) else (),
        )

    def _part_ways(
        self, saved: np.ndarray, again: np.ndarray, back: np.ndarray, back_entry: int, parts: Sequence[str]
    ) -> Iterable[PartWay]:
        marks, lives = self.record.marks, self._lives
        bytes_of: dict[int, int] = {}
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        peaks: dict[int, int] = {}
        for number in range(len(parts)):
            mine = saved[(lives[saved, 4] == number) & (lives[saved, 6] == 0)]
            inside = np.flatnonzero(marks[again, 2] == number)
            runs = again[inside]
            backs = np.flatnonzero(marks[back, 2] == number)
            if len(mine) and len(runs) and len(backs):
                bytes_of[number], starts[number] = int(self._taken[mine].sum()), int(backs[0])
                peaks[number] = self._above(runs, int(self._before[runs[0]])) + 2 * STATE_BYTES  # of random numbers
                ends[number] = int(inside[-1]) + 1
        profile, forward = self._profile[back], self._profile[again] - int(self._before[again[0]])
        for chosen in _subsets(sorted(bytes_of)):
            levels, rising = profile.copy(), forward.copy()
            high = 0
            for part in chosen:
                levels[: starts[part]] -= bytes_of[part]
                rising[ends[part] :] -= bytes_of[part]
            for part in chosen:
                absent = sum(bytes_of[other] for other in chosen if starts[other] >= starts[part])
                high = max(high, int(self._before[back[starts[part]]]) - absent + peaks[part])
            high = max(high, int(levels.max())) - back_entry
            saving = sum(bytes_of[n] for n in chosen)
            yield PartWay(tuple(parts[n] for n in chosen), saving, max(int(rising.max()), 0), max(high, 0))


def _subsets(parts: Sequence[int]) -> Iterable[tuple[int, ...]]:
    if len(parts) <= FEW:
        return chain.from_iterable(combinations(parts, n) for n in range(1, len(parts) + 1))
    return dict.fromkeys([*((part,) for part in parts), *(tuple(parts[n:]) for n in range(len(parts)))])


def figures_of(record: Record, accumulates: bool = False, holds: bool = True) -> Figures:
    """What a record says by itself."""
    return Reading(record).figures(record.taken(), accumulates, holds=holds)
