"""What a legal program is: every value is there when it is read, none after its drop or once overwritten, all dropped once."""

from __future__ import annotations

from collections.abc import Iterator

from neaptide.errors import NeaptideError
from neaptide.instances import Instances
from neaptide.program import Copy, Drop, Mark, Program, Rerun, Run, Same, Step, Turn


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
    for step in program.steps:
        match step:
            case Run(index, onto) | Rerun(index, onto):
                op = graph.ops[index]
                yield from ((step, f"{names[v]} is not there") for v in op.inputs if v not in memory.home)
                yield from ((step, f"{names[v]} was overwritten") for v in op.inputs if v in stale)
                already = (v for v in op.outputs if v in memory.home and v not in handed)
                yield from ((step, f"{names[v]} is there already") for v in already)
                if isinstance(step, Rerun) and op.once:
                    yield step, "must not run twice"
                if isinstance(step, Rerun) and op.random and index not in marked:
                    yield step, "is random, and its generator was not marked"
                if onto is not None:
                    if onto not in op.inputs:
                        yield step, "can only write over its own input"
                    stale |= {v for v, home in memory.home.items() if home == memory.home[onto]}
                stale -= set(op.outputs)
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
                stale -= program.copies
            case Copy(value):
                if value not in memory.home or value in stale:
                    yield step, "is not there to copy"
            case Same(_, value):
                if value not in memory.home or value in stale:
                    yield step, f"{names[value]} is not there"
        memory.follow(step)
    yield from ((None, f"{names[v]} is not there") for v in handed if v not in memory.home or v in stale)
    yield from ((None, f"{names[v]} was never dropped") for v in memory.home if v not in lent | handed)
