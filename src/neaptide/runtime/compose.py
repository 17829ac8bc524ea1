"""The plan of a whole step: the graphs that it called, one after the other, on one timeline.

Forwards run in order, backwards in reverse. What is resident spans everything; what one graph hands to the next is counted
where it was made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide.memory import bytes_of, spans
from neaptide.plans import GraphPlan, Plan
from neaptide.program import Program, Rerun, Run
from neaptide.timeline import Life, Timeline

if TYPE_CHECKING:
    from neaptide.runtime.runner import Dims, Rung, Unit
    from neaptide.runtime.session import Session


def make_plan(session: Session) -> Plan:
    """The `Plan` of the graphs that the session called last."""
    units = [unit for unit in session.recent if unit.last in unit.chosen]
    graphs = tuple(_graph_plan(unit, unit.chosen[unit.last], unit.last) for unit in units)
    return Plan(session.budget.limit, graphs, _step(session, units))


def _graph_plan(unit: Unit, rung: Rung, dims: Dims) -> GraphPlan:
    graph, steps = unit.graph, rung.usual.steps
    return GraphPlan(
        graph.name,
        {s.origin: d for s, d in zip(graph.sizes.symbols, dims, strict=True)},
        graph.fixed,
        rung.name,
        sum(isinstance(step, Run) for step in steps),
        rung.reruns,
        sum(isinstance(step, (Run, Rerun)) and step.onto is not None for step in steps),
        rung.envelope.kept(dims) if graph.trains else 0,
        rung.envelope.peak(dims),
        graph.notes,
    )


def _step(session: Session, units: list[Unit]) -> Timeline:
    """One timeline: every forward in order, then every backward in reverse."""
    followed = [(unit, *spans(unit.chosen[unit.last].usual)) for unit in units]
    turns = [_turn(unit.chosen[unit.last].usual) for unit in units]
    forward = [0]
    for turn in turns:
        forward.append(forward[-1] + turn)
    backward, end = [0] * len(units), forward[-1]
    for position in reversed(range(len(units))):
        backward[position] = end
        end += len(followed[position][1]) - turns[position]
    labels = [label for (_, all_labels, _), turn in zip(followed, turns, strict=True) for label in all_labels[:turn]]
    for (_, all_labels, _), turn in reversed(list(zip(followed, turns, strict=True))):
        labels += all_labels[turn:]
    lives: list[Life] = []
    known = session.ledger.resident()
    owned = known["parameter"] > 0
    for position, (unit, all_labels, found) in enumerate(followed):
        turn, size = turns[position], bytes_of(unit.graph, unit.last)
        before, after = forward[position], backward[position] - turn
        for span in found:
            if span.lent and owned and span.kind in ("parameter", "buffer"):
                continue
            born = span.born + (before if span.born < turn else after)
            dies = span.dies + (before if span.dies <= turn and unit.graph.trains else after)
            if span.lent:
                born, dies = 0, end
            elif span.dies == len(all_labels):
                dies = end
            if size[span.size] and dies > born:
                lives.append(Life(span.name, span.kind, size[span.size], born, dies, span.path, span.source))
    lives += [Life(f"all {kind}s" if kind != "other" else "reserve", kind, n, 0, end) for kind, n in known.items() if n]
    return Timeline(tuple(labels), tuple(lives))


def _turn(program: Program) -> int:
    return sum(isinstance(step, (Run, Rerun)) for step in program.steps[: program.turn])
