"""One choice of what to keep, replayed on storages alone: who is alive when, and what runs again.

In: the steps of forward and backward, and the storages to keep or send away. Out: spans of steps, by the index of their size.
What the backward reads and was not kept is fetched or made again right before, as late as can be, with all that this reads and
is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from neaptide.search.recompute.judge import Judge, Step

Storages = frozenset[int]


@dataclass(frozen=True, slots=True)
class Choice:
    """What the forward keeps for the backward, and what it sends away; the rest is made again."""

    keep: Storages
    away: Storages = frozenset()


@dataclass(frozen=True, eq=False)
class Replay:
    """One choice, step by step, whatever the sizes: first the forward, then the backward with what is run again."""

    choice: Choice
    spans: np.ndarray
    """Columns: the step at which something is born, the one before which it is gone, and the index of its size."""
    length: int
    again: tuple[int, ...]
    fetched: tuple[int, ...]
    """What is run again, and what is had back from where it was sent."""
    needed: dict[int, int]
    """For each storage of the forward that the backward needs, the step at which it does first."""
    steps: tuple[int, ...]
    """For each op of the backward, its step."""

    @cached_property
    def rerun(self) -> np.ndarray:
        """What is run again, for looking up what that takes."""
        return np.array(self.again, dtype=np.int64)


def replayed(judge: Judge, choice: Choice) -> Replay:
    """What a choice does."""
    walk = _Backward(judge, choice)
    places = []
    for step in judge.backward:
        walk.make_there(step)
        places.append(walk.now)
        walk.do(step)
    return Replay(choice, walk.spans(), walk.now + 1, tuple(walk.again), tuple(walk.fetched), walk.needed, tuple(places))


class _Backward:
    """The backward, as far as it has come."""

    def __init__(self, judge: Judge, choice: Choice) -> None:
        count = len(judge.size)
        self.judge = judge
        self.stay = choice.keep | judge.pinned | judge.handed
        self.away = choice.away
        self.there, self.used = bytearray(count), bytearray(count)
        for storage in (*judge.lent, *judge.tangents):
            self.there[storage] = 1
        self.born: dict[int, int] = {}
        self.last = [-1] * count
        self.needed: dict[int, int] = {}
        self.again: list[int] = []
        self.fetched: list[int] = []
        self.inner: list[tuple[int, int, int]] = []
        self.overs: list[tuple[int, int]] = []
        self.now = len(judge.forward)

    def make_there(self, step: Step) -> None:
        """Fetch or run again whatever has to be, so that all that a step reads is there."""
        there, makers = self.there, self.judge.maker
        todo = [s for s in reversed(step.reads) if not there[s]]
        while todo:
            wanted = todo[-1]
            if there[wanted]:
                todo.pop()
            elif wanted in self.stay:
                there[todo.pop()] = 1
                self.needed[wanted] = self.last[wanted] = self.now
            elif wanted in self.away:
                there[todo.pop()] = 1
                self.fetched.append(wanted)
                self.born[wanted] = self.last[wanted] = self.needed[wanted] = self.now
            elif missing := [s for s in makers[wanted].reads if not there[s]]:
                todo.extend(missing)
            else:
                self.remake(makers[wanted])
                todo.pop()

    def remake(self, step: Step) -> None:
        """Run an op of the forward again."""
        self.again.append(step.op)
        self._read(step)
        for storage in step.makes:
            self.there[storage] = 1
            if self.used[storage] or storage in self.judge.handed:  # the second making is let go of at once
                self.inner.append((self.now, self.now + 1, self.judge.size[storage]))
            else:  # also what would have been kept, if nothing has read it yet
                self.born[storage] = self.last[storage] = self.needed[storage] = self.now
        self._end(step)

    def do(self, step: Step) -> None:
        """Run an op of the backward."""
        self._read(step)
        for storage in step.makes:
            self.there[storage] = 1
            self.born[storage] = self.last[storage] = self.now
        self._end(step)

    def _read(self, step: Step) -> None:
        for storage in step.reads:
            self.last[storage] = self.now
            self.used[storage] = 1

    def _end(self, step: Step) -> None:
        if step.over is not None:
            self.overs.append((step.over, self.now))
        if step.hidden != self.judge.graph.nothing:
            self.inner.append((self.now, self.now + 1, step.hidden))
        self.now += 1

    def spans(self) -> np.ndarray:
        """Everything that was alive: born at, gone before, size."""
        judge, last, now = self.judge, self.last, self.now
        for storage in judge.gradients:
            last[storage] = now
        before = judge.before.copy()
        for row, storage in enumerate(judge.births):
            if storage in judge.handed:
                before[row, 1] = now
            elif last[storage] >= 0 and storage not in self.born:
                before[row, 1] = last[storage] + 1
        turn = len(judge.forward)
        taken_over = {s for s, at in self.overs if s in self.born and last[s] == at}
        inner = self.inner
        inner.extend((begin, last[s] + (s not in taken_over), judge.size[s]) for s, begin in self.born.items())
        inner.extend((turn, max(last[s], turn) + 1, judge.size[s]) for s in judge.tangents)
        inner.extend((0, last[s] + 1, judge.size[s]) for s in judge.copied if last[s] >= 0)
        found = np.concatenate([before, np.array(inner, dtype=np.int64).reshape(-1, 3)])
        found[:, 1] = np.minimum(found[:, 1], now + 1)
        return found
