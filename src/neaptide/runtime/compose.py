"""The plan of a whole step: the graphs that it called, one after the other, on one timeline.

In: a session's latest calls and what is resident. Out: a `Plan`. Forwards run in order, backwards in reverse. What is resident
spans everything; what one graph hands to the next is one memory, counted where it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neaptide.axes import Flow
from neaptide.graph import Graph
from neaptide.memory import Span, bytes_at, spans, turn_of
from neaptide.plans import GraphPlan, Plan, RegionPlan
from neaptide.program import Loop, Rerun, Run
from neaptide.runtime.ledger import Resident
from neaptide.shapes import rows_of, shapes_of
from neaptide.timeline import Life, Timeline
from neaptide.timing import seconds

if TYPE_CHECKING:
    from neaptide.runtime.runner import Dims, Rung, Unit
    from neaptide.runtime.session import Session


def make_plan(session: Session, resident: Sequence[Resident]) -> Plan:
    """The `Plan` of the graphs that the session called last."""
    parts: list[_Part] = []
    for unit in session.recent:
        unit.catch_up()
        rung = unit.current or session.choose(unit, unit.last)
        labels, found = spans(rung.usual)
        parts.append(_Part(unit, rung, labels, found, turn_of(rung.usual)))
    graphs = tuple(_graph_plan(part.unit, part.rung, part.unit.last) for part in parts)
    return Plan(session.budget.limit, graphs, _Step(parts, resident).timeline())


@dataclass(eq=False)
class _Part:
    """One graph of the step, and where its forward and backward begin in the steps of all."""

    unit: Unit
    rung: Rung
    labels: tuple[str, ...]
    spans: tuple[Span, ...]
    turn: int
    forward: int = 0
    backward: int = 0

    def at(self, step: int) -> int:
        """A step of this graph among the steps of all."""
        return step + (self.forward if step < self.turn else self.backward - self.turn)

    def after(self, step: int) -> int:
        """The end of a life in this graph among the steps of all: right after its last step."""
        return self.at(step - 1) + 1


class _Step:
    def __init__(self, parts: list[_Part], resident: Sequence[Resident]) -> None:
        self.parts, self.resident = parts, resident
        self.labels: list[str] = []
        for part in parts:
            part.forward = len(self.labels)
            self.labels += part.labels[: part.turn]
        for part in reversed(parts):
            part.backward = len(self.labels)
            self.labels += part.labels[part.turn :]
        self.end = len(self.labels)
        self.owned = any(r.kind in ("parameter", "buffer") for r in resident)

    def timeline(self) -> Timeline:
        lives = [Life(r.name, r.kind, r.bytes, 0, self.end, r.path) for r in self.resident]
        counted: set[int] = set()
        for part in self.parts:
            taken = bytes_at(part.rung.usual.graph, part.unit.last)
            for span in part.spans:
                dies = self._dies(part, span, counted)
                born = 0 if span.lent else part.at(span.born)
                if dies > born and (size := taken(span)):
                    lives.append(Life(span.name, span.kind, size, born, dies, span.path, span.source))
        return Timeline(tuple(self.labels), tuple(lives))

    def _dies(self, part: _Part, span: Span, counted: set[int]) -> int:
        """Where a span ends in the whole step; 0 where it is counted elsewhere."""
        if span.lent:
            return self._lent(part, span, counted)
        if span.dies < len(part.labels):
            return part.after(span.dies)
        if span.kind == "gradient" and self._flows_on(part, span):
            return part.after(span.dies)
        users = self._users(part, span) if span.kind == "output" else []
        if not users:
            return self.end
        last = users[-1]
        kept = last.unit.graph.trains and self._is_saved(part, span, last)
        return last.after(len(last.labels)) if kept else last.forward + last.turn

    def _lent(self, part: _Part, span: Span, counted: set[int]) -> int:
        if span.kind in ("parameter", "buffer") and self.owned:
            return 0
        memory = _memory(part.unit.given, part, span)
        handed = {m for other in self.parts for m in other.unit.handed.values()}
        if memory is None:
            return self.end
        if memory in handed or memory in counted:
            return 0
        counted.add(memory)
        return self.end

    def _users(self, part: _Part, span: Span) -> list[_Part]:
        """The later graphs that take an output of this one."""
        memory = _memory(part.unit.handed, part, span)
        later = self.parts[self.parts.index(part) + 1 :]
        return [p for p in later if memory is not None and memory in p.unit.given.values()]

    def _is_saved(self, part: _Part, span: Span, user: _Part) -> bool:
        memory = _memory(part.unit.handed, part, span)
        return any(user.unit.given.get(v) == memory for v in user.rung.usual.saved)

    def _flows_on(self, part: _Part, span: Span) -> bool:
        """Whether a gradient goes to an earlier graph, where it is counted as its tangent."""
        graph = part.unit.graph
        handed = {m for other in self.parts for m in other.unit.handed.values()}
        for given, gradient in zip(graph.inputs, graph.gradients, strict=False):
            if gradient is not None and graph.values[gradient].storage == span.storage:
                return part.unit.given.get(given) in handed
        return False


def _memory(memories: dict[int, int], part: _Part, span: Span) -> int | None:
    """The memory of a span, by the values of its storage that were seen at run time."""
    values = part.rung.usual.graph.values
    return next((m for v, m in memories.items() if values[v].storage == span.storage), None)


def _region_plan(graph: Graph, loop: Loop, dims: Dims) -> RegionPlan:
    """A loop in words: where in the model it is, what it cuts, into how many parts."""
    shapes = shapes_of(graph).at(dims)
    extent = shapes.sizes[loop.extent]
    paths = dict.fromkeys(graph.ops[part.op].path for part in loop.parts)
    first = next((made for made in loop.made if isinstance(made.how, Flow)), loop.made[0])
    dim = first.how.dim if isinstance(first.how, Flow) else -1
    whole = sum(spec.nbytes for part in loop.parts for v in graph.ops[part.op].outputs if (spec := shapes.spec(v)))
    return RegionPlan(
        common_path([path for path in paths if path]),
        graph.values[first.value].name,
        dim,
        str(graph.sizes.expressions[loop.extent]),
        extent,
        -(-extent // loop.chunk),
        rows_of(extent, loop.chunk),
        len(loop.parts),
        whole,
    )


def common_path(paths: Sequence[str]) -> str:
    """The first and last of the modules that a region runs through."""
    return paths[0] if len(set(paths)) == 1 else f"{paths[0]} to {paths[-1]}" if paths else ""


def _graph_plan(unit: Unit, rung: Rung, dims: Dims) -> GraphPlan:
    graph, steps = rung.usual.graph, rung.usual.steps
    return GraphPlan(
        graph.name,
        {s.origin: d for s, d in zip(graph.sizes.symbols, dims, strict=True)},
        dict(graph.fixed),
        rung.name,
        sum(isinstance(step, Run) for step in steps),
        rung.reruns,
        sum(isinstance(step, (Run, Rerun)) and step.onto is not None for step in steps),
        rung.kept(dims) if graph.trains else 0,
        rung.peak(dims),
        (*graph.notes, *unit.notes),
        rung.rewrites,
        tuple(_region_plan(graph, loop, dims) for loop in rung.loops),
        seconds(rung.usual, dims),
        _sent(rung, dims),
    )


def _sent(rung: Rung, dims: Dims) -> int:
    """Bytes that a rung sends away."""
    shapes = shapes_of(rung.usual.graph).at(dims) if rung.usual.away else None
    return sum(spec.nbytes for v in rung.usual.away if shapes and (spec := shapes.spec(v)))
