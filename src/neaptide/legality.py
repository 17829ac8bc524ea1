"""What a legal program is: every value is there when it is read, none after its drop or once overwritten, all dropped once."""

from __future__ import annotations

from collections.abc import Iterator

from neaptide.axes import Flow
from neaptide.errors import NeaptideError
from neaptide.graph import Graph
from neaptide.instances import Instances
from neaptide.program import Program
from neaptide.steps import Add, Copy, Drop, Fetch, Loop, Mark, Part, Rerun, Run, Same, Send, Step, Turn, reads


class ProgramError(NeaptideError):
    """A program breaks a rule. Always a defect in Neaptide: please report it with the message."""


def check(program: Program) -> Program:
    """The program itself, if it is legal; otherwise a `ProgramError` that names the step and the rule it breaks."""
    for step, broken in _violations(program):
        where = program.describe(step) if step is not None else "at the end"
        raise ProgramError(f"{program.graph.name}: {where}: {broken}")
    return program


def _violations(program: Program) -> Iterator[tuple[Step | None, str]]:
    graph, memory = program.graph, Instances(program)
    names = [v.name for v in graph.values]
    lent = {*graph.inputs, *graph.constants}
    handed = program.handed
    stale: set[int] = set()
    marked: set[int] = set()
    sent: set[int] = set()
    home = memory.home
    for step in program.steps:
        match step:
            case Run(index, onto) | Rerun(index, onto):
                op = graph.ops[index]
                for value in op.inputs:
                    if value not in home:
                        yield step, f"{names[value]} is not there"
                    if value in stale:
                        yield step, f"{names[value]} was overwritten"
                for value in op.outputs:
                    if value in home and value not in handed:
                        yield step, f"{names[value]} is there already"
                if isinstance(step, Rerun) and op.once:
                    yield step, "must not run twice"
                if isinstance(step, Rerun) and op.random and index not in marked:
                    yield step, "is random, and its generator was not marked"
                if onto is not None:
                    if onto not in op.inputs:
                        yield step, "can only write over its own input"
                    stale |= memory.beside(onto)
                stale.difference_update(op.outputs)
            case Drop(value):
                if value not in memory.home:
                    yield step, "is not there to drop"
                if value in lent and value not in program.copies:
                    yield step, "is only lent"
                stale.discard(value)
            case Mark(index):
                marked.add(index)
            case Turn():
                out = [v for v in graph.outputs if v is not None]
                yield from ((step, f"output {names[v]} is not there") for v in out if v not in memory.home or v in stale)
                yield from ((step, f"{names[v]}, which is carried on, was overwritten") for v in program.carried & stale)
                stale -= program.copies
            case Copy(value):
                if value not in memory.home or value in stale:
                    yield step, "is not there to copy"
            case Send(value):
                if value not in memory.home or value in stale:
                    yield step, "is not there to send"
                sent.add(value)
            case Fetch(value):
                if value not in sent:
                    yield step, "was not sent away"
                if value in memory.home:
                    yield step, "is there already"
                stale.discard(value)
            case Same(_, value):
                if value not in memory.home or value in stale:
                    yield step, f"{names[value]} is not there"
            case Add():
                given = reads(graph, step)
                yield from ((step, f"{names[v]} is not there") for v in given if v not in memory.home or v in stale)
            case Loop():
                given = reads(graph, step)
                yield from ((step, f"{names[v]} is not there") for v in given if v not in memory.home or v in stale)
                yield from ((step, f"{names[m.value]} is there already") for m in step.made if m.value in memory.home)
                yield from ((step, broken) for broken in _loop_violations(graph, step))
                for made in step.made:
                    if made.onto is not None and made.onto in memory.home:
                        stale |= memory.beside(made.onto)
        memory.follow(step)
    yield from ((None, f"{names[v]} is not there") for v in handed if v not in memory.home or v in stale)
    yield from ((None, f"{names[v]} was never dropped") for v in memory.home if v not in lent and v not in handed)


def _loop_violations(graph: Graph, loop: Loop) -> Iterator[str]:
    """Each round reads of what it makes exactly the part that it made, and nothing in it has an effect outside."""
    names = [v.name for v in graph.values]
    flows: dict[int, object] = {}
    cuts: dict[int, set[object]] = {}
    for step in loop.body:
        if not isinstance(step, Part):
            if step.value not in flows:
                yield f"{names[step.value]} is not there to drop"
            flows.pop(step.value, None)
            continue
        op = graph.ops[step.op]
        if op.once or op.random or op.writes:
            yield f"{op.name} must not run in a loop"
        for value, flow in zip(graph.operands(step.op), step.axis.inputs, strict=True):
            cuts.setdefault(value, set()).add(flow)
            if value in flows and flows[value] != flow:
                yield f"{op.name} reads {names[value]} along {flow}, which is made along {flows[value]}"
        flows.update(zip(op.outputs, step.axis.outputs, strict=True))
    produced = {v: how for part in loop.parts for v, how in zip(graph.ops[part.op].outputs, part.axis.outputs, strict=True)}
    for made in loop.made:
        if produced.get(made.value) != made.how:
            yield f"{names[made.value]} is not made along {made.how}"
        if made.onto is not None and cuts.get(made.onto) != {made.how}:
            yield f"{names[made.onto]} is written over, but not read along {made.how} alone"
    yield from (f"{names[v]} is left in the body" for v in flows)
    yield from (
        f"{names[v]} is read before it is complete" for v, how in produced.items() if not isinstance(how, Flow) and v in cuts
    )
