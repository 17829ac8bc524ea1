"""The fastest way to run a training step inside a target, proven: an oracle for tests and benchmarks, on small graphs.

In: a joint graph at one size, and a target. Out: the least time that running again can take, and what is kept. It is a mixed
integer program, solved by scipy's HiGHS, after Checkmate (2020): before each op of the backward any ops of the forward may run
again, as often as that pays, and each value is let go of after its last use there or handed on to the next op. That is more
than `recompute` can do, where an op runs again once: so nothing that it finds is faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from neaptide.search.recompute.cut import Cutter
from neaptide.search.recompute.judge import Step
from neaptide.search.recompute.replay import Choice, Storages
from neaptide.search.recompute.scene import Scene

Sum = dict[int, float]
"""Variables by number, each with its factor."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """What a step takes at best, and what the forward keeps for it."""

    seconds: float
    keep: Storages


def optimum(scene: Scene, target: int, limit: float = 60.0) -> Optimum | None:
    """The fastest way inside `target` bytes; None where there is none. An error where `limit` seconds do not settle it."""
    return _Stages(scene, target).solve(limit)


class _Equations:
    """Linear constraints over numbered variables between 0 and 1, as they come."""

    def __init__(self) -> None:
        self.prices: list[float] = []
        self.whole: list[bool] = []
        self._entries: list[tuple[int, int, float]] = []
        self._most: list[float] = []

    def variable(self, price: float = 0.0, whole: bool = True) -> int:
        self.prices.append(price)
        self.whole.append(whole)
        return len(self.prices) - 1

    def at_most(self, terms: Mapping[int, float], most: float) -> None:
        """The sum of `terms` is at most so much."""
        self._entries += [(len(self._most), variable, factor) for variable, factor in terms.items()]
        self._most.append(most)

    def solve(self, limit: float) -> tuple[np.ndarray, float] | None:
        rows, columns, factors = zip(*self._entries, strict=True)
        matrix = csr_array((factors, (rows, columns)), shape=(len(self._most), len(self.prices)))
        found = milp(
            np.array(self.prices),
            integrality=np.array(self.whole, dtype=int),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, -np.inf, np.array(self._most)),  # type: ignore[arg-type]
            options={"time_limit": limit, "mip_rel_gap": 1e-4},
        )
        if found.status == 2:
            return None
        if found.status != 0:
            raise TimeoutError(f"not settled in {limit:.0f} s: {found.message}")
        return found.x, float(found.fun)


class _Stages:
    """One stage for each op of the backward: what runs again before it, and what is there when it begins."""

    def __init__(self, scene: Scene, target: int) -> None:
        self.scene, self.judge, self.target = scene, scene.judge, target
        judge, cutter = self.judge, Cutter(self.judge)
        self.free = frozenset(cutter.storages)
        """What may be kept or made again."""
        pinned = (s for s in judge.pinned if s in judge.maker and s not in judge.handed)
        self.items = sorted(self.free.union(pinned))
        again = set(cutter.ops)
        self.again = [step for step in judge.forward if step.op in again]
        self.count = len(judge.backward)
        self.last = self._last_wanted()
        self.total = sum(scene.seconds[op] for op in again) or 1.0
        self.equations = _Equations()
        self.there = [self._there(stage) for stage in range(self.count + 1)]
        """For each stage and item, whether it is there when the stage begins."""
        self.runs = [self._runs(stage) for stage in range(self.count)]
        """For each stage and op, whether it runs again."""

    def _last_wanted(self) -> dict[int, int]:
        """The last stage at which something may want each item, also to make another from it."""
        last = dict.fromkeys(self.items, -1)
        for stage, step in enumerate(self.judge.backward):
            last.update((s, stage) for s in step.reads if s in last)
        for step in reversed(self.judge.forward):
            latest = max((last[s] for s in step.makes if s in self.free), default=-1)
            last.update((s, max(last[s], latest)) for s in step.reads if s in last)
        return last

    def _there(self, stage: int) -> Mapping[int, int]:
        unkept = self.judge.unkept if stage == 0 else frozenset()
        return {s: self.equations.variable() for s in self.items if stage <= self.last[s] and s not in unkept}

    def _runs(self, stage: int) -> Mapping[int, int]:
        wanted = (step for step in self.again if any(stage <= self.last[s] for s in step.makes if s in self.free))
        return {step.op: self.equations.variable(self.scene.seconds[step.op] / self.total) for step in wanted}

    def solve(self, limit: float) -> Optimum | None:
        self._forward()
        before, during = self._others()
        for stage in range(self.count):
            self._stage(stage, before[stage], during[stage])
        found = self.equations.solve(limit)
        if found is None:
            return None
        values, price = found
        keep = frozenset(s for s, variable in self.there[0].items() if s in self.free and values[variable] > 0.5)
        return Optimum(price * self.total, keep)

    def _limit(self, terms: Mapping[int, float], others: float) -> None:
        """Bytes and those of all others are inside the target."""
        self.equations.at_most({v: b / self.target for v, b in terms.items()}, 1 - others / self.target + 1e-9)

    def _forward(self) -> None:
        """What is kept is there from where it would have been let go of."""
        judge, levels = self.judge, self.scene.play(Choice(frozenset())).levels
        kept = [(judge.ends[s] - (s in judge.taken_over), v, s) for s, v in self.there[0].items() if s in self.free]
        for now in range(len(judge.forward)):
            self._limit({v: self.scene.bytes[s] for begin, v, s in kept if begin <= now}, int(levels[now]))

    def _others(self) -> tuple[list[int], list[int]]:
        """Bytes that no choice changes: before each op of the backward, and during it."""
        judge, scene = self.judge, self.scene
        spans = scene.play(Choice(judge.wanted)).replay.spans
        items = set(self.items)
        fixed = [row for row, s in enumerate(judge.births) if s not in items]
        begins, stops, sizes = spans[[*fixed, *range(len(judge.births), len(spans))]].T
        amounts = scene.sizes[sizes]
        last = {s: stage for stage, step in enumerate(judge.backward) for s in step.reads}
        before, during = [], []
        for stage, step in enumerate(judge.backward):
            now = len(judge.forward) + stage
            over = step.over if step.over not in items and last.get(step.over or -1) == stage else None
            ends_here = scene.bytes[over] if over is not None and over not in judge.gradients | judge.lent else 0
            before.append(int(amounts[(begins < now) & (stops > now)].sum()) + ends_here)
            during.append(int(amounts[(begins <= now) & (stops > now)].sum()))
        return before, during

    def _stage(self, stage: int, before: int, during: int) -> None:
        """What may run again, and what it takes step by step."""
        there, runs, step = self.there[stage], self.runs[stage], self.judge.backward[stage]
        self._available(stage, step, None)
        for item, later in self.there[stage + 1].items():
            self.equations.at_most({later: 1, **self._sources(stage, item)}, 0)
        level: Sum = {v: self.scene.bytes[s] for s, v in there.items()}
        for other in self.again:
            if other.op in runs:
                self._available(stage, other, runs[other.op])
                self._rerun(stage, other, level, before)
        if step.over in self.free:
            level = {**level, self._written_over(step.over, stage, None): -self.scene.bytes[step.over]}
        self._limit(level, during)

    def _sources(self, stage: int, item: int) -> Sum:
        """Whence an item may be there in a stage, with a minus."""
        found = {self.there[stage][item]: -1.0} if item in self.there[stage] else {}
        run = self.runs[stage].get(self.judge.op[item]) if item in self.free else None
        return found if run is None else {**found, run: -1.0}

    def _available(self, stage: int, step: Step, run: int | None) -> None:
        """What a step reads is there, if it runs."""
        for item in step.reads:
            if item in self.last:
                needed = {} if run is None else {run: 1.0}
                self.equations.at_most({**needed, **self._sources(stage, item)}, 0 if needed else -1)

    def _rerun(self, stage: int, step: Step, level: Sum, before: int) -> None:
        """An op that may run again: its level, and what it changes for those that follow."""
        run, size = self.runs[stage][step.op], self.scene.bytes
        hidden = int(self.scene.sizes[step.hidden]) + sum(size[s] for s in step.makes if s not in self.free)
        for item in step.makes:
            if item in self.free:
                level[self._made(stage, item, run)] = size[item]
        freed = {item: self._freed(stage, step, item) for item in (*step.reads, *step.makes) if item in self.last}
        here = {**level, run: float(hidden)}
        over = freed.get(step.over) if step.over in self.free else None
        if step.over is not None and over is not None:
            here[self._written_over(step.over, stage, over)] = -size[step.over]
        self._limit(here, before)
        for item, variable in freed.items():
            if variable is not None:
                level[variable] = -size[item]

    def _made(self, stage: int, item: int, run: int) -> int:
        """Whether an item comes into being by a run: not where it is there already."""
        made = self.equations.variable(whole=False)
        there = self.there[stage].get(item)
        self.equations.at_most({run: 1, made: -1} | ({} if there is None else {there: -1.0}), 0)
        return made

    def _freed(self, stage: int, step: Step, item: int) -> int | None:
        """Whether an item goes with an op that runs again: nothing later in the stage reads it, nor is it handed on."""
        if item in self.judge.backward[stage].reads:
            return None
        freed = self.equations.variable()
        later = [other for other in self.again[self.again.index(step) + 1 :] if item in other.reads]
        hazards = [self.runs[stage][other.op] for other in later if other.op in self.runs[stage]]
        handed_on = self.there[stage + 1].get(item)
        if handed_on is not None:
            hazards.append(handed_on)
        self.equations.at_most({freed: 1, self.runs[stage][step.op]: -1}, 0)
        for hazard in hazards:
            self.equations.at_most({freed: 1, hazard: 1}, 1)
        return freed

    def _written_over(self, item: int, stage: int, freed: int | None) -> int:
        """Whether a result is written over an item: one that goes then, and was not kept by the forward."""
        over = self.equations.variable(whole=False)
        kept, handed_on = self.there[0].get(item), self.there[stage + 1].get(item)
        for other in (kept, handed_on if freed is None else None):
            if other is not None:
                self.equations.at_most({over: 1, other: 1}, 1)
        if freed is not None:
            self.equations.at_most({over: 1, freed: -1}, 0)
        return over
