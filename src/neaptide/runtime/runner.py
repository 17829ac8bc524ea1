"""One captured graph at run time: the sizes of a call choose a rung, the rung's pieces run.

In: the boxed arguments of a call. Out: its results. What a forward chose travels to its backward as the shape of a header
tensor that is saved with the rest, so that any number of calls may be under way, and user hooks on saved tensors do no harm.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from neaptide._torch import autograd_context, current_backward
from neaptide.apply import chunk, recompute, straight, unpruned, without, write_in_place
from neaptide.emit import Emitted, emit_backward, emit_forward, emit_inference
from neaptide.graph import Graph, Input, spec_of
from neaptide.memory import Envelope, envelope, kept_at_turn, peak_beyond
from neaptide.program import Loop, Program, Rerun
from neaptide.rewrite import rewritten
from neaptide.runtime.chunking import Chunking
from neaptide.trace import build_graph

if TYPE_CHECKING:
    from neaptide.runtime.session import Session

Dims = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Rung:
    """One way to run a graph: what it recomputes, its program, and the peak that follows at every size."""

    number: int
    name: str
    program: Program
    usual: Program
    """The program with the tangents that are usually absent left out: what a step is expected to take."""

    rewrites: tuple[str, ...] = ()
    """What was put in for something else of the same meaning."""

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        return tuple(step for step in self.usual.steps if isinstance(step, Loop))

    @cached_property
    def _envelope(self) -> Envelope:
        return envelope(self.usual)

    def peak(self, dims: Dims) -> int:
        """Bytes at the highest step, beyond parameters, buffers and inputs."""
        return peak_beyond(self.usual, dims) if self.loops else self._envelope.peak(dims)

    def kept(self, dims: Dims) -> int:
        """Bytes that the forward leaves behind."""
        return kept_at_turn(self.usual, dims) if self.loops else self._envelope.kept(dims)

    @cached_property
    def reruns(self) -> int:
        return sum(isinstance(step, Rerun) for step in self.usual.steps)


class Unit:
    """What inference and training graphs share: reading the sizes off the arguments, and the rung for them."""

    def __init__(self, graph: Graph, session: Session) -> None:
        self.graph, self.session = graph, session
        self.rungs: tuple[Rung, ...] = ()
        self.chosen: dict[Dims, Rung] = {}
        self.kept: dict[Dims, int] = {}
        self.last: Dims = ()
        self.given: dict[int, int] = {}
        """For each input of the last call at new sizes, which memory it was in."""
        self.handed: dict[int, int] = {}
        """The same for the outputs: what one graph hands to the next is one memory."""
        self._where = graph.places

    @cached_property
    def customary(self) -> Envelope:
        """What PyTorch itself would take at best."""
        return self.rungs[0]._envelope

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the plan should know of how it was found."""
        return ()

    def tighter(self, dims: Dims, room: int | None) -> Rung | None:
        """A way to run that takes no more than `room`, beyond the rungs; without a room, the one that takes least."""
        return None

    def catch_up(self) -> None:
        """Go on with what earlier calls taught."""

    def rung(self, args: Sequence[Any]) -> Rung:
        """The rung for a call: a look-up where the sizes were seen before."""
        dims = self.last = tuple([args[i] if d is None else args[i].shape[d] for i, d in self._where])
        found = self.chosen.get(dims)
        if found is None:
            found = self.session.choose(self, dims)
            self.kept[dims] = found.kept(dims)
            self.chosen[dims] = found
            self.given = _memories(found.program.graph.inputs, args)
            self.handed = {}
        self.session.called(self)
        return found


class Inference(Unit):
    """A graph without a backward. Where it does not fit as it is, a rewritten form of it may, and regions run in parts."""

    def __init__(self, graph: Graph, session: Session, described: Mapping[str, Input]) -> None:
        super().__init__(graph, session)
        self._described = described
        program = write_in_place(straight(graph))
        self.rungs = (Rung(0, "nothing", program, program),)
        self._made: dict[object, Rung] = {}
        self._pieces: dict[int, Emitted] = {}

    def tighter(self, dims: Dims, room: int | None) -> Rung | None:
        graph, rewrites = self._rewritten
        if rewrites and room is not None:
            plain = self._rung((), lambda: straight(graph), rewrites)
            if plain.peak(dims) <= room:
                return plain
        ways = self._chunking.ways(dims, room, self.session.exact)
        found = None
        for way in ways:
            rung = self._rung((way.chosen, way.late), lambda way=way: chunk(self._unpruned, way.chosen, way.late), rewrites)
            if room is not None and rung.peak(dims) <= room:
                return rung
            ways.told(rung.peak(dims))
            if found is None or rung.peak(dims) < found.peak(dims):
                found = rung
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        unlisted = self._chunking.net.unlisted if "_chunking" in self.__dict__ else ()
        how = "nobody listed how they can be done in parts; neaptide.axes.flows adds a rule"
        return (f"stay whole: {', '.join(unlisted)} ({how})",) if unlisted else ()

    @cached_property
    def _rewritten(self) -> tuple[Graph, tuple[str, ...]]:
        """The graph in which what is written out became one op, where that is the same in meaning; and what was rewritten."""
        if self.session.exact or not self.session.rewrite:
            return self.graph, ()
        module, rewrites = rewritten(self.graph.module)
        return (build_graph(module, self._described, name=self.graph.name), rewrites) if rewrites else (self.graph, ())

    @cached_property
    def _unpruned(self) -> Program:
        return unpruned(self._rewritten[0])

    @cached_property
    def _chunking(self) -> Chunking:
        return Chunking(self._rewritten[0])

    def _rung(self, key: object, program: Callable[[], Program], rewrites: tuple[str, ...]) -> Rung:
        if key not in self._made:
            made = write_in_place(program())
            self._made[key] = Rung(len(self._made) + 1, "nothing", made, made, rewrites)
        return self._made[key]

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        rung = self.rung(args)
        piece = self._pieces.get(rung.number)
        if piece is None:
            piece = self._pieces[rung.number] = emit_inference(rung.program)
        results = self.session.run(piece, args)
        if not self.handed:
            self.handed = _memories(rung.program.graph.outputs, results)
        return results


class Training(Unit):
    """A graph with its backward. Rungs are numbered and never forgotten, since a backward may come late."""

    def __init__(self, graph: Graph, session: Session, keeps: Mapping[str, frozenset[int]]) -> None:
        super().__init__(graph, session)
        self._keeps = keeps
        self._ever: list[Rung] = []
        self._due: Sequence[Program] | None = None
        self._forwards: dict[int, Emitted] = {}
        self._backwards: dict[tuple[int, frozenset[int]], tuple[Emitted, frozenset[int]]] = {}
        self._absent = _guess_absent(graph)
        self._changing = graph.mutated
        programs = [write_in_place(recompute(graph, keep, graph.mutated)) for keep in keeps.values()]
        self.slots, self.sizes, self.marks = _superset(graph, programs)
        self._watched = _only_recomputed(graph, programs)
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

    def _set(self, programs: Sequence[Program]) -> None:
        """Go on with these programs, one for each of the starting points."""
        self.chosen.clear()
        made = []
        for name, program in zip(self._keeps, programs, strict=True):
            usual = self._without(program, self._absent)
            made.append(Rung(len(self._ever), name, program, usual))
            self._ever.append(made[-1])
        self.rungs = tuple(made)

    def _without(self, program: Program, absent: frozenset[int]) -> Program:
        return write_in_place(without(program, absent)) if absent else program

    def forward(self, args: list[Any]) -> list[Any]:
        self.catch_up()
        rung = self.rung(args)
        versions = self._versions(args) if self._watched else None
        context = autograd_context()
        if context is not None:
            context.set_materialize_grads(False)
        piece = self._forwards.get(rung.number)
        if piece is None:
            piece = emit_forward(rung.program, self.slots, self.marks, self.sizes)
            self._forwards[rung.number] = piece
        results = list(self.session.run(piece, args))
        if not self.handed:
            self.handed = _memories(self.graph.outputs, results)
        header = torch.empty(rung.number + 1, 0, *self.last)
        if versions is not None:
            header.neaptide_versions = versions  # type: ignore[attr-defined]
        self.session.ledger.save(header, self.kept[self.last])
        results.insert(len(self.graph.outputs), header)
        return results

    def backward(self, args: list[Any]) -> Sequence[Any]:
        self.session.turned()
        header = args.pop(len(self.sizes))
        number, _, *dims = header.shape
        rung = self._ever[number - 1]
        if self._watched:
            self._settle(getattr(header, "neaptide_versions", None))
        del header  # the ledger strikes off what this call saved when the last reference to it goes
        first = len(args) - len(self.graph.tangents)
        absent = frozenset(v for v, t in zip(self.graph.tangents, args[first:], strict=True) if t is None)
        piece, skipped = self._backward_piece(rung, absent)
        for position, value in enumerate(self.graph.tangents, first):
            if value in absent and value not in skipped:
                args[position] = self._zeros(value, dims)
        args[:0] = dims
        results = self.session.run(piece, args)
        if absent != self._absent:
            self._absent = absent
            self._due = self._due or [r.program for r in self.rungs]
        if absent:
            expected = zip(results, self.graph.gradients, strict=True)
            results = [self._zeros(v, dims) if r is None and v is not None else r for r, v in expected]
        return results

    def _backward_piece(self, rung: Rung, absent: frozenset[int]) -> tuple[Emitted, frozenset[int]]:
        found = self._backwards.get((rung.number, absent))
        if found is None:
            program = self._without(rung.program, absent)
            found = (emit_backward(program, self.slots, self.marks, self.sizes), program.absent)
            self._backwards[rung.number, absent] = found
        return found

    def _zeros(self, value: int, dims: Sequence[int]) -> torch.Tensor:
        """Zeros in the shape of a value, for a tangent or gradient that has to be there."""
        fake = self.graph.values[value].fake
        shape = self.graph.sizes.shape(spec_of(fake).shape, dims)
        return torch.zeros(shape, dtype=fake.dtype, device=fake.device)

    def _versions(self, args: Sequence[Any]) -> list[tuple[int, weakref.ref[torch.Tensor], int]]:
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


def _memories(values: Sequence[int | None], tensors: Sequence[Any]) -> dict[int, int]:
    """Which memory each value is in, as a number that is equal where the memory is the same."""
    pairs = zip(values, tensors, strict=False)
    return {v: t.untyped_storage()._cdata for v, t in pairs if v is not None and isinstance(t, torch.Tensor)}


def _guess_absent(graph: Graph) -> frozenset[int]:
    """The tangents that the first step is expected to lack: with a scalar output, a loss, all others."""
    scalars = [v for v in graph.tangents if graph.values[v].fake.dim() == 0]
    return frozenset(v for v in graph.tangents if v not in scalars) if scalars else frozenset()


def _superset(graph: Graph, programs: Sequence[Program]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The tensors, the sizes and the random ops that any of the programs carries across the turn.

    Tensors that autograd is not to check for changes stand last, as AOTAutograd wants them.
    """
    saved = dict.fromkeys(v for p in programs for v in p.saved)
    tensors = [v for v in saved if isinstance(graph.values[v].fake, torch.Tensor)]
    tensors.sort(key=lambda v: bool(graph.holders[v].meta.get("saved_tensor_with_no_vc_check")))
    sizes = [v for v in saved if graph.values[v].storage is None]
    marks = dict.fromkeys(m for p in programs for m in p.marks)
    return tuple(tensors), tuple(sizes), tuple(marks)


def _only_recomputed(graph: Graph, programs: Sequence[Program]) -> frozenset[int]:
    """The inputs that a backward reads only in order to recompute: eager does not save them, so they may be changed.

    They are copied until one whole step has shown that they stay as they are. Parameters are taken to stay.
    """
    extra = {v for p in programs[1:] for v in p.saved} - set(programs[0].saved) - graph.mutated
    storages = {v: graph.values[v].storage for v in extra if v in graph.inputs}
    return frozenset(v for v, s in storages.items() if s is not None and graph.storages[s].kind in ("input", "buffer"))
