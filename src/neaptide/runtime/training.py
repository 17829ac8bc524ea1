"""A graph with its backward at run time: the forward chooses, the backward does as it chose.

In: the boxed arguments of a forward or a backward. Out: its results. What a forward chose travels to its backward as the
shape of a header tensor that is saved with the rest, so that any number of calls may be under way, and user hooks on saved
tensors do no harm.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from neaptide._torch import autograd_context, current_autograd_node, current_backward
from neaptide.apply import recompute, write_in_place
from neaptide.emit import Slots, emit_backward, emit_forward
from neaptide.graph import Graph, Input, spec_of
from neaptide.inner.swap import Piece
from neaptide.program import Program
from neaptide.runtime import recover
from neaptide.runtime.across import STORE, new_store
from neaptide.runtime.choosing import Choosing, as_traced
from neaptide.runtime.ledger import Saved
from neaptide.runtime.runner import Call, Dims, Rung, memories
from neaptide.runtime.sums import sums_of, watch
from neaptide.runtime.version import Version

if TYPE_CHECKING:
    from neaptide.runtime.session import Session


class Training(Choosing):
    """A graph with its backward, called."""

    def __init__(
        self, graph: Graph, session: Session, keeps: Mapping[str, frozenset[int]], described: Mapping[str, Input]
    ) -> None:
        super().__init__(graph, session, keeps, described)
        self._forwards: dict[int, Piece] = {}
        self._backwards: dict[tuple[int, frozenset[int], bool], tuple[Piece, frozenset[int], frozenset[int]]] = {}
        self._random = tuple({graph.device for op in graph.ops if op.random})
        self._ran: dict[Dims, Rung] = {}
        """The rung of the last call at each size."""

    def repeated(self, dims: Dims) -> Rung | None:
        """Inside a backward a checkpoint repeats a forward, which has to save what it saved then."""
        return self._ran.get(dims) if current_backward() != -1 else None

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
        emitted = self._forward_piece(rung).at(self.last, self.allowed(rung.take(self.last).front))
        header = torch.empty(rung.number + 1, 0, *self.last)
        if emitted.takes_store:
            args.insert(0, new_store(header if context is None else context))
        results = list(self.session.run(emitted, args))
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
        emitted = piece.at(tuple(dims), self.allowed(rung.take(tuple(dims)).back))
        args[:0] = [store, *dims] if emitted.takes_store else dims
        args += sums if added and sums is not None else ()
        del sums
        results = self.session.run(emitted, args)
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

    def get_ready(self, rung: Rung) -> None:
        self._forward_piece(rung)
        self._backward_piece(rung, rung.absent, bool(rung.usual.added))

    def _forward_piece(self, rung: Rung) -> Piece:
        """The code of a rung's forward."""
        if rung.number not in self._forwards:
            emit = partial(emit_forward, rung.program, self._slots_of(rung))
            self._forwards[rung.number] = Piece(rung.program, 0, emit, self.session.lowering)
        return self._forwards[rung.number]

    def _backward_piece(self, rung: Rung, absent: frozenset[int], adds: bool) -> tuple[Piece, frozenset[int], frozenset[int]]:
        """The code, the tangents that it does without, and the gradients that it adds to what is there."""
        key = (rung.number, absent, adds)
        if key not in self._backwards:
            version, program = self._backward_program(rung, absent, adds)
            emit = partial(emit_backward, program, version.slots(self.slots))
            piece = Piece(program, program.turn, emit, self.session.lowering)
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
        program = self.program_of(crossing, changing, absent)
        if program is not None:
            return crossing.version, program
        return traced, self._usual(as_traced(crossing, changing), absent)

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
