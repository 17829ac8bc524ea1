"""A graph without a backward at run time: as it is, rewritten, or with regions in parts, whatever fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from neaptide.apply import chunk, reordered, straight, unpruned, write_in_place
from neaptide.emit import emit_inference
from neaptide.graph import Graph, Input
from neaptide.inner.swap import Piece
from neaptide.program import Program
from neaptide.rewrite import rewritten
from neaptide.runtime import recover
from neaptide.runtime.chunking import Chunking
from neaptide.runtime.room import Room
from neaptide.runtime.runner import Dims, Rung, Unit, memories
from neaptide.search.order import better_order
from neaptide.trace import build_graph

if TYPE_CHECKING:
    from neaptide.runtime.session import Session


class Inference(Unit):
    """A graph without a backward. Where it does not fit as it is, a rewritten form of it may, and regions run in parts."""

    def __init__(self, graph: Graph, session: Session, described: Mapping[str, Input]) -> None:
        super().__init__(graph, session)
        self._described = described
        program = write_in_place(straight(graph))
        self.rungs = (Rung(0, "nothing", program),)
        self._found: tuple[Graph, tuple[str, ...]] | None = None
        self._is_reordered = False
        self._made: dict[object, Rung] = {}
        self._pieces: dict[int, Piece] = {}
        self._random = tuple({graph.device for op in graph.ops if op.random})

    def tighter(self, dims: Dims, room: Room | None) -> Rung | None:
        if not self.graph.ops:  # between two breaks there may be nothing but sizes handed on
            return None
        limit = None if room is None else room.peak
        graph, rewrites = self._form(dims)
        whole = None if graph is self.graph else self._rung((), lambda: straight(graph), rewrites)
        fits = whole is not None and limit is not None and whole.peak(dims) <= limit
        if fits and not rewrites:  # another order is enough
            return whole
        ways = self._chunking.ways(dims, limit, self.session.exact)
        found = None
        for way in ways:
            if fits and not ways.pays(way):
                return whole
            rung = self._rung((way.chosen, way.late), lambda way=way: chunk(self._unpruned, way.chosen, way.late), rewrites)
            if limit is not None and rung.peak(dims) <= limit:
                return rung
            ways.told(rung.peak(dims))
            if found is None or rung.peak(dims) < found.peak(dims):
                found = rung
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        found = ["its ops run in another order than they were traced in, for a lower peak"] if self._is_reordered else []
        unlisted = self._chunking.net.unlisted if "_chunking" in self.__dict__ else ()
        if unlisted:
            how = "nobody listed how they can be done in parts; neaptide.axes.flows adds a rule"
            found.append(f"stay whole: {', '.join(unlisted)} ({how})")
        return tuple(found)

    def _form(self, dims: Dims) -> tuple[Graph, tuple[str, ...]]:
        """The graph in the form and order that takes least, where that is the same in meaning; and what was rewritten."""
        if self._found is None:
            graph, rewrites = self._rewritten()
            order = better_order(graph, dims)
            self._is_reordered = order is not None
            self._found = (graph if order is None else reordered(graph, order), rewrites)
        return self._found

    def _rewritten(self) -> tuple[Graph, tuple[str, ...]]:
        """The graph in which what is written out became one op."""
        if self.session.exact or not self.session.rewrite:
            return self.graph, ()
        module, rewrites = rewritten(self.graph.module)
        return (build_graph(module, self._described, name=self.graph.name), rewrites) if rewrites else (self.graph, ())

    @cached_property
    def _unpruned(self) -> Program:
        assert self._found is not None
        return unpruned(self._found[0])

    @cached_property
    def _chunking(self) -> Chunking:
        assert self._found is not None
        return Chunking(self._found[0])

    def _rung(self, key: object, program: Callable[[], Program], rewrites: tuple[str, ...]) -> Rung:
        if key not in self._made:
            made = write_in_place(program())
            self._made[key] = Rung(len(self._made) + 1, "nothing", made, rewrites=rewrites)
        return self._made[key]

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self.graph.mutated:  # what is half overwritten cannot be tried again
            return self._run(args)
        return recover.forward(self.session, self._run, args, self._random)

    def _run(self, args: list[Any]) -> Sequence[Any]:
        call = self.call(args)
        rung = call.rung
        piece = self._pieces.get(rung.number)
        if piece is None:
            emit = partial(emit_inference, rung.program)
            piece = self._pieces[rung.number] = Piece(rung.program, 0, emit, self.session.lowering)
        results = self.session.run(piece.at(self.last, self.allowed(rung.take(self.last).peak)), args)
        self.session.ran()
        call.handed = memories(results)
        return results
