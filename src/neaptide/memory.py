"""The one judge of bytes: a program to its timeline at one size, and to its envelope over all sizes at once.

In: a program, and concrete dims. Out: `timeline`, with every storage's life, and `Envelope`, which follows the lives once: a
new size costs a sum over them, in microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from neaptide.allocator import KEPT_PAGES, allocated
from neaptide.axes import Flow
from neaptide.graph import Graph
from neaptide.instances import Instances
from neaptide.program import Program
from neaptide.rounds import ADDED
from neaptide.shapes import Concrete, rows_of, shapes_of
from neaptide.steps import Loop, Part, Rerun, Run, Step, Turn
from neaptide.timeline import Kind, Life, Timeline


@dataclass(frozen=True, slots=True)
class Span:
    """One instance of a storage, or one op's workspace: alive in the executed steps `born <= step < dies`.

    In a `loop` it is one part's: a part of a storage, or the workspace of the op that runs on a `part`.
    """

    name: str
    size: int
    kind: Kind
    born: int
    dies: int
    path: str
    source: str
    lent: bool
    storage: int | None = None
    loop: Loop | None = None
    part: Part | None = None


def executed(step: Step) -> int:
    """How many ops a step executes; in a loop, one round of it."""
    return len(step.parts) if isinstance(step, Loop) else int(isinstance(step, (Run, Rerun)))


def turn_of(program: Program) -> int:
    """How many executed steps come before the turn."""
    return sum(executed(step) for step in program.steps[: program.turn])


@lru_cache(maxsize=32)
def spans(program: Program) -> tuple[tuple[str, ...], tuple[Span, ...]]:
    """The labels of the executed steps, and the span of every instance on the graph's device.

    What is only lent (parameters, buffers, inputs) spans everything. Forward outputs are held by the caller to the end.
    """
    graph, memory = program.graph, Instances(program)
    labels: list[str] = []
    born: dict[int, int] = dict.fromkeys(memory.lent, 0)
    dies: dict[int, int] = {}
    turn = 0
    found: list[Span] = []
    for step in program.steps:
        if isinstance(step, (Run, Rerun)):
            op = graph.ops[step.op]
            now = len(labels)
            labels.append(("again: " if isinstance(step, Rerun) else "") + graph.labels[step.op])
            if op.workspace != graph.nothing:
                found.append(Span(op.name, op.workspace, "workspace", now, now + 1, op.path, op.source, False))
        elif isinstance(step, Turn):
            turn = len(labels)
        elif isinstance(step, Loop):
            found.extend(_inner_spans(graph, step, len(labels)))
        fresh, dead = memory.follow(step)
        now = max(len(labels) - 1, 0) if isinstance(step, (Run, Rerun)) else len(labels)
        if fresh:
            born.update(dict.fromkeys(fresh, now))
            dies.update((instance, now + 1) for instance in fresh if memory.values[instance] == 0 and isinstance(step, Rerun))
        if isinstance(step, Loop):
            labels.extend(f"in parts: {graph.labels[part.op]}" for part in step.parts)
        if dead is not None:
            dies[dead] = len(labels)
    end = len(labels)
    gradients = {memory.home[v]: graph.values[v].storage for v in graph.gradients if v is not None and v in memory.home}
    outputs = {memory.home[v]: graph.values[v].storage for v in graph.outputs if v is not None and v in memory.home}
    for instance, start in born.items():
        storage = graph.storages[memory.storage[instance]]
        if storage.device != graph.device:
            continue
        lent = instance in memory.lent
        stop = dies.get(instance, end)
        kind = storage.kind
        private = kind in ("parameter", "buffer", "input", "other") and not lent  # a copy
        if private or (kind == "temporary" and start < turn < stop):
            kind = "activation"
        home = memory.storage[instance]
        if kind == "temporary" and instance in outputs:  # it was written over with what is handed out
            kind, home = "output", outputs[instance]
        elif kind == "temporary" and instance in gradients:
            kind, home = "gradient", gradients[instance]
        if stop > start:
            about = (storage.path, storage.source, lent, home)
            found.append(Span(storage.name, storage.size, kind, start, stop, *about))
    return tuple(labels), tuple(found)


def _inner_spans(graph: Graph, loop: Loop, start: int) -> Iterator[Span]:
    """What one round of a loop takes beside what it reads from outside and what it makes in the end."""
    outside = {graph.values[v].storage for part in loop.parts for v in graph.ops[part.op].inputs}
    alive: dict[int, int] = {}
    born: dict[int, tuple[int, Loop | None]] = {}
    now = start - 1
    for step in loop.body:
        if isinstance(step, Part):
            now += 1
            op = graph.ops[step.op]
            if op.workspace != graph.nothing or step.axis.beside is not None:
                about = (op.path, op.source, False, None, loop, step)
                yield Span(op.name, op.workspace, "workspace", now, now + 1, *about)
            outside -= {graph.values[v].storage for v in op.outputs if not _is_view(graph, step.op, v)}
            for value, how in zip(op.outputs, step.axis.outputs, strict=True):
                storage = graph.values[value].storage
                if how == "sum" and op.target in ADDED:  # what is multiplied is added to the whole at once
                    continue
                if storage is not None and storage not in outside:
                    alive[storage] = alive.get(storage, 0) + 1
                    born.setdefault(storage, (now, loop if isinstance(how, Flow) else None))
            continue
        storage = graph.values[step.value].storage
        if storage in alive:
            alive[storage] -= 1
            if alive[storage] == 0:
                held, (first, part_of) = graph.storages[storage], born.pop(storage)
                del alive[storage]
                if held.device == graph.device:
                    about = (held.path, held.source, False, storage, part_of)
                    yield Span(held.name, held.size, "temporary", first, now + 1, *about)


def inner_peak(graph: Graph, loop: Loop, dims: Sequence[int]) -> int:
    """The most that one round of a loop takes beside what it reads and what it makes in the end."""
    taken = bytes_at(graph, dims)
    change = np.zeros(len(loop.parts) + 1, dtype=np.int64)
    for span in _inner_spans(graph, loop, 0):
        change[span.born] += taken(span)
        change[span.dies] -= taken(span)
    return int(change.cumsum()[:-1].max(initial=0))


def _is_view(graph: Graph, op: int, value: int) -> bool:
    """Whether an op's result lies in the memory of something that it reads."""
    storage = graph.values[value].storage
    return any(graph.values[v].storage == storage for v in graph.ops[op].inputs)


def timeline(program: Program, dims: Sequence[int]) -> Timeline:
    """Bytes alive at each step of `program` at the sizes `dims`."""
    labels, found = spans(program)
    taken = bytes_at(program.graph, dims)
    lives = (Life(s.name, s.kind, taken(s), s.born, s.dies, s.path, s.source) for s in found)
    return Timeline(labels, tuple(life for life in lives if life.bytes))


def _is_kept(span: Span, turn: int, end: int) -> bool:
    return span.born < turn < span.dies or (span.born < turn == span.dies == end)


def sizes_at(graph: Graph, dims: Sequence[int]) -> list[int]:
    """What the allocator takes for each of the sizes of `graph` at `dims`."""
    return [allocated(n, graph.device) for n in graph.sizes.evaluate(dims)]


def levels_of(begins: np.ndarray, stops: np.ndarray, amounts: np.ndarray, length: int) -> np.ndarray:
    """Bytes alive at each step, of what is born at some steps and gone before others."""
    change = np.bincount(begins, amounts, length + 1) - np.bincount(stops, amounts, length + 1)
    return change.cumsum()[:length].astype(np.int64)


def fresh_pages(begins: np.ndarray, stops: np.ndarray, amounts: np.ndarray, length: int) -> int:
    """Bytes of fresh pages that a step takes in the course of training, from when blocks are made and gone, and their sizes.

    Over some steps the C library keeps as much as small blocks ever took together, and puts larger ones there where they fit.
    """
    large = amounts > KEPT_PAGES
    if not large.any():
        return 0
    kept = levels_of(begins, stops, np.where(large, 0, amounts), length).max(initial=0)
    return int(amounts[large & (amounts > kept)].sum())


def lent_at(graph: Graph, dims: Sequence[int], kinds: Collection[Kind]) -> int:
    """Bytes of what is lent to `graph`, of such kinds, at `dims`."""
    lent = {graph.values[v].storage for v in (*graph.inputs, *graph.constants)} - {None}
    sizes = sizes_at(graph, dims)
    return sum(sizes[graph.held[s]] for s in lent if s is not None and graph.storages[s].kind in kinds)


def bytes_at(graph: Graph, dims: Sequence[int]) -> Callable[[Span], int]:
    """What the allocator takes for a span of `graph` at `dims`."""
    whole = sizes_at(graph, dims)
    known: list[Concrete] = []

    def taken(span: Span) -> int:
        loop = span.loop
        if loop is None:
            return whole[span.size]
        if not known:
            known.append(shapes_of(graph).at(dims))
        (shapes,) = known
        extent = shapes.sizes[loop.extent]
        rows = rows_of(extent, loop.chunk)
        if span.part is not None:
            return allocated(shapes.part_workspace(span.part.op, span.part.axis, rows, extent), graph.device)
        return allocated(-(-shapes.sizes[span.size] * rows // extent), graph.device)

    return taken


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """The peak of a program, beyond what is lent to it, at every size at once."""

    graph: Graph
    size: np.ndarray
    """What each span takes, by the index of the size."""
    in_loops: Mapping[int, Span]
    """Those of them that are of one part only."""
    change: np.ndarray
    """For each span the step that it is born in and the one it is gone in, one after the other."""
    kept: np.ndarray
    """Which of the spans the forward leaves behind."""
    handed: np.ndarray
    """And which of those are handed out and not saved."""
    steps: int
    turn: int

    def __repr__(self) -> str:
        return f"Envelope({self.graph!r}, {self.steps} steps, {len(self.size)} spans)"

    def peak(self, dims: Sequence[int]) -> int:
        """Bytes at the highest step at the sizes `dims`; parameters, buffers and inputs are not in it."""
        return int(self.levels(dims).max(initial=0))

    def levels(self, dims: Sequence[int]) -> np.ndarray:
        """Bytes at each step."""
        return self._levels(self._bytes(dims))

    def there(self, dims: Sequence[int], step: int) -> int:
        """Bytes that are there when a step begins."""
        born, dies = np.split(self.change, 2)
        return int(self._bytes(dims)[(born < step) & (dies > step)].sum())

    def figures(self, dims: Sequence[int]) -> tuple[int, int, int, int]:
        """The peaks of forward and backward; what the forward leaves behind, which is what it saves and its outputs; and how
        much of that are outputs alone."""
        taken = self._bytes(dims)
        levels = self._levels(taken)
        front, back = (int(part.max(initial=0)) for part in (levels[: self.turn], levels[self.turn :]))
        return front, back, int(taken[self.kept].sum()), int(taken[self.handed].sum())

    def _levels(self, taken: np.ndarray) -> np.ndarray:
        change = np.zeros(self.steps + 1, dtype=np.int64)
        np.add.at(change, self.change, np.concatenate([taken, -taken]))
        return change.cumsum()[:-1]

    def _bytes(self, dims: Sequence[int]) -> np.ndarray:
        taken = np.array(sizes_at(self.graph, dims), dtype=np.int64)[self.size]
        if self.in_loops:
            of_part = bytes_at(self.graph, dims)
            taken[list(self.in_loops)] = [of_part(span) for span in self.in_loops.values()]
        return taken


def envelope(program: Program) -> Envelope:
    """The `Envelope` of a program."""
    labels, found = spans(program)
    own, turn, end = [s for s in found if not s.lent], turn_of(program), len(labels)
    saved = {program.graph.values[v].storage for v in program.saved}
    handed = [s.kind == "output" and s.born < turn and s.dies == end and s.storage not in saved for s in own]
    return Envelope(
        program.graph,
        np.array([s.size for s in own], dtype=np.int64),
        {i: s for i, s in enumerate(own) if s.loop is not None},
        np.array([*(s.born for s in own), *(s.dies for s in own)], dtype=np.int64),
        np.array([_is_kept(s, turn, end) for s in own], dtype=bool),
        np.array(handed, dtype=bool),
        end,
        turn,
    )
