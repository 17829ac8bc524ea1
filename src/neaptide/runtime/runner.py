"""One captured graph at run time: the sizes of a call choose a rung, the rung's pieces run.

In: the boxed arguments of a call. Out: its results. What a forward chose travels to its backward as the shape of a header
tensor that is saved with the rest, so that any number of calls may be under way, and user hooks on saved tensors do no harm.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from neaptide.apply import recompute, straight, write_in_place
from neaptide.capture import refuse_compiled_autograd
from neaptide.emit import Emitted, emit_backward, emit_forward, emit_inference
from neaptide.graph import Graph
from neaptide.memory import Envelope, envelope
from neaptide.program import Program, Rerun

if TYPE_CHECKING:
    from neaptide.runtime.session import Session

Dims = tuple[int, ...]


@dataclass(eq=False)
class Rung:
    """One way to run a graph: what it recomputes, its program, the peak that follows at every size."""

    number: int
    name: str
    program: Program

    @cached_property
    def envelope(self) -> Envelope:
        return envelope(self.program)

    @cached_property
    def reruns(self) -> int:
        return sum(isinstance(step, Rerun) for step in self.program.steps)


class Unit:
    """What inference and training graphs share: reading the sizes off the arguments, and the plan for them."""

    def __init__(self, graph: Graph, session: Session) -> None:
        self.graph, self.session = graph, session
        self.chosen: dict[Dims, Rung] = {}
        self.last: Dims = ()
        self._where = _places(graph)

    def dims(self, args: Sequence[Any]) -> Dims:
        """The sizes of a call, in the order of the graph's symbols."""
        return tuple([args[i] if d is None else args[i].shape[d] for i, d in self._where])

    def rung(self, args: Sequence[Any]) -> Rung:
        """The rung for a call: a look-up where the sizes were seen before."""
        dims = self.last = self.dims(args)
        found = self.chosen.get(dims)
        if found is None:
            found = self.chosen[dims] = self.session.choose(self, dims)
        return found

    @property
    def rungs(self) -> Sequence[Rung]:
        raise NotImplementedError


class Inference(Unit):
    """A graph without a backward."""

    def __init__(self, graph: Graph, session: Session) -> None:
        super().__init__(graph, session)
        self._rungs = (Rung(0, "nothing", write_in_place(straight(graph))),)
        self._pieces: dict[int, Emitted] = {}

    @property
    def rungs(self) -> Sequence[Rung]:
        return self._rungs

    def piece(self, rung: Rung) -> Emitted:
        """The emitted code of a rung."""
        found = self._pieces.get(rung.number)
        if found is None:
            found = self._pieces[rung.number] = emit_inference(rung.program)
        return found

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        rung = self.rung(args)
        self.session.called(self)
        return self.piece(rung).run(args)


class Training(Unit):
    """A graph with its backward. Variants are numbered and never forgotten, since a backward may come late."""

    def __init__(self, graph: Graph, session: Session, keeps: Mapping[str, frozenset[int]]) -> None:
        super().__init__(graph, session)
        self._keeps = keeps
        self._variants: list[Rung] = []
        self._pieces: dict[int, tuple[Emitted, Emitted]] = {}
        self._watched: frozenset[int] | None = None
        self._rungs = self._build(graph.mutated)
        programs = [r.program for r in self._rungs]
        self.slots, self.sizes, self.marks = _superset(graph, programs)
        plain = {v for p in programs[1:] for v in p.saved} - set(programs[0].saved) - graph.mutated
        watched = frozenset(v for v in plain if v in graph.inputs and _kind(graph, v) == "input")
        if watched:  # an input that only recomputation reads is copied until it was seen to stay as it is
            self._watched = watched
            self._rungs = self._build(graph.mutated | watched)

    @property
    def rungs(self) -> Sequence[Rung]:
        return self._rungs

    def _build(self, changing: frozenset[int]) -> tuple[Rung, ...]:
        self.chosen.clear()
        made = []
        for name, keep in self._keeps.items():
            program = write_in_place(recompute(self.graph, keep, changing))
            made.append(Rung(len(self._variants), name, program))
            self._variants.append(made[-1])
        return tuple(made)

    def pieces(self, rung: Rung) -> tuple[Emitted, Emitted]:
        """The emitted forward and backward of a rung."""
        found = self._pieces.get(rung.number)
        if found is None:
            carried = (self.slots, self.marks, self.sizes)
            found = (emit_forward(rung.program, *carried), emit_backward(rung.program, *carried))
            self._pieces[rung.number] = found
        return found

    def forward(self, args: list[Any]) -> list[Any]:
        rung = self.rung(args)
        versions = None if self._watched is None else self._versions(args)
        self.session.called(self)
        results = list(self.pieces(rung)[0].run(args))
        header = torch.empty(rung.number + 1, 0)
        if versions is not None:
            header.neaptide_versions = versions  # type: ignore[attr-defined]
        self.session.ledger.save(header, rung.envelope.kept(self.last))
        results.insert(len(self.graph.outputs), header)
        return results

    def backward(self, args: list[Any]) -> Sequence[Any]:
        refuse_compiled_autograd()
        header = args.pop(len(self.sizes))
        rung = self._variants[header.shape[0] - 1]
        if self._watched is not None:
            self._settle(getattr(header, "neaptide_versions", None))
        return self.pieces(rung)[1].run(args)

    def _versions(self, args: Sequence[Any]) -> list[tuple[int, weakref.ref[torch.Tensor], int]]:
        assert self._watched is not None
        inputs = {v: args[i] for i, v in enumerate(self.graph.inputs)}
        return [(v, weakref.ref(inputs[v]), inputs[v]._version) for v in self._watched]

    def _settle(self, versions: list[tuple[int, weakref.ref[torch.Tensor], int]] | None) -> None:
        """After the first backward: copy on only those inputs that were seen to change between forward and backward."""
        if versions is None:
            return
        held = [(v, ref(), version) for v, ref, version in versions]
        changed = {v for v, tensor, version in held if tensor is not None and tensor._version != version}
        self._watched = None
        self._rungs = self._build(self.graph.mutated | changed)


def _kind(graph: Graph, value: int) -> str:
    storage = graph.values[value].storage
    return "size" if storage is None else graph.storages[storage].kind


def _places(graph: Graph) -> list[tuple[int, int | None]]:
    """Where among the arguments each symbol can be read: as an int, or as a dim of a tensor."""
    found: dict[str, tuple[int, int | None]] = {}
    for position, value in enumerate(graph.inputs):
        fake = graph.values[value].fake
        if isinstance(fake, torch.SymInt):
            found[str(fake.node.expr)] = (position, None)
        elif isinstance(fake, torch.Tensor):
            for dim, size in enumerate(fake.shape):
                found.setdefault(str(size), (position, dim))
    return [found[s.name] for s in graph.sizes.symbols]


def _superset(graph: Graph, programs: Sequence[Program]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The tensors, the sizes and the random ops that any of the programs carries across the turn."""
    saved = dict.fromkeys(v for p in programs for v in p.saved)
    tensors = [v for v in saved if isinstance(graph.values[v].fake, torch.Tensor)]
    unchecked = [bool(graph.holders[v].meta.get("saved_tensor_with_no_vc_check")) for v in tensors]
    slots = [v for v, free in zip(tensors, unchecked, strict=True) if not free]
    slots += [v for v, free in zip(tensors, unchecked, strict=True) if free]
    sizes = [v for v in saved if graph.values[v].storage is None]
    marks = dict.fromkeys(m for p in programs for m in p.marks)
    return tuple(slots), tuple(sizes), tuple(marks)
