"""The versions of a joint graph: as it was traced, with its loss in parts, and with its wide places in parts too.

In: a traced joint graph. Out: versions, each of which turns a choice of what crosses the turn into a program. They share names:
what one keeps under a name is what the other would, so that a backward for which a version has no program (one where other
tangents flow than usual) can run as it was traced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from neaptide.apply import add_gradients, chunk, marked, recompute, usually_absent, without, write_in_place
from neaptide.axes import Flow
from neaptide.emit import Slots
from neaptide.graph import Graph, Input
from neaptide.program import Program
from neaptide.rewrite.known import take_known_sizes
from neaptide.rewrite.rows import by_rows
from neaptide.search.chunk.regions import Region
from neaptide.search.recompute import keep_all
from neaptide.search.tail import has_loss, loss_regions
from neaptide.search.wide import gathered, wide_regions, widened
from neaptide.trace import build_graph

PART = 4 << 20
"""Bytes of the largest that one part of a region has, about."""
FEWEST, MORE = 64, 128
"""Rows of a part at least, of a loss (whose rows are long) and of a wide place: with fewer, products are slow."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """Values that come from forward to backward, by the names of a version: kept, or by way of where they are sent."""

    version: Version
    keep: frozenset[int]
    away: frozenset[int] = frozenset()


class Version:
    """A joint graph as it was traced."""

    rewrites: tuple[str, ...] = ()
    again: frozenset[int] = frozenset()
    """Values that the backward makes for itself, part by part: none of them is kept."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def own(self, values: Iterable[int]) -> frozenset[int]:
        """Values of the traced graph, as far as they are in this one."""
        return frozenset(values)

    def theirs(self, values: Iterable[int]) -> frozenset[int]:
        """Values of this graph, as far as they are in the traced one."""
        return frozenset(values)

    def slots(self, slots: Slots) -> Slots:
        """The slots of the traced graph, by the values and ops of this one."""
        return slots

    def serves(self, absent: frozenset[int]) -> bool:
        """Whether there are programs for backwards in which these tangents, of the traced graph, are absent."""
        return True

    def everything(self, absent: frozenset[int], added: frozenset[int] = frozenset()) -> Program:
        """The program that keeps all that its backward reads."""
        return usual(recompute(self.graph, keep_all(self.graph)), absent, added)

    def program(
        self,
        crossing: Crossing,
        changing: Collection[int],
        absent: frozenset[int] = frozenset(),
        added: frozenset[int] = frozenset(),
    ) -> Program | None:
        """The program of a choice, in which nothing flows from `absent` tangents and some gradients are `added` to what is
        there; None where there is none."""
        return write_in_place(usual(self.as_traced(crossing, changing), absent, added))

    def as_traced(self, crossing: Crossing, changing: Collection[int]) -> Program:
        """The program of the traced graph that runs after the same forward."""
        return recompute(self.graph, crossing.keep, changing, crossing.away)


class InParts(Version):
    """A joint graph with regions in parts, for backwards in which the usual tangents are absent: those of its `loss`, in the
    forward and in the backward, and `wide` ones of the backward."""

    def __init__(
        self, graph: Graph, traced: Graph, loss: Sequence[Region], wide: Sequence[Region], absent: frozenset[int]
    ) -> None:
        super().__init__(graph)
        self._traced, self._absent = traced, absent
        self._chosen = [(region, _units(graph, region, FEWEST)) for region in loss]
        if loss:
            rows = self._chosen[0][1]
            self.rewrites += (f"the loss is made in parts of {rows} rows, and the sums of gradients over them in as many",)
        self._chosen += [(region, _units(graph, region, MORE)) for region in wide]
        if wide:
            self.rewrites += (
                f"{len(wide)} wide places of the backward are made in parts, and the sums of gradients over them",
            )
        inner = {v for region in loss[:1] for part in region.parts for v in graph.ops[part.op].outputs}
        self._inner = inner - {made.value for region in loss[:1] for made in region.made}
        remade = (part.op for region in wide for part in region.parts if part.op < region.start)
        self.again = frozenset(v for op in remade for v in graph.ops[op].outputs)

    @cached_property
    def _own(self) -> Mapping[str, int]:
        return {value.name: number for number, value in enumerate(self.graph.values)}

    @cached_property
    def _theirs(self) -> Mapping[str, int]:
        return {value.name: number for number, value in enumerate(self._traced.values)}

    def own(self, values: Iterable[int]) -> frozenset[int]:
        found = (self._own.get(self._traced.values[v].name) for v in values)
        return frozenset(v for v in found if v is not None)

    def theirs(self, values: Iterable[int]) -> frozenset[int]:
        found = (self._theirs.get(self.graph.values[v].name) for v in values)
        return frozenset(v for v in found if v is not None)

    @cached_property
    def _ops(self) -> Mapping[str, int]:
        return {op.name: number for number, op in enumerate(self.graph.ops)}

    def _marks(self, traced: Program) -> frozenset[int]:
        """The random ops that a program of the traced graph runs again, as they are called here."""
        return frozenset(self._ops[name] for m in traced.marks if (name := self._traced.ops[m].name) in self._ops)

    def slots(self, slots: Slots) -> Slots:
        tensors, sizes = (
            tuple(None if v is None else self._own.get(self._traced.values[v].name) for v in group)
            for group in (slots.tensors, slots.sizes)
        )
        marks = tuple(None if m is None else self._ops.get(self._traced.ops[m].name) for m in slots.marks)
        return Slots(tensors, slots.ranks, marks, sizes)

    def serves(self, absent: frozenset[int]) -> bool:
        return absent == self._absent

    def everything(self, absent: frozenset[int], added: frozenset[int] = frozenset()) -> Program:
        program = recompute(self.graph, keep_all(self.graph) - self._inner - self.again)
        return usual(chunk(usual(program, self.own(self._absent)), self._chosen), added=added)

    def program(
        self,
        crossing: Crossing,
        changing: Collection[int],
        absent: frozenset[int] = frozenset(),
        added: frozenset[int] = frozenset(),
    ) -> Program | None:
        traced = self.as_traced(crossing, changing)
        plain = marked(recompute(self.graph, crossing.keep, self.own(changing), crossing.away), self._marks(traced))
        program = usual(plain, self.own(self._absent))
        program = replace(program, carried=program.carried | self.own(traced.saved))
        program = write_in_place(usual(chunk(program, self._chosen), added=added))
        return program if self.own(traced.copies) <= program.copies else None

    def as_traced(self, crossing: Crossing, changing: Collection[int]) -> Program:
        return recompute(self._traced, self.theirs(crossing.keep), changing, self.theirs(crossing.away))


def versions(graph: Graph, described: Mapping[str, Input], in_parts: bool) -> tuple[Version, ...]:
    """The versions of a graph, the traced one first."""
    plain = Version(graph)
    absent = usually_absent(graph)
    if not in_parts:
        return (plain,)
    tangents = [graph.values[v].node.name for v in graph.tangents]

    def changed(wide: frozenset[int]) -> tuple[Graph, Sequence[Region]]:
        module = by_rows(graph, absent, wide)
        take_known_sizes(module)  # what runs again in parts is not to be made whole for its size
        other = build_graph(module, described, len(graph.outputs), tangents, graph.name)
        other = gathered(other) if wide else other
        other, *loss = loss_regions(other) or (other,)
        return other, loss

    found: list[Version] = [plain]
    if has_loss(graph):
        other, loss = changed(frozenset())
        found += [InParts(other, graph, loss, (), absent)] if loss else []
    if wide := widened(graph):
        other, loss = changed(wide)
        regions = wide_regions(other, {op for region in loss for op in range(region.start, region.stop)})
        found += [InParts(other, graph, loss, regions, absent)] if regions else []
    return tuple(found)


def usual(program: Program, absent: frozenset[int] = frozenset(), added: frozenset[int] = frozenset()) -> Program:
    """The program for a backward that lacks the tangents `absent`, and adds the gradients `added` to what is there."""
    program = without(program, absent) if absent else program
    return add_gradients(program, added) if added else program


def _units(graph: Graph, region: Region, fewest: int) -> int:
    """How many units of a region are one part: as many as have about `PART` bytes of the largest, and enough rows."""
    sizes = graph.sizes.evaluate(graph.sizes.hints)
    made = (pair for part in region.parts for pair in zip(graph.ops[part.op].outputs, part.axis.outputs, strict=True))
    flowing = (graph.values[v].storage for v, how in made if isinstance(how, Flow))
    largest = max(sizes[graph.storages[s].size] for s in flowing if s is not None)
    rows = min((sizes[row] for row in region.rows), default=fewest)
    return max(PART * sizes[region.extent] // max(largest, 1), -(-fewest // max(rows, 1)), 1)
