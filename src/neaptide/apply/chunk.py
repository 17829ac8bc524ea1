"""Chunk = `Loop`: regions of a graph run in parts.

In: a graph, regions with their chunks, and the ops that are to be made again for each use. Out: a program.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from neaptide.graph import Graph
from neaptide.program import Loop, Program, Rerun, Run, Step, makes, reads, with_drops, with_inner_drops

if TYPE_CHECKING:
    from neaptide.search.chunk import Region


def chunk(graph: Graph, chosen: Sequence[tuple[Region, int]], late: Collection[int] = ()) -> Program:
    """The inference program in which the chosen regions run in parts; `write_in_place`, which comes next, checks it."""
    return with_drops(graph, _needed(graph, _Writer(graph, chosen, frozenset(late)).steps()))


class _Writer:
    def __init__(self, graph: Graph, chosen: Sequence[tuple[Region, int]], late: frozenset[int]) -> None:
        self.graph, self.late = graph, late
        self.regions = {region.start: (region, size) for region, size in chosen}
        self.written: list[Step] = []
        self.made: set[int] = set()

    def steps(self) -> list[Step]:
        op = 0
        while op < len(self.graph.ops):
            if op not in self.regions:
                if op not in self.late:
                    self._run(op)
                op += 1
                continue
            region, size = self.regions[op]
            for inner in region.before:
                if inner not in self.late:
                    self._run(inner)
            loop = loop_of(self.graph, region, size)
            self._fetch(reads(self.graph, loop))
            self.written.append(loop)
            for inner in region.after:
                self._run(inner)
            op = region.stop
        self._fetch([v for v in self.graph.outputs if v is not None])
        return self.written

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


def _needed(graph: Graph, steps: Sequence[Step]) -> list[Step]:
    """The steps whose results are read later or handed out, and those with an effect of their own."""
    wanted = {v for v in graph.outputs if v is not None}
    kept: list[Step] = []
    for step in reversed(steps):
        effect = isinstance(step, Run) and (graph.ops[step.op].once or graph.ops[step.op].random)
        if effect or any(v in wanted for v in makes(graph, step)):
            wanted.update(reads(graph, step))
            kept.append(step)
    return _run_first(kept[::-1])


def _run_first(steps: Sequence[Step]) -> list[Step]:
    """The first time that an op runs is no repetition."""
    ran: set[int] = set()
    found: list[Step] = []
    for step in steps:
        if isinstance(step, (Run, Rerun)):
            found.append(Rerun(step.op) if step.op in ran else Run(step.op))
            ran.add(step.op)
        else:
            found.append(step)
    return found
