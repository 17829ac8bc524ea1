"""A joint graph at one size: what a choice of what to keep takes there, in bytes and seconds, in a millisecond.

In: the steps of a graph, and dims; then choices. Out: bytes at each step, the peak, and the time that each costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from neaptide.away import SMALL
from neaptide.hardware import Machine
from neaptide.memory import fresh_pages, inner_peak, levels_of, sizes_at
from neaptide.pricing import whole
from neaptide.search.chain import Take
from neaptide.search.recompute.judge import LOOP, Judge
from neaptide.search.recompute.replay import Choice, Replay
from neaptide.shapes import Concrete, shapes_of
from neaptide.timing import cost, looped


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
    outputs: int
    """Bytes of what is handed out and not read by the backward."""

    @property
    def choice(self) -> Choice:
        return self.replay.choice

    @cached_property
    def peak(self) -> int:
        return int(self.levels.max(initial=0))

    @property
    def take(self) -> Take:
        front, back = (int(part.max(initial=0)) for part in (self.levels[: self.turn], self.levels[self.turn :]))
        return Take(front, back, self.kept, self.seconds, self.outputs)


class Scene:
    """A joint graph at one size."""

    def __init__(self, judge: Judge, dims: Sequence[int], machine: Machine, offload: bool = False) -> None:
        graph = judge.graph
        self.judge = judge
        sizes = sizes_at(graph, dims)
        inside = {first: inner_peak(graph, judge.loops[first], dims) for first in set(judge.like)}
        self.sizes = np.array([*sizes, *(inside[first] for first in reversed(judge.like))], dtype=np.int64)
        self.bytes = [sizes[size] for size in graph.held]
        shapes = self._shapes = shapes_of(graph).at(dims)
        self._touch, machine = machine.touch, replace(machine, touch=0.0)  # what is touched depends on what else is there
        self.seconds = self._prices(shapes, machine, (step.op for step in judge.forward if step.op != LOOP))
        self._by_op = np.zeros(len(graph.ops))
        self._by_op[list(self.seconds)] = list(self.seconds.values())
        self.away, self._offload = machine.away, offload
        """Seconds to send a byte and have it back."""
        self.longer = self._longer(shapes, machine)
        """What loops take beyond their ops, each done at once and once."""
        self._known: dict[Choice, Played] = {}

    @cached_property
    def leaving(self) -> dict[int, float]:
        """What can be sent away, being large and dense in memory of its own, and the seconds that sending and fetching take."""
        graph, shapes = self.judge.graph, self._shapes
        found: dict[int, float] = {}
        if not self._offload or self.away == math.inf:
            return found
        for storage, op in self.judge.op.items():
            if op != LOOP and self.bytes[storage] >= SMALL and storage not in self.judge.unkept:
                specs = [shapes.spec(v) for v in graph.ops[op].outputs if graph.values[v].storage == storage]
                if [spec.nbytes for spec in specs if spec] == [shapes.sizes[graph.storages[storage].size]]:
                    found[storage] = self.bytes[storage] * self.away
        return found

    def _longer(self, shapes: Concrete, machine: Machine) -> float:
        judge = self.judge
        loops = {first: looped(shapes, judge.loops[first], machine) for first in set(judge.like)}
        plain = self._prices(shapes, machine, judge.instead)
        return sum(loops[first] for first in judge.like) - sum(plain[op] for op in judge.instead)

    def _prices(self, shapes: Concrete, machine: Machine, ops: Iterable[int]) -> dict[int, float]:
        """What each of some ops takes; those that are alike are asked for once."""
        known: dict[int, float] = {}
        found: dict[int, float] = {}
        for op in ops:
            kind = self.judge.alike[op]
            if kind not in known:
                known[kind] = whole(cost(shapes, op, machine), machine)
            found[op] = known[kind]
        return found

    def play(self, choice: Choice) -> Played:
        """What a choice takes."""
        if choice not in self._known:
            replay = self.judge.replay(choice)
            begins, stops, sizes = replay.spans.T
            amounts = self.sizes[sizes]
            levels = levels_of(begins, stops, amounts, replay.length)
            turn = len(self.judge.forward)
            kept = int(amounts[(begins < turn) & (stops > turn)].sum())
            again = float(self._by_op[replay.rerun].sum())
            moved = sum(self.bytes[s] for s in replay.fetched) * self.away
            moved += fresh_pages(begins, stops, amounts, replay.length) * self._touch
            seconds = self.longer + again + moved
            self._known[choice] = Played(replay, levels, seconds, kept, turn, self._outputs(replay))
        return self._known[choice]

    def _outputs(self, replay: Replay) -> int:
        """Bytes of what the forward hands out and the backward has no need of."""
        made = self.judge.handed.intersection(self.judge.births).difference(replay.needed)
        return sum(self.bytes[storage] for storage in made)

    @property
    def looked_at(self) -> list[Played]:
        """All choices that were ever played here."""
        return list(self._known.values())
