"""A graph with its backward at run time: the forward chooses, the backward does as it chose.

In: the boxed arguments of a forward or a backward. Out: its results. What a forward chose travels to its backward as the
shape of a header tensor that is saved with the rest, so that any number of calls may be under way, and user hooks on saved
tensors do no harm.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from neaptide._torch import autograd_context, current_autograd_node, current_backward
from neaptide.apply import recompute, usually_absent, write_in_place
from neaptide.emit import Emitted, Slots, emit_backward, emit_forward
from neaptide.graph import Graph, Input, spec_of
from neaptide.memory import Envelope, envelope
from neaptide.program import Program
from neaptide.report.progress import progress
from neaptide.runtime import recover
from neaptide.runtime.across import STORE, new_store, only_recomputed, superset
from neaptide.runtime.ledger import Saved
from neaptide.runtime.recomputing import Recomputing, Ways, Weighed
from neaptide.runtime.room import Room
from neaptide.runtime.runner import Call, Dims, Rung, Unit, memories
from neaptide.runtime.stock import LARGE, about_as_fast, worth_making
from neaptide.runtime.sums import are_averaged, of_parameters, sums_of, watch
from neaptide.runtime.version import Crossing, Version, usual, versions
from neaptide.search.chain import Take

if TYPE_CHECKING:
    from neaptide.runtime.session import Session


class Training(Unit):
    """A graph with its backward. Rungs are numbered and never forgotten, since a backward may come late."""

    def __init__(
        self, graph: Graph, session: Session, keeps: Mapping[str, frozenset[int]], described: Mapping[str, Input]
    ) -> None:
        super().__init__(graph, session)
        self._keeps = keeps
        self._versions = versions(graph, described, session.bounded and not session.exact)
        self._ever: list[Rung] = []
        self._due: Sequence[Program] | None = None
        self._forwards: dict[int, Emitted] = {}
        self._backwards: dict[tuple[int, frozenset[int], bool], tuple[Emitted, frozenset[int], frozenset[int]]] = {}
        self._absent = usually_absent(graph)
        self._random = tuple({graph.device for op in graph.ops if op.random})
        self._changing = graph.mutated
        self._ran: dict[Dims, Rung] = {}
        """The rung of the last call at each size."""
        self._added: frozenset[int] = frozenset()
        self._addable = of_parameters(graph) if session.bounded and not session.exact else frozenset()
        """Which gradients the backward adds to what is there, now and where there is something."""
        self._alone: bool | None = None if self._addable else False
        """Whether parameters get no other gradients than those; None until a backward has shown it."""
        self._ladders: dict[frozenset[int], tuple[Rung, ...]] = {}
        self._stocked = False
        self._begun = False
        """Whether a size has got its program since the last budget; those after it do not wait for theirs."""
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

    def repeated(self, dims: Dims) -> Rung | None:
        """Inside a backward a checkpoint repeats a forward, which has to save what it saved then."""
        return self._ran.get(dims) if current_backward() != -1 else None

    def tighter(self, dims: Dims, room: Room | None) -> Rung | None:
        if not self.session.bounded:
            return None
        found = [choice for search in self._searches_now for choice in search.at(dims)]
        is_large = len(self.graph.ops) >= LARGE
        if is_large and self.session.steps.informed and not self._stocked:
            self._make_ahead(found, dims)
        hurries = is_large and room is not None and self._begun
        self._begun = self.session.steps.informed
        ways = Ways(found, room)
        tried = []
        for crossing in ways:
            rung = self._instead(crossing, found, dims, room) if hurries and room is not None else None
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
        with progress("making programs ahead", len(wanted)) as advance:
            for crossing in wanted:
                rung = self._letting(crossing)
                if rung is not None:
                    rung.take(dims)
                advance()

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
            expected = version.program(crossing, self._changing, self._absent, self._added)
            if expected is None:
                return None
            traced = version.graph is self.graph
            whole = partial(_as_traced, crossing, self._changing) if traced else None
            rung = self._tight[about] = Rung(len(self._ever), "some", expected, whole, self._absent, version.rewrites)
            self._ever.append(rung)
            if not traced:
                self._origins[rung.number] = (crossing, self._changing)
        return self._tight[about]

    def _usual(self, program: Program, absent: frozenset[int], added: frozenset[int] = frozenset()) -> Program:
        """A program for a backward that lacks some tangents and adds some gradients to what is there."""
        return write_in_place(usual(program, absent, added)) if absent or added else program

    def forward(self, args: list[Any]) -> list[Any]:
        return recover.forward(self.session, self._forward, args, self._random)

    def _forward(self, args: list[Any]) -> list[Any]:
        self.catch_up()
        call = self.call(args)
        rung = self._ran[self.last] = call.rung
        versions = self._seen_versions(args) if self._watched else None
        context = autograd_context()
        if context is not None:
            context.set_materialize_grads(False)
            if rung.usual.added or self._alone is None:
                context.neaptide_parameters = {i: args[i] for i in rung.usual.added or self._addable}
        piece = self._forwards.get(rung.number)
        if piece is None:
            piece = emit_forward(rung.program, self._slots_of(rung))
            self._forwards[rung.number] = piece
        header = torch.empty(rung.number + 1, 0, *self.last)
        if piece.takes_store:
            args.insert(0, new_store(header if context is None else context))
        results = list(self.session.run(piece, args))
        call.handed = memories(results[: len(self.graph.outputs)])
        if versions is not None:
            header.neaptide_versions = versions  # type: ignore[attr-defined]
        saved = Saved(rung.take(self.last).kept, [m for i, m in enumerate(call.given) if i in self._addable])
        self.session.ledger.save(header, saved)
        if context is not None:
            context.neaptide_saved = saved
            context.neaptide_handed = call, [weakref.ref(t) for t in results[: len(self.graph.outputs)] if torch.is_tensor(t)]
        results.insert(len(self.graph.outputs), header)
        return results

    def backward(self, args: list[Any]) -> Sequence[Any]:
        self.session.steps.turned = True
        header = args.pop(len(self.slots.sizes))
        number, _, *dims = header.shape
        rung = self._ever[number - 1]
        if self._watched:
            self._settle(getattr(header, "neaptide_versions", None))
        node = current_autograd_node()
        _look_after(*getattr(node, "neaptide_handed", ()))
        store = getattr(node, STORE, None) or getattr(header, STORE, None)
        sums = self._sums(node) if self._addable else None
        del header  # the ledger strikes off what this call saved when the last reference to it goes
        first = len(args) - len(self.graph.tangents)
        absent = frozenset(v for v, t in zip(self.graph.tangents, args[first:], strict=True) if t is None)
        piece, skipped, added = self._backward_piece(rung, absent, sums is not None)
        for position, value in enumerate(self.graph.tangents, first):
            if value in absent and value not in skipped:
                args[position] = self._zeros(value, dims)
        args[:0] = [store, *dims] if piece.takes_store else dims
        args += sums if added and sums is not None else ()
        del sums
        results = self.session.run(piece, args)
        self.session.ran()
        if self._alone is None:
            watch(getattr(node, "neaptide_parameters", {}), results, self._told)
        if absent != self._absent:
            self._absent = absent
            self._due = self._due or self._programs
        if absent:
            expected = enumerate(zip(results, self.graph.gradients, strict=True))
            results = [self._zeros(v, dims) if r is None and v is not None and i not in added else r for i, (r, v) in expected]
        return results

    def _told(self, alone: bool) -> None:
        """A gradient came to its parameter, alone or with others."""
        self._alone = alone and self._alone is not False

    def _sums(self, node: Any) -> list[torch.Tensor] | None:
        """The gradients that are there and that a backward may add its own to; None where autograd is to do it."""
        ledger, backward = self.session.ledger, current_backward()
        parameters, saved = getattr(node, "neaptide_parameters", None), getattr(node, "neaptide_saved", None)
        if saved is None:
            return None
        found = sums_of(list(parameters.values())) if parameters and ledger.is_alone(saved, backward) else None
        if found is None:
            ledger.flows(saved, backward)
        return found

    def _backward_piece(self, rung: Rung, absent: frozenset[int], adds: bool) -> tuple[Emitted, frozenset[int], frozenset[int]]:
        """The code, the tangents that it does without, and the gradients that it adds to what is there."""
        key = (rung.number, absent, adds)
        if key not in self._backwards:
            version, program = self._backward_program(rung, absent, adds)
            piece = emit_backward(program, version.slots(self.slots))
            self._backwards[key] = (piece, version.theirs(program.absent), frozenset(program.added))
        return self._backwards[key]

    def _backward_program(self, rung: Rung, absent: frozenset[int], adds: bool) -> tuple[Version, Program]:
        """The program whose backward follows the forward of a rung, and the version of the graph that it is of."""
        traced, origin = self._versions[0], self._origins.get(rung.number)
        as_expected = absent == rung.absent and (adds or not rung.usual.added)
        if origin is None:
            return traced, rung.usual if as_expected else self._usual(rung.program, absent)
        crossing, changing = origin
        if as_expected:
            return crossing.version, rung.usual
        program = crossing.version.program(crossing, changing, absent) if crossing.version.serves(absent) else None
        if program is not None:
            return crossing.version, program
        return traced, self._usual(_as_traced(crossing, changing), absent)

    def _slots_of(self, rung: Rung) -> Slots:
        origin = self._origins.get(rung.number)
        return self.slots if origin is None else origin[0].version.slots(self.slots)

    def _zeros(self, value: int, dims: Sequence[int]) -> torch.Tensor:
        """Zeros in the shape of a value, for a tangent or gradient that has to be there."""
        fake = self.graph.values[value].fake
        shape = self.graph.sizes.shape(spec_of(fake).shape, dims)
        return torch.zeros(shape, dtype=fake.dtype, device=fake.device)

    def _seen_versions(self, args: Sequence[Any]) -> list[tuple[int, weakref.ref[torch.Tensor], int]]:
        given = ((v, args[i]) for i, v in enumerate(self.graph.inputs) if v in self._watched)
        owners = ((v, tensor if tensor._base is None else tensor._base) for v, tensor in given)  # a view may die first
        return [(v, weakref.ref(tensor), tensor._version) for v, tensor in owners]

    def _settle(self, versions: list[tuple[int, weakref.ref[torch.Tensor], int]] | None) -> None:
        """After the first backward: go on copying only those inputs that were seen to change since the forward."""
        if versions is None:
            return
        seen = ((v, reference(), version) for v, reference, version in versions)
        changed = {v for v, tensor, version in seen if tensor is not None and tensor._version != version}
        self._watched = frozenset()
        self._changing = self.graph.mutated | changed
        self._due = [write_in_place(recompute(self.graph, keep, self._changing)) for keep in self._keeps.values()]


def _look_after(call: Call | None = None, handed: Sequence[weakref.ref[torch.Tensor]] = ()) -> None:
    """Note whether somebody holds what a call handed out."""
    if call is not None:
        call.held = any(reference() is not None for reference in handed)


def _itself(program: Program) -> Program:
    return program


def _as_traced(crossing: Crossing, changing: Collection[int]) -> Program:
    """The program of the traced graph, with all tangents, that goes with a choice."""
    return write_in_place(crossing.version.as_traced(crossing, changing))
