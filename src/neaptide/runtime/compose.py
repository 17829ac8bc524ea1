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
from neaptide.runtime.ledger import Resident
from neaptide.shapes import rows_of, shapes_of
from neaptide.steps import Loop, Rerun, Run
from neaptide.timeline import Life, Timeline
from neaptide.timing import seconds

if TYPE_CHECKING:
    from neaptide.runtime.runner import Call, Dims, Rung, Unit
    from neaptide.runtime.session import Session


def make_plan(session: Session, resident: Sequence[Resident]) -> Plan:
    """The `Plan` of the graphs that the session called last."""
    parts: list[_Part] = []
    saved = 0
    for place, call in enumerate(session.steps.calls):
        call.unit.catch_up()
        rung = call.rung if call.unit.knows(call) else session.choose(call, saved, place)
        saved += rung.take(call.dims).kept
        labels, found = spans(rung.usual)
        parts.append(_Part(call, rung, labels, found, turn_of(rung.usual)))
    graphs = tuple(_graph_plan(part.call.unit, part.rung, part.call.dims) for part in parts)
    return Plan(session.budget.limit, graphs, _Step(parts, resident).timeline())


@dataclass(eq=False)
class _Part:
    """One graph of the step, and where its forward and backward begin in the steps of all."""

    call: Call
    rung: Rung
    labels: tuple[str, ...]
    spans: tuple[Span, ...]
    turn: int
    forward: int = 0
    backward: int = 0

    @property
    def graph(self) -> Graph:
        return self.rung.usual.graph

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
        self.accumulates = any(r.kind == "gradient" for r in resident)
        self.handed = {m for part in parts for m in part.call.handed if m is not None}

    def timeline(self) -> Timeline:
        lives = [Life(r.name, r.kind, r.bytes, 0, self.end, r.path) for r in self.resident]
        counted: set[int] = set()
        for part in self.parts:
            taken = bytes_at(part.graph, part.call.dims)
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
        if span.dies < len(part.labels) or span.kind not in ("output", "gradient"):
            return part.after(span.dies)
        if span.kind == "gradient" and (self._flows_on(part, span) or self._is_added(part, span)):
            return part.after(span.dies)
        users = self._users(part, span) if span.kind == "output" else []
        if not users or part.call.held:
            return self.end
        last = users[-1]
        kept = last.graph.trains and self._is_saved(part, span, last)
        return last.after(len(last.labels)) if kept else last.forward + last.turn

    def _lent(self, part: _Part, span: Span, counted: set[int]) -> int:
        if span.kind in ("parameter", "buffer") and self.owned:
            return 0
        memory = _memory(part.graph.inputs, part.call.given, part, span)
        if memory is None:
            return self.end
        if memory in self.handed or memory in counted:
            return 0
        counted.add(memory)
        return self.end

    def _users(self, part: _Part, span: Span) -> list[_Part]:
        """The later graphs that take an output of this one."""
        memory = _memory(part.graph.outputs, part.call.handed, part, span)
        later = self.parts[self.parts.index(part) + 1 :]
        return [p for p in later if memory is not None and memory in p.call.given]

    def _is_saved(self, part: _Part, span: Span, user: _Part) -> bool:
        memory = _memory(part.graph.outputs, part.call.handed, part, span)
        saved = set(user.rung.usual.saved)
        return any(m == memory and v in saved for v, m in zip(user.graph.inputs, user.call.given, strict=False))

    def _flows_on(self, part: _Part, span: Span) -> bool:
        """Whether a gradient goes to an earlier graph, where it is counted as its tangent."""
        return _memory(part.graph.gradients, part.call.given, part, span) in self.handed

    def _is_added(self, part: _Part, span: Span) -> bool:
        """Whether a gradient is added to one that is there: from before the step, or from a later call."""
        memory = _memory(part.graph.gradients, part.call.given, part, span)
        later = self.parts[self.parts.index(part) + 1 :]
        return self.accumulates or any(memory in other.call.gradients for other in later)


def _memory(values: Sequence[int | None], memories: Sequence[int | None], part: _Part, span: Span) -> int | None:
    """The memory of a span, by the one of `values` that is in its storage and in one of the `memories`."""
    known = part.graph.values
    pairs = zip(values, memories, strict=False)
    return next((m for v, m in pairs if v is not None and known[v].storage == span.storage), None)


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
        rung.take(dims).kept,
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
