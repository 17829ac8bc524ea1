"""The ways to run one training graph inside a room, at one size after the other.

In: a version of a joint graph; then dims. Out: choices of values to keep and to send away, each with what it takes; `Ways` puts
them in order, best guess first: each is judged by the program made of it, and what the judge says goes into the next guess.
Choices are sought once, at the first size and at sizes well below and above it, or found on the disk (cache.py): at any other
size they are only weighed anew. So a smaller room never gets a choice that takes more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from neaptide.hardware import this_machine
from neaptide.report.progress import progress
from neaptide.runtime.cache import Found, Shelf
from neaptide.runtime.room import Room
from neaptide.runtime.version import Crossing, Version
from neaptide.search.chain import Take
from neaptide.search.recompute import Choice, Chooser, Cutter, Judge, Scene

Dims = tuple[int, ...]
AROUND = (0.25, 4.0)
"""At these multiples of the first size choices are sought too."""
TARGETS, FEWER = 8, 3
"""For how many targets choices are sought: at the first size, and elsewhere."""
GUESSES = 8
"""How many choices are tried for one size."""
BACKWARD = 3
"""What a step takes in all, of its forward."""
REMEMBERED = 256
"""For how many sizes it is remembered what the choices take there."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a choice takes at one size."""

    crossing: Crossing
    take: Take

    @property
    def order(self) -> tuple[float, int]:
        """The fastest first, and of those the smallest."""
        return self.take.seconds, self.take.peak


class Recomputing:
    """What was found out about a version of a joint graph so far: for backwards that lack the tangents `absent` and add the
    gradients `added` to what is there, and inputs that change; all by the traced graph.

    What is `known`, now or later, where other inputs change or other gradients are added is as good here. With `offload`,
    values may be sent away. What was found for another version of the graph, its `kin`, is looked at first.
    """

    def __init__(
        self,
        version: Version,
        seeds: Iterable[Collection[int]],
        absent: frozenset[int],
        changing: frozenset[int],
        added: frozenset[int] = frozenset(),
        known: Recomputing | None = None,
        kin: Recomputing | None = None,
        offload: bool = False,
    ) -> None:
        self._version = version
        self._judge = Judge(version.everything(absent, added), version.own(changing), version.again)
        self._cutter = Cutter(self._judge)
        self._seeds = {self._judge.storages(version.own(seed)) for seed in seeds}
        self._kin, self._offload = kin, offload
        storages = self._judge.wanted.union(self._cutter.storages)
        self._shelf = Shelf(version.graph, version.own(absent), offload, storages)
        self._choices: dict[Choice, Crossing] = {} if known is None else known._choices
        self._weighed: dict[Dims, list[Weighed]] = {}
        self._whole: dict[Dims, float] = {}

    @property
    def candidates(self) -> frozenset[int]:
        """Every value that a choice may keep, of the traced graph."""
        return self._version.theirs(self._judge.values(self._judge.wanted.union(self._cutter.storages)))

    def at(self, dims: Dims) -> list[Weighed]:
        """All choices at a size, from the fastest on."""
        if not self._choices:
            self._seek(dims)
        if dims not in self._weighed:
            if len(self._weighed) >= REMEMBERED:
                self._weighed.clear()
                self._whole.clear()
            scene = self._scene(dims)
            self._whole[dims] = BACKWARD * float(sum(scene.seconds.values()))
            played = ((scene.play(choice), crossing) for choice, crossing in self._choices.items())
            found = (Weighed(crossing, p.take) for p, crossing in played)
            self._weighed[dims] = sorted(found, key=lambda w: w.order)
        return self._weighed[dims]

    def whole(self, dims: Dims) -> float:
        """About the seconds of a step at a size that was weighed."""
        return self._whole[dims]

    def _scene(self, dims: Dims) -> Scene:
        return Scene(self._judge, dims, this_machine(self._judge.graph.device), self._offload)

    def _seek(self, dims: Dims) -> None:
        kept = self._shelf.read()
        if kept is not None and all(
            AROUND[0] <= was / max(now, 1) <= AROUND[1] for was, now in zip(kept.dims, dims, strict=True)
        ):
            self._enter(kept.choices)
            return
        known = self._of_kin(dims)
        around = [] if known else [self._judge.graph.sizes.around(dims, times) for times in AROUND if dims]
        targets = {at: TARGETS if at == dims and not known else FEWER for at in (dims, *filter(None, around))}
        with progress("finding what to keep for the backward", sum(targets.values()) + len(targets)) as advance:
            for at, count in targets.items():
                found = Chooser(self._scene(at), self._cutter, self._seeds, known).climb(count, advance)
                self._enter(played.choice for played in found)
        self._judge.forget_all_but(self._choices)
        self._shelf.write(Found(dims, tuple(self._choices)))

    def _enter(self, choices: Iterable[Choice]) -> None:
        for choice in choices:
            needed = choice.keep.intersection(self._judge.replay(choice).needed)
            keep = self._judge.values(needed | self._judge.there_anyway)
            self._choices[choice] = Crossing(self._version, keep, self._judge.values(choice.away))

    def _of_kin(self, dims: Dims) -> list[Choice]:
        """What was chosen for the other version, by the storages of this one; without what its loops make for themselves."""
        if self._kin is None:
            return []
        storages = frozenset(self._cutter.storages) - self._judge.unkept

        def own(crossing: Crossing, values: frozenset[int]) -> frozenset[int]:
            return self._judge.storages(self._version.own(crossing.version.theirs(values))) & storages

        crossings = [weighed.crossing for weighed in self._kin.at(dims)]
        return [Choice(own(crossing, crossing.keep), own(crossing, crossing.away)) for crossing in crossings]


class Ways:
    """Choices one after the other, each told what the one before it really takes."""

    def __init__(self, found: Iterable[Weighed], room: Room | None) -> None:
        self._found, self._room = sorted(found, key=lambda w: w.order), room
        self._excess = 0

    def told(self, take: Take) -> None:
        """The last choice really takes this much."""
        if self._room is not None:
            self._excess += max(self._room.level(take) - self._room.peak, self._room.peak // 500)

    def refuse(self, crossing: Crossing) -> None:
        """There is no program for the last choice."""
        self._found = [w for w in self._found if w.crossing != crossing]

    def __iter__(self) -> Iterator[Crossing]:
        room = self._room or Room(0, 0)
        tried: set[Crossing] = set()
        while self._found:
            fresh = (w for w in self._found if w.crossing not in tried)
            fitting = None if self._room is None or len(tried) >= GUESSES else next(filter(self._fits, fresh), None)
            choice = fitting or min(self._found, key=lambda w: room.beyond(w.take))
            if choice.crossing in tried:
                return
            tried.add(choice.crossing)
            yield choice.crossing
            if fitting is None and choice in self._found:
                return

    def _fits(self, choice: Weighed) -> bool:
        assert self._room is not None
        room = self._room
        return room.level(choice.take) <= room.peak - self._excess and choice.take.kept <= room.kept
