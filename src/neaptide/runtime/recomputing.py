"""The ways to run one training graph inside a room, at one size after the other.

In: a joint graph; then dims and the room there is. Out: sets of values to keep, best guess first: each is judged by the program
made of it, and what the judge says goes into the next guess. Choices are sought once, at the first size and at sizes well below
and above it: at any other they are only weighed anew. So a smaller room never gets a choice that takes more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from neaptide.graph import Graph
from neaptide.hardware import this_machine
from neaptide.runtime.room import Room
from neaptide.search.recompute import Chooser, Cutter, Judge
from neaptide.search.recompute.judge import Played, Scene, Storages

Dims = tuple[int, ...]
AROUND = (1.0, 0.25, 4.0)
"""At these multiples of the first size choices are sought."""
GUESSES = 8


class Recomputing:
    """What was found out about a joint graph so far: for backwards that lack the tangents `absent`, and inputs that change.

    What is `known` where other inputs change is as good here.
    """

    def __init__(
        self,
        graph: Graph,
        seeds: Iterable[Collection[int]],
        absent: frozenset[int] = frozenset(),
        changing: frozenset[int] = frozenset(),
        known: Recomputing | None = None,
    ) -> None:
        self._judge = Judge(graph, absent, changing)
        self._cutter = Cutter(self._judge)
        self._seeds = {self._judge.storages(seed) for seed in seeds}
        self._choices: dict[Storages, None] = {} if known is None else dict(known._choices)
        self._weighed: dict[Dims, list[Played]] = {}

    @property
    def candidates(self) -> frozenset[int]:
        """Every value that a choice may keep."""
        return self._judge.values(frozenset(self._cutter.storages) | self._judge.wanted)

    def ways(self, dims: Dims, room: Room | None) -> Ways:
        """Choices for a size: the fastest in the room there is, or without one the lowest."""
        return Ways(self._judge, self._played(dims), room)

    def least(self, dims: Dims, last: bool) -> Room:
        """What the choice takes that is best where memory is scarcest: in the last call of a step the one with the lowest peak,
        in an earlier one the one that leaves least behind."""
        found = min(self._played(dims), key=lambda p: p.peak if last else (p.kept, p.peak))
        return Room(found.peak, found.kept)

    def _played(self, dims: Dims) -> list[Played]:
        """All choices at a size, from the fastest on."""
        if not self._choices:
            self._seek(dims)
        if dims not in self._weighed:
            scene = self._scene(dims)
            self._weighed[dims] = sorted(map(scene.play, self._choices), key=lambda p: (p.seconds, p.peak))
        return self._weighed[dims]

    def _scene(self, dims: Dims) -> Scene:
        return self._judge.at(dims, this_machine(self._judge.graph.device))

    def _seek(self, dims: Dims) -> None:
        for times in AROUND if dims else AROUND[:1]:
            at = tuple(max(int(d * times), min(d, 2)) for d in dims)
            if times == 1 or _is_possible(self._judge.graph, at):
                found = Chooser(self._scene(at), self._cutter, self._seeds).climb()
                self._choices.update(dict.fromkeys(played.keep for played in found))


def _is_possible(graph: Graph, dims: Dims) -> bool:
    """Whether every tensor has a size at these dims: an image may be too small for a kernel."""
    try:
        return min(graph.sizes.evaluate(dims), default=0) >= 0
    except ZeroDivisionError:
        return False


class Ways:
    """Choices one after the other, each told what the one before it really takes."""

    def __init__(self, judge: Judge, rungs: list[Played], room: Room | None) -> None:
        self._judge, self._rungs, self._room = judge, rungs, room
        self._excess = 0

    def told(self, peak: int) -> None:
        """The last choice really takes this much."""
        if self._room is not None:
            self._excess += max(peak - self._room.peak, self._room.peak // 500)

    def __iter__(self) -> Iterator[frozenset[int]]:
        lowest = min(self._rungs, key=lambda p: p.peak)
        if self._room is not None:
            for _ in range(GUESSES):
                found = next(filter(self._fits, self._rungs), None)
                if found is None:
                    break
                yield self._judge.values(found.keep)
                if found is lowest:
                    return
        yield self._judge.values(lowest.keep)

    def _fits(self, played: Played) -> bool:
        assert self._room is not None
        return played.peak <= self._room.peak - self._excess and played.kept <= self._room.kept
