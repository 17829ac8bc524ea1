"""A joint graph at one size: what a choice of what to keep takes there, in bytes and seconds, in a millisecond.

In: the steps of a graph, and dims; then choices. Out: bytes at each step, the peak, and the time that each costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neaptide.away import SMALL
from neaptide.hardware import Machine
from neaptide.memory import inner_peak, sizes_at
from neaptide.search.chain import Take
from neaptide.search.recompute.judge import LOOP, Judge
from neaptide.search.recompute.replay import Choice, Replay
from neaptide.shapes import Concrete, shapes_of
from neaptide.timing import cost, looped, whole


@dataclass(frozen=True, eq=False)
class Played:
    """One choice at one size."""

    replay: Replay
    levels: np.ndarray
    """Bytes at each step."""
    seconds: float
    """What running again, sending and fetching take."""
    kept: int
    """Bytes that the forward leaves behind."""
    turn: int
    """The first step of the backward."""

    @property
    def choice(self) -> Choice:
        return self.replay.choice

    @cached_property
    def peak(self) -> int:
        return int(self.levels.max(initial=0))

    @property
    def take(self) -> Take:
        back = int(self.levels[self.turn :].max(initial=0))
        return Take(self.peak, back, self.kept, self.seconds)


class Scene:
    """A joint graph at one size."""

    def __init__(self, judge: Judge, dims: Sequence[int], machine: Machine, offload: bool = False) -> None:
        graph = judge.graph
        self.judge = judge
        sizes = sizes_at(graph, dims)
        inside = [inner_peak(graph, loop, dims) for loop in reversed(judge.loops)]
        self.sizes = np.array([*sizes, *inside], dtype=np.int64)
        self.bytes = [sizes[size] for size in graph.held]
        shapes = shapes_of(graph).at(dims)
        self.seconds = self._prices(shapes, machine)
        self.away = machine.away
        """Seconds to send a byte and have it back."""
        self.longer = self._longer(shapes, machine)
        """What loops take beyond their ops, each done at once and once."""
        self.leaving = self._ways_out(shapes, machine) if offload and machine.away < math.inf else {}
        """What can be sent away, and what that costs with having it back."""
        self._known: dict[Choice, Played] = {}

    def _ways_out(self, shapes: Concrete, machine: Machine) -> dict[int, float]:
        """For what is large enough and lies densely in memory of its own, the seconds that sending and fetching take."""
        graph = self.judge.graph
        found: dict[int, float] = {}
        for storage, op in self.judge.op.items():
            if op != LOOP and self.bytes[storage] >= SMALL and storage not in self.judge.unkept:
                specs = [shapes.spec(v) for v in graph.ops[op].outputs if graph.values[v].storage == storage]
                if [spec.nbytes for spec in specs if spec] == [shapes.sizes[graph.storages[storage].size]]:
                    found[storage] = self.bytes[storage] * machine.away
        return found

    def _longer(self, shapes: Concrete, machine: Machine) -> float:
        plain = sum(whole(cost(shapes, op, machine), machine) for op in self.judge.instead)
        return sum(looped(shapes, loop, machine) for loop in self.judge.loops) - plain

    def _prices(self, shapes: Concrete, machine: Machine) -> dict[int, float]:
        """What each op of the forward takes; those that are alike are asked for once."""
        known: dict[int, float] = {}
        found: dict[int, float] = {}
        for step in self.judge.forward:
            if step.op == LOOP:
                continue
            kind = self.judge.alike[step.op]
            if kind not in known:
                known[kind] = whole(cost(shapes, step.op, machine), machine)
            found[step.op] = known[kind]
        return found

    def play(self, choice: Choice) -> Played:
        """What a choice takes."""
        if choice not in self._known:
            replay = self.judge.replay(choice)
            begins, stops, sizes = replay.spans.T
            amounts = self.sizes[sizes]
            change = np.bincount(begins, amounts, replay.length + 1) - np.bincount(stops, amounts, replay.length + 1)
            levels = change.cumsum()[: replay.length].astype(np.int64)
            turn = len(self.judge.forward)
            kept = int(amounts[(begins < turn) & (stops > turn)].sum())
            again = sum(self.seconds[op] for op in replay.again)
            moved = sum(self.bytes[s] for s in replay.fetched) * self.away
            self._known[choice] = Played(replay, levels, self.longer + again + moved, kept, turn)
        return self._known[choice]

    @property
    def looked_at(self) -> list[Played]:
        """All choices that were ever played here."""
        return list(self._known.values())
