"""Chunk = `Loop`: regions of a graph run in parts.

In: a program, regions with their chunks, and the ops that are to be made again for each use. Out: a program.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from neaptide.graph import Graph
from neaptide.program import Program, with_drops
from neaptide.steps import Copy, Drop, Fetch, Loop, Mark, Rerun, Run, Send, Step, Turn, makes, reads, with_inner_drops

if TYPE_CHECKING:
    from neaptide.search.chunk import Region


def chunk(program: Program, chosen: Sequence[tuple[Region, int]], late: Collection[int] = ()) -> Program:
    """The program with the chosen regions run in parts; `write_in_place`, which comes next, checks it.

    All ops of a region are in the program, needed or not. In a training program a region lies on one side of the turn, and
    nothing is `late`.
    """
    steps = _Writer(program, chosen, frozenset(late)).steps()
    return with_drops(program.graph, _needed(program, steps), program.absent, program.carried)


class _Writer:
    def __init__(self, program: Program, chosen: Sequence[tuple[Region, int]], late: frozenset[int]) -> None:
        self.program, self.graph, self.late = program, program.graph, late
        self.regions = {op: (region, size) for region, size in chosen for op in range(region.start, region.stop)}
        self.written: list[Step] = []
        self.made: set[int] = set()

    def steps(self) -> list[Step]:
        todo = [step for step in self.program.steps if not isinstance(step, Drop)]
        position = 0
        while position < len(todo):
            step = todo[position]
            position += 1
            if not isinstance(step, Run):
                self.written.append(step)
            elif step.op in self.regions:
                region, size = self.regions[step.op]
                position = self._put_region(region, size, todo, position - 1)
            elif step.op not in self.late:
                self._run(step.op)
        self._fetch([v for v in self.graph.outputs if v is not None])
        return self.written

    def _put_region(self, region: Region, size: int, todo: Sequence[Step], first: int) -> int:
        """The loop instead of the region's own steps, after whatever else lies between them; and where to go on."""
        own = [i for i in range(first, len(todo)) if _runs_in(todo[i], region)]
        self.written.extend(step for step in todo[first : own[-1]] if not _runs_in(step, region))
        for inner in region.before:
            if inner not in self.late:
                self._run(inner)
        loop = loop_of(self.graph, region, size)
        self._fetch(reads(self.graph, loop))
        self.written.append(loop)
        for inner in region.after:
            self._run(inner)
        return own[-1] + 1

    def _run(self, op: int) -> None:
        self._fetch(self.graph.ops[op].inputs)
        self.written.append(Rerun(op) if op in self.made else Run(op))
        self.made.add(op)

    def _fetch(self, values: Sequence[int]) -> None:
        """Make the late values that are read next, each for this use alone."""
        wanted: list[int] = []
        todo = [self.graph.maker[v] for v in values]
        while todo:
            op = todo.pop()
            if op is not None and op in self.late and op not in wanted:
                wanted.append(op)
                todo.extend(self.graph.maker[v] for v in self.graph.ops[op].inputs)
        for op in sorted(wanted):
            self.written.append(Rerun(op) if op in self.made else Run(op))
            self.made.add(op)


def loop_of(graph: Graph, region: Region, size: int) -> Loop:
    """A region as a step."""
    kept = [m.value for m in region.made if m.onto is not None]
    return Loop(region.extent, size, with_inner_drops(graph, region.parts, kept), region.made)


def _runs_in(step: Step, region: Region) -> bool:
    return isinstance(step, Run) and region.start <= step.op < region.stop


def _needed(program: Program, steps: Sequence[Step]) -> list[Step]:
    """The steps whose results are read later or handed out, and those with an effect of their own."""
    graph = program.graph
    wanted = set(program.handed)
    away: set[int] = set()
    kept: list[Step] = []
    for step in reversed(steps):
        effect = isinstance(step, Run) and (graph.ops[step.op].once or graph.ops[step.op].random)
        fetched = isinstance(step, Send) and step.value in away
        if effect or fetched or isinstance(step, (Turn, Mark, Copy)) or any(v in wanted for v in makes(graph, step)):
            wanted.update(reads(graph, step))
            kept.append(step)
            if isinstance(step, Fetch):
                away.add(step.value)
    return _run_first(kept[::-1])


def _run_first(steps: Sequence[Step]) -> list[Step]:
    """The first time that an op runs is no repetition, unless the forward left it to the backward."""
    ran: set[int] = set()
    found: list[Step] = []
    turned = False
    for step in steps:
        turned = turned or isinstance(step, Turn)
        if isinstance(step, (Run, Rerun)) and not turned:
            found.append(Rerun(step.op) if step.op in ran else Run(step.op))
            ran.add(step.op)
        else:
            found.append(step)
    return found
