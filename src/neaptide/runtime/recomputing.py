"""The ways to run one training graph inside a room, at one size after the other.

In: a joint graph; then dims and the room there is. Out: values to keep and to send away, best guess first: each is judged by
the program made of it, and what the judge says goes into the next guess. Choices are sought once, at the first size and at
sizes well below and above it: at any other they are only weighed anew. So a smaller room never gets a choice that takes more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from neaptide.graph import Graph
from neaptide.hardware import this_machine
from neaptide.runtime.room import Room
from neaptide.search.recompute import Choice, Chooser, Cutter, Judge, Scene

Dims = tuple[int, ...]
AROUND = (0.25, 4.0)
"""At these multiples of the first size choices are sought too."""
GUESSES = 8
"""How many choices are tried for one size."""
REMEMBERED = 256
"""For how many sizes it is remembered what the choices take there."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """Values that come from the forward to the backward: kept, or by way of where they are sent."""

    keep: frozenset[int]
    away: frozenset[int]


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a choice takes at one size."""

    choice: Choice
    peak: int
    kept: int
    seconds: float


class Recomputing:
    """What was found out about a joint graph so far: for backwards that lack the tangents `absent`, and inputs that change.

    What is `known` where other inputs change is as good here. With `offload`, values may be sent away.
    """

    def __init__(
        self,
        graph: Graph,
        seeds: Iterable[Collection[int]],
        absent: frozenset[int] = frozenset(),
        changing: frozenset[int] = frozenset(),
        known: Recomputing | None = None,
        offload: bool = False,
    ) -> None:
        self._judge = Judge(graph, absent, changing)
        self._cutter = Cutter(self._judge)
        self._seeds = {self._judge.storages(seed) for seed in seeds}
        self._offload = offload
        self._choices: dict[Choice, None] = {} if known is None else dict(known._choices)
        self._weighed: dict[Dims, list[Weighed]] = {}

    @property
    def candidates(self) -> frozenset[int]:
        """Every value that a choice may keep."""
        return self._judge.values(frozenset(self._cutter.storages) | self._judge.wanted)

    def ways(self, dims: Dims, room: Room | None) -> Ways:
        """Choices for a size: the fastest in the room there is, or without one the lowest."""
        return Ways(self._judge, self._all(dims), room)

    def least(self, dims: Dims, last: bool) -> Room:
        """What the choice takes that is best where memory is scarcest: in the last call of a step the one with the lowest peak,
        in an earlier one the one that leaves least behind."""
        found = min(self._all(dims), key=lambda w: w.peak if last else (w.kept, w.peak))
        return Room(found.peak, found.kept)

    def _all(self, dims: Dims) -> list[Weighed]:
        """All choices at a size, from the fastest on."""
        if not self._choices:
            self._seek(dims)
        if dims not in self._weighed:
            if len(self._weighed) >= REMEMBERED:
                self._weighed.clear()
            played = map(self._scene(dims).play, self._choices)
            found = (Weighed(p.choice, p.peak, p.kept, p.seconds) for p in played)
            self._weighed[dims] = sorted(found, key=lambda w: (w.seconds, w.peak))
        return self._weighed[dims]

    def _scene(self, dims: Dims) -> Scene:
        return Scene(self._judge, dims, this_machine(self._judge.graph.device), self._offload)

    def _seek(self, dims: Dims) -> None:
        sizes = self._judge.graph.sizes
        others = (sizes.around(dims, times) for times in AROUND if dims)
        for at in (dims, *filter(None, others)):
            found = Chooser(self._scene(at), self._cutter, self._seeds).climb()
            self._choices.update(dict.fromkeys(played.choice for played in found))
        self._judge.forget_all_but(self._choices)


class Ways:
    """Choices one after the other, each told what the one before it really takes."""

    def __init__(self, judge: Judge, rungs: list[Weighed], room: Room | None) -> None:
        self._judge, self._rungs, self._room = judge, rungs, room
        self._excess = 0

    def told(self, peak: int) -> None:
        """The last choice really takes this much."""
        if self._room is not None:
            self._excess += max(peak - self._room.peak, self._room.peak // 500)

    def __iter__(self) -> Iterator[Crossing]:
        room = self._room or Room(0, 0)
        lowest = min(self._rungs, key=lambda w: room.beyond(w.peak, w.kept))
        if self._room is not None:
            for _ in range(GUESSES):
                found = next(filter(self._fits, self._rungs), None)
                if found is None:
                    break
                yield self._crossing(found)
                if found is lowest:
                    return
        yield self._crossing(lowest)

    def _crossing(self, found: Weighed) -> Crossing:
        return Crossing(self._judge.values(found.choice.keep), self._judge.values(found.choice.away))

    def _fits(self, choice: Weighed) -> bool:
        assert self._room is not None
        return choice.peak <= self._room.peak - self._excess and choice.kept <= self._room.kept
