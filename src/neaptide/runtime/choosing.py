"""Which program a graph with its backward runs as: the starting points, and whatever the versions of it let cross the turn.

In: a joint graph; then dims and the room there is. Out: rungs, each made when it is first wanted. What a backward teaches
(which tangents are absent, which inputs change, that gradients are there to be added to) makes all of them anew.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from neaptide._torch import current_backward
from neaptide.apply import recompute, usually_absent, write_in_place
from neaptide.graph import Graph, Input
from neaptide.memory import Envelope, envelope
from neaptide.program import Program
from neaptide.report.progress import progress
from neaptide.runtime.across import only_recomputed, superset
from neaptide.runtime.recomputing import Recomputing, Ways, Weighed
from neaptide.runtime.room import Room
from neaptide.runtime.runner import Dims, Rung, Unit
from neaptide.runtime.stock import LARGE, PATIENT, about_as_fast, worth_making
from neaptide.runtime.sums import are_averaged, of_parameters
from neaptide.runtime.version import Crossing, Version, usual, versions
from neaptide.search.chain import Take

if TYPE_CHECKING:
    from neaptide.runtime.session import Session


class Choosing(Unit):
    """The rungs of a graph with its backward. They are numbered and never forgotten, since a backward may come late."""

    def __init__(
        self, graph: Graph, session: Session, keeps: Mapping[str, frozenset[int]], described: Mapping[str, Input]
    ) -> None:
        super().__init__(graph, session)
        self._keeps = keeps
        self._versions = versions(graph, described, session.bounded and not session.exact)
        self._ever: list[Rung] = []
        self._due: Sequence[Program] | None = None
        self._absent = usually_absent(graph)
        self._changing = graph.mutated
        self._added: frozenset[int] = frozenset()
        self._addable = of_parameters(graph) if session.bounded and not session.exact else frozenset()
        """Which gradients the backward adds to what is there, now and where there is something."""
        self._alone: bool | None = None if self._addable else False
        """Whether parameters get no other gradients than those; None until a backward has shown it."""
        self._ladders: dict[frozenset[int], tuple[Rung, ...]] = {}
        self._stocked = False
        self._begun = False
        """Whether a size has got its program since the last budget; those after it do not wait for theirs."""
        self._waiting: dict[Dims, int] = {}
        """The sizes that run a program made for others, and how often they did."""
        self._tight: dict[tuple[Crossing, frozenset[int]], Rung] = {}
        self._searches: dict[tuple[Version, frozenset[int], frozenset[int], frozenset[int]], Recomputing] = {}
        self._origins: dict[int, tuple[Crossing, frozenset[int]]] = {}
        """For the rungs of other versions than the traced one, the choice and the inputs that changed then."""
        programs = [write_in_place(recompute(graph, keep, graph.mutated)) for keep in keeps.values()]
        extremes = [recompute(graph, frozenset(), graph.mutated)] if session.bounded else []
        searches = self._searches_now if session.bounded else []
        self.slots = superset(graph, [*programs, *extremes], {v for search in searches for v in search.candidates})
        self._watched = only_recomputed(graph, [*programs, *extremes])
        if self._watched:
            self._changing |= self._watched
            programs = [write_in_place(recompute(graph, keep, self._changing)) for keep in keeps.values()]
        self._set(programs)

    @cached_property
    def customary(self) -> Envelope:
        """The last starting point (PyTorch's own, where it could say) with nothing written in place or left out."""
        *_, keep = self._keeps.values()
        return envelope(recompute(self.graph, keep, self.graph.mutated))

    def catch_up(self) -> None:
        """Go on with what the last backward taught, but not inside a backward: a checkpoint repeats its forward there."""
        if self._due is not None and current_backward() == -1:
            programs, self._due = self._due, None
            self._set(programs)
        adds = self._alone and self.session.ledger.accumulates and not are_averaged()
        self._added = self._addable if adds else frozenset()
        self.rungs = self._ladders.get(self._added) or self._ladder()

    def forget(self) -> None:
        super().forget()
        self._begun = False
        self._waiting.clear()

    def comes(self, dims: Dims) -> None:
        """A size that comes again and again gets a program of its own, where another would be a little faster."""
        if dims in self._waiting:
            self._waiting[dims] += 1
            if self._waiting[dims] == PATIENT + 1:
                self.chosen = {situation: call for situation, call in self.chosen.items() if call.dims != dims}

    def _set(self, programs: Sequence[Program]) -> None:
        """Go on with these programs, one for each of the starting points."""
        self.forget()
        self._tight.clear()
        self._stocked = False
        self._ladders.clear()
        self._programs = programs
        self.rungs = self._ladder()

    def _ladder(self) -> tuple[Rung, ...]:
        """The starting points as rungs, for the gradients that are added now."""
        made = []
        for name, program in zip(self._keeps, self._programs, strict=True):
            expected = self._usual(program, self._absent, self._added)
            made.append(Rung(len(self._ever), name, expected, partial(_itself, program), self._absent))
            self._ever.append(made[-1])
        self._ladders[self._added] = tuple(made)
        return tuple(made)

    def situation(self, dims: Dims) -> Hashable:
        """Under a budget also what earlier calls left there."""
        if not self.session.bounded:
            return dims
        ledger = self.session.ledger
        return (dims, ledger.saved, ledger.accumulates, self.session.steps.informed)

    def tighter(self, dims: Dims, room: Room | None) -> Rung | None:
        if not self.session.bounded:
            return None
        found = [choice for search in self._searches_now for choice in search.at(dims)]
        is_large = len(self.graph.ops) >= LARGE
        if is_large and self.session.steps.informed and not self._stocked:
            self._make_ahead(found, dims)
        hurries = is_large and room is not None and self._begun and self._waiting.get(dims, 0) <= PATIENT
        self._begun = self.session.steps.informed
        ways = Ways(found, room)
        tried = []
        for crossing in ways:
            rung = self._instead(crossing, found, dims, room) if hurries and room is not None else None
            if rung is not None:
                self._waiting.setdefault(dims, 1)
            rung = rung or self._letting(crossing)
            if rung is None:
                ways.refuse(crossing)
                continue
            if room is not None and room.holds(rung.take(dims)):
                return rung
            ways.told(rung.take(dims))
            tried.append(rung)
        target = room or Room(0, 0)
        return min(tried, key=lambda rung: target.beyond(rung.take(dims)), default=None)

    def _make_ahead(self, found: Sequence[Weighed], dims: Dims) -> None:
        """Once a whole step has shown what its backwards are like, have some programs ready for sizes to come."""
        self._stocked = True
        wanted = worth_making(found, self._searches_now[0].whole(dims))
        with progress("making programs ahead", len(wanted) + len(self.rungs)) as advance:
            for rung in (*self.rungs, *map(self._letting, wanted)):
                if rung is not None:
                    rung.take(dims)
                    self.get_ready(rung)
                advance()

    def get_ready(self, rung: Rung) -> None:
        """Have the code of a rung, so that no call waits for it."""

    def _instead(self, crossing: Crossing, found: Sequence[Weighed], dims: Dims, room: Room) -> Rung | None:
        """A rung that is there, where a choice has none yet and a new size should not wait for it."""
        made = {crossing: rung for (crossing, added), rung in self._tight.items() if added == self._added}
        if crossing in made:
            return None
        return about_as_fast(crossing, found, made, self._searches_now[0].whole(dims), lambda rung: room.holds(rung.take(dims)))

    def takes(self, dims: Dims) -> list[Take]:
        if not self.session.bounded:
            return super().takes(dims)
        return [choice.take for search in self._searches_now for choice in search.at(dims)]

    @property
    def _searches_now(self) -> list[Recomputing]:
        """Where choices are sought: in every version that serves backwards like the last."""
        return [self._search(version) for version in self._versions if version.serves(self._absent)]

    def _search(self, version: Version) -> Recomputing:
        about = (version, self._absent, self._changing, self._added)
        if about not in self._searches:
            earlier = (s for (v, absent, *_), s in self._searches.items() if v is version and absent == self._absent)
            seeds, offload = self._keeps.values(), self.session.offload
            kin = None if version is self._versions[0] else self._search(self._versions[0])
            self._searches[about] = Recomputing(version, seeds, *about[1:], next(earlier, None), kin, offload)
        return self._searches[about]

    def _letting(self, crossing: Crossing) -> Rung | None:
        """The rung that lets these values cross the turn and makes the others again."""
        about = (crossing, self._added)
        if about not in self._tight:
            version = crossing.version
            expected = self.program_of(crossing, self._changing, self._absent, self._added)
            if expected is None:
                return None
            traced = version.graph is self.graph
            whole = partial(as_traced, crossing, self._changing) if traced else None
            rung = self._tight[about] = Rung(len(self._ever), "some", expected, whole, self._absent, version.rewrites)
            self._ever.append(rung)
            if not traced:
                self._origins[rung.number] = (crossing, self._changing)
        return self._tight[about]

    def program_of(
        self, crossing: Crossing, changing: Collection[int], absent: frozenset[int], added: frozenset[int] = frozenset()
    ) -> Program | None:
        """The program of a choice; None where there is none, or it would carry what the slots have no place for."""
        version = crossing.version
        program = version.program(crossing, changing, absent, added) if version.serves(absent) else None
        if program is None or version.graph is self.graph:
            return program
        slots = version.slots(self.slots)
        places = {*slots.tensors, *slots.sizes, *version.graph.free_inputs}
        return program if places.issuperset(program.saved) and set(slots.marks).issuperset(program.marks) else None

    def _usual(self, program: Program, absent: frozenset[int], added: frozenset[int] = frozenset()) -> Program:
        """A program for a backward that lacks some tangents and adds some gradients to what is there."""
        return write_in_place(usual(program, absent, added)) if absent or added else program


def _itself(program: Program) -> Program:
    return program


def as_traced(crossing: Crossing, changing: Collection[int]) -> Program:
    """The program of the traced graph, with all tangents, that goes with a choice."""
    return write_in_place(crossing.version.as_traced(crossing, changing))
