"""The fastest choice of what to keep inside a target, and the choice with the lowest peak.

In: a joint graph at a size, and starting points. Out: choices, each replayed. Prices on the steps that are above the target
rise until the cheapest choice is below it, the replay judges, and what turns out not to be needed is undone. Identical layers
are all above the target together, and come down together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np

from neaptide.search.recompute.cut import Cutter
from neaptide.search.recompute.replay import Choice, Storages
from neaptide.search.recompute.scene import Played, Scene

TRIES = 14
UNDONE = 24
"""How many choices are looked at while prices rise, and while something is undone."""
BEST = 2
"""How many of the fastest are tried to undo something of."""
LOWER = 0.97
"""How far below the lowest so far the next target is."""
RUNGS = 40
"""How many choices are kept at most."""


class Chooser:
    """The search at one size. All that was ever looked at is remembered by the scene."""

    def __init__(self, scene: Scene, cutter: Cutter, seeds: Iterable[Storages], known: Iterable[Choice] = ()) -> None:
        self.scene, self.judge, self.cutter = scene, scene.judge, cutter
        self._all = self.play(Choice(self.judge.wanted - self.judge.unkept))
        self._price = sum(scene.seconds.values()) / max(self._all.peak, 1)
        for seed in (*seeds, *narrow(scene)):
            kept = seed.intersection(cutter.storages) - self.judge.unkept
            self.play(Choice(kept))
            self.play(Choice(kept.difference(scene.leaving), kept.intersection(scene.leaving)))
        for choice in known:
            self.play(choice)

    @property
    def found(self) -> list[Played]:
        return self.scene.looked_at

    def play(self, choice: Choice) -> Played:
        """What a choice takes."""
        return self.scene.play(choice)

    def climb(self, targets: int, advance: Callable[[], None] = lambda: None) -> list[Played]:
        """Choices from the fastest to the lowest, each of them beaten by none, sought for so many targets between; and the one
        that leaves least behind. `advance` is called after the lowest and after each target."""
        lowest, top = self.lowest().peak, self._all.peak
        advance()
        for target in np.geomspace(top, lowest, targets + 2)[1:-1] if lowest < top else ():
            self.fastest(int(target))
            advance()
        return [*spread(front(self.found), RUNGS), min(self.found, key=lambda p: (p.kept, p.peak, p.seconds))]

    def lowest(self) -> Played:
        """The lowest peak that prices lead to, and there the fastest choice."""
        best = min(self.found, key=lambda p: p.peak)
        while True:
            self._press(int(best.peak * LOWER))
            lower = min(self.found, key=lambda p: p.peak)
            if lower.peak > best.peak * (1 + LOWER) / 2:
                return self.fastest(lower.peak) or lower
            best = lower

    def fastest(self, target: int) -> Played | None:
        """The fastest choice inside a target; None where none was found."""
        if self._all.peak <= target:
            return self._all
        self._press(target)
        fitting = sorted((p for p in self.found if p.peak <= target), key=lambda p: p.seconds)
        return min((self._undo(p, target) for p in fitting[:BEST]), key=lambda p: p.seconds, default=None)

    def _press(self, target: int) -> None:
        """Raise prices on the steps above a target until the cheapest choice is below it; lower them while it is."""
        active = np.zeros(len(self.judge.forward) + len(self._all.replay.steps))
        self._raise(active, self._all, target)
        price = self._price
        latest = min(self.found, key=lambda p: (p.peak > target, p.seconds if p.peak <= target else p.peak))
        for _ in range(TRIES):
            latest = self.play(self._cheapest(active * (price / active.sum()), latest))
            if latest.peak <= target:
                price *= 0.6
            else:
                self._raise(active, latest, target)
                price *= 1.3

    def _raise(self, active: np.ndarray, played: Played, target: int) -> None:
        """Put weight on the highest step, and on all that are above the target as far as they are."""
        levels = self._by_op(played)
        above = np.maximum(levels - target, 0)
        active[int(levels.argmax())] += 1.0
        active += above / max(float(above.sum()), 1.0)

    def _by_op(self, played: Played) -> np.ndarray:
        """Levels at the ops of forward and backward; what runs again counts with the op that it runs for."""
        forward, steps = len(self.judge.forward), played.replay.steps
        if not steps:
            return played.levels[:forward]
        begins = np.array([forward, *(place + 1 for place in steps[:-1])])
        return np.concatenate([played.levels[:forward], np.maximum.reduceat(played.levels[: steps[-1] + 1], begins)])

    def _cheapest(self, prices: np.ndarray, latest: Played) -> Choice:
        """The cheapest choice when a byte costs so much at each op, with what is needed when as it was lately."""
        judge, scene = self.judge, self.scene
        paid = np.concatenate([[0.0], prices.cumsum()])
        forward = len(judge.forward)
        needs = self._needs(latest)
        keeping: dict[int, float] = {}
        running = {op: scene.seconds[op] for op in self.cutter.ops}
        leaving: set[int] = set()
        for storage in self.cutter.storages:
            need = needs.get(storage, forward)
            back = scene.bytes[storage] * float(prices[min(need, len(prices) - 1)])
            keeping[storage] = scene.bytes[storage] * float(paid[need] - paid[min(scene.judge.ends[storage], need)])
            running[judge.op[storage]] += back
            if storage in scene.leaving and scene.leaving[storage] + back < keeping[storage]:
                keeping[storage] = scene.leaving[storage] + back
                leaving.add(storage)
        found = self.cutter.cut(keeping, running)
        return Choice(found - leaving, found & leaving)

    def _needs(self, latest: Played) -> dict[int, int]:
        """For each storage, the op of the backward that needs it first: as lately, or as read, or as what is made of it."""
        forward = len(self.judge.forward)
        needed = latest.replay.needed
        at = np.searchsorted(np.array(latest.replay.steps), np.array(list(needed.values()), dtype=np.int64))
        needs = dict(zip(needed, (forward + at).tolist(), strict=True))
        for storage, first in self._read_first.items():
            needs.setdefault(storage, first)
        for step in reversed(self.judge.forward):
            first = min((needs[s] for s in step.makes if s in needs), default=None)
            if first is not None:
                for storage in step.reads:
                    needs.setdefault(storage, first)
        return needs

    @cached_property
    def _read_first(self) -> dict[int, int]:
        """For what the backward reads, the op that does first."""
        found: dict[int, int] = {}
        for position, step in enumerate(self.judge.backward, len(self.judge.forward)):
            for storage in step.reads:
                found.setdefault(storage, position)
        return found

    def _undo(self, played: Played, target: int) -> Played:
        """Keep again what fits: first what saves most time for its bytes, many at once, then fewer."""
        judge, scene = self.judge, self.scene
        again = set(played.replay.again)
        gains = [
            (scene.seconds[judge.op[s]] / max(scene.bytes[s], 1), s)
            for s in self.cutter.storages
            if judge.op[s] in again and s in judge.wanted and s not in judge.unkept
        ]
        gains += [(scene.away, s) for s in played.replay.fetched]
        todo = [[s for _, s in sorted(gains, reverse=True)]]
        looks = 0
        while todo and looks < UNDONE:
            group = todo.pop()
            if not group:
                continue
            tried = self.play(Choice(played.choice.keep.union(group), played.choice.away.difference(group)))
            looks += 1
            if tried.peak <= target and tried.seconds < played.seconds:
                played = tried
            elif len(group) > 1:
                todo += [group[len(group) // 2 :], group[: len(group) // 2]]
        return played


def front(found: Iterable[Played]) -> list[Played]:
    """Those that none beats, from the fastest to the lowest."""
    kept: list[Played] = []
    for played in sorted(found, key=lambda p: (p.seconds, p.peak)):
        if not kept or played.peak < kept[-1].peak:
            kept.append(played)
    return kept


def spread(rungs: Sequence[Played], count: int) -> list[Played]:
    """At most so many of them, evenly by peak, the first and the last among them."""
    if len(rungs) <= count:
        return list(rungs)
    marks = np.geomspace(rungs[0].peak, rungs[-1].peak, count)
    peaks = np.array([p.peak for p in rungs])
    return [rungs[i] for i in sorted({int(np.abs(peaks - mark).argmin()) for mark in marks})]


def narrow(scene: Scene) -> list[Storages]:
    """What crosses the narrow places of the forward: at every one of them, every second, every third and so on."""
    steps = len(scene.judge.forward)
    width = np.zeros(steps + 1, dtype=np.int64)
    for storage, end in scene.judge.ends.items():
        width[scene.judge.births[storage]] += scene.bytes[storage]
        width[end - 1] -= scene.bytes[storage]
    width = width.cumsum()[:steps]
    if not (width > 0).any():
        return []
    bound = np.quantile(width[width > 0], 0.1) * 1.5
    places = [t for t in range(1, steps - 1) if 0 < width[t] <= bound and (width[t - 1] > bound or width[t] < width[t - 1])]
    return [_crossing(scene, places[every - 1 :: every]) for every in (1, 2, 3, 4, 6)]


def _crossing(scene: Scene, places: Sequence[int]) -> Storages:
    return frozenset(s for s, end in scene.judge.ends.items() if any(scene.judge.births[s] <= t < end - 1 for t in places))
