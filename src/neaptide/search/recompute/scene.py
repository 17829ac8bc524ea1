"""A joint graph at one size: what a choice of what to keep takes there, in bytes and seconds, in a millisecond.

In: the steps of a graph, and dims; then the storages to keep. Out: bytes at each step, the peak, and what running again takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neaptide.hardware import Machine
from neaptide.memory import sizes_at
from neaptide.search.recompute.judge import Judge
from neaptide.search.recompute.replay import Replay, Storages
from neaptide.shapes import shapes_of
from neaptide.timing import cost, whole


@dataclass(frozen=True, eq=False)
class Played:
    """One choice at one size."""

    replay: Replay
    levels: np.ndarray
    """Bytes at each step."""
    seconds: float
    """What running again takes."""
    kept: int
    """Bytes that the forward leaves behind."""

    @property
    def keep(self) -> Storages:
        return self.replay.keep

    @cached_property
    def peak(self) -> int:
        return int(self.levels.max(initial=0))


class Scene:
    """A joint graph at one size."""

    def __init__(self, judge: Judge, dims: Sequence[int], machine: Machine) -> None:
        graph = judge.graph
        self.judge = judge
        sizes = sizes_at(graph, dims)
        self.sizes = np.array(sizes, dtype=np.int64)
        self.bytes = [sizes[size] for size in graph.held]
        self.seconds = self._prices(dims, machine)
        self._known: dict[Storages, Played] = {}

    def _prices(self, dims: Sequence[int], machine: Machine) -> dict[int, float]:
        """What each op of the forward takes; those that are alike are asked for once."""
        shapes = shapes_of(self.judge.graph).at(dims)
        known: dict[int, float] = {}
        found: dict[int, float] = {}
        for step in self.judge.forward:
            kind = self.judge.alike[step.op]
            if kind not in known:
                known[kind] = whole(cost(shapes, step.op, machine), machine)
            found[step.op] = known[kind]
        return found

    def play(self, keep: Storages) -> Played:
        """What a choice takes."""
        if keep not in self._known:
            replay = self.judge.replay(keep)
            begins, stops, sizes = replay.spans.T
            amounts = self.sizes[sizes]
            change = np.bincount(begins, amounts, replay.length + 1) - np.bincount(stops, amounts, replay.length + 1)
            levels = change.cumsum()[: replay.length].astype(np.int64)
            turn = len(self.judge.forward)
            kept = int(amounts[(begins < turn) & (stops > turn)].sum())
            self._known[keep] = Played(replay, levels, sum(self.seconds[op] for op in replay.again), kept)
        return self._known[keep]

    @property
    def looked_at(self) -> list[Played]:
        """All choices that were ever played here."""
        return list(self._known.values())
