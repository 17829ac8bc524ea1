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
from neaptide.eager.record import AGAIN, BACKWARD, FORWARD, GRADIENT, OUTPUT, Record
from neaptide.generator import STATE_BYTES

Held = frozenset[int] | None
"""Which of the model's outputs its caller holds until the end; None for all."""
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
    the forward is repeated and `back` afterwards. It leaves `kept` behind in any case, `saved` more where all is kept, and
    `given` more where it is checkpointed: arguments that nobody else would hold until the backward.
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
    given: int = 0
    small: int = 0
    """What would stay if the saved were sent away."""
    parts: tuple[PartWay, ...] = ()

    @property
    def is_block(self) -> bool:
        return bool(self.name)


@dataclass(frozen=True)
class Figures:
    """All calls of a step in order; `margin` is set aside for what is not foretold."""

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
        yield there + max(call.entry + call.forward, call.back_entry + call.given + max(call.again, call.back))
        there += call.kept + call.given


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
    def _read(self) -> dict[int, set[tuple[int, int]]]:
        """Where autograd's own ops read a storage: it is saved there."""
        found: dict[int, set[tuple[int, int]]] = {}
        for storage, place, part in self.record.reads.tolist():
            found.setdefault(storage, set()).add((place, part))
        return found

    @cached_property
    def _given(self) -> tuple[np.ndarray, dict[int, list[int]]]:
        """The ends of lives if blocks held no arguments for being checkpointed; and of each call the storages that live on
        for that alone. A caller may hold them a little longer: until the next block begins."""
        lives, calls, turn = self._lives, self.record.calls, self.record.turn
        dies = lives[:, 1].copy()
        users: dict[int, list[tuple[int, int]]] = {}
        for number, storages in enumerate(self.record.given):
            for position, storage in enumerate(storages):
                if storage >= 0 and lives[storage, 3] == FORWARD and dies[storage] > turn:
                    users.setdefault(storage, []).append((number, position))
        found: dict[int, list[int]] = {}
        own = {int(lives[n, 2]) for n in np.flatnonzero((lives[:, 6] == 2) & self._stays)}
        for storage, using in users.items():
            (number, position), *others = using
            speaks = calls[number][2]
            said = self.record.given[speaks // 2]
            like = said[position] if position < len(said) else -1
            maker = int(lives[storage, 2])
            saved_here = like < 0 or any(place == speaks for place, _ in self._read.get(like, ()))
            elsewhere = any(place != 2 * number + 1 for place, _ in self._read.get(storage, ()))
            by_maker = bool(maker % 2) and calls[maker // 2][2] in own
            if others or saved_here or elsewhere or by_maker or lives[storage, 5] >= OUTPUT:
                continue
            last = [
                steps for place in (2 * number + 1, 2 * number + 2) if (steps := self._steps.get((place, FORWARD))) is not None
            ]
            dies[storage] = min(int(last[-1][-1]) + 1, turn) if last else turn
            found.setdefault(2 * number + 1, []).append(storage)
        return dies, found

    @cached_property
    def _stays(self) -> np.ndarray:
        """Which storages of repeated forwards are there when these end."""
        ends = {place: int(steps[-1]) + 1 for (place, phase), steps in self._steps.items() if phase == AGAIN}
        return np.array([life[3] == AGAIN and life[1] > ends.get(int(life[2]), 0) for life in self._lives], dtype=bool)

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

    def figures(self, taken: np.ndarray, accumulates: bool = False, margin: int = 0, held: Held = None) -> Figures:
        """The figures for storages of these bytes. Where gradients `accumulate`, new ones are added to those there; outputs of
        the model that its caller has `held` are there until the end."""
        born, dies = self._lives[:, 0], self._given[0]
        if accumulates:
            dies = np.where(self._lives[:, 5] == GRADIENT, np.minimum(dies, born + 2), dies)
        outputs = self._lives[:, 5] >= OUTPUT
        if held is not None:
            outputs &= np.isin(self._lives[:, 5] - OUTPUT, list(held))
        dies = np.where(outputs, len(self.record.marks), dies)
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
        given = int(self._taken[self._given[1].get(place, [])].sum())
        if name and speaks != place:
            said = spoken[speaks]
            return replace(said, name=name, entry=entry - earlier, back_entry=back_entry - earlier, kept=kept, given=given)
        told = CallFigures(
            name,
            alike,
            entry - earlier,
            back_entry - earlier,
            self._above(forward, entry),
            self._above(back, back_entry),
            kept,
            given=given,
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
        stays = self._stays[made]
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
            parts=tuple(self._part_ways(place, saved, again, back, back_entry, parts)) if len(back) else (),
        )

    def _part_ways(
        self, place: int, saved: np.ndarray, again: np.ndarray, back: np.ndarray, back_entry: int, parts: Sequence[str]
    ) -> Iterable[PartWay]:
        marks, lives = self.record.marks, self._lives
        bytes_of: dict[int, int] = {}
        results_of: dict[int, int] = {}  # those that nobody but the part itself saves; its caller may hold them a while
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        peaks: dict[int, int] = {}
        for number in range(len(parts)):
            mine = saved[(lives[saved, 4] == number) & (lives[saved, 6] == 0)]
            results = saved[(lives[saved, 4] == number) & (lives[saved, 6] == 3)]
            results = [one for one in results if all(at == (place, number) for at in self._read.get(int(one), ()))]
            inside = np.flatnonzero(marks[again, 2] == number)
            runs = again[inside]
            backs = np.flatnonzero(marks[back, 2] == number)
            if len(mine) and len(runs) and len(backs):
                bytes_of[number], starts[number] = int(self._taken[mine].sum()), int(backs[0])
                results_of[number] = int(self._taken[results].sum())
                peaks[number] = self._above(runs, int(self._before[runs[0]])) + 2 * STATE_BYTES  # of random numbers
                ends[number] = int(inside[-1]) + 1
        profile, forward = self._profile[back], self._profile[again] - int(self._before[again[0]])
        for chosen in _subsets(sorted(bytes_of)):
            levels, rising = profile.copy(), forward.copy()
            high = 0
            for part in chosen:
                levels[: starts[part]] -= bytes_of[part] + results_of[part]
                rising[ends[part] :] -= bytes_of[part]
            for part in chosen:
                absent = sum(bytes_of[other] + results_of[other] for other in chosen if starts[other] >= starts[part])
                high = max(high, int(self._before[back[starts[part]]]) - absent + peaks[part])
            high = max(high, int(levels.max())) - back_entry
            saving = sum(bytes_of[n] + results_of[n] for n in chosen)
            yield PartWay(tuple(parts[n] for n in chosen), saving, max(int(rising.max()), 0), max(high, 0))


def _subsets(parts: Sequence[int]) -> Iterable[tuple[int, ...]]:
    if len(parts) <= FEW:
        return chain.from_iterable(combinations(parts, n) for n in range(1, len(parts) + 1))
    return dict.fromkeys([*((part,) for part in parts), *(tuple(parts[n:]) for n in range(len(parts)))])


def figures_of(record: Record, accumulates: bool = False, held: Held = None) -> Figures:
    """What a record says by itself."""
    return Reading(record).figures(record.taken(), accumulates, held=held)
