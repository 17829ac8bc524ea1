"""The one judge of bytes: a program to its timeline at one size, and to its envelope over all sizes at once.

In: a program, and concrete dims. Out: `timeline`, with every storage's life, and `Envelope`: peak(dims) = max(A @ u(dims)),
where u are the bytes of the graph's distinct sizes and each row of A counts, for one step, how many storages of each are
alive. Rows that another row dominates are pruned, so that a new size costs microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neaptide.allocator import allocated
from neaptide.graph import Graph
from neaptide.instances import Instances
from neaptide.program import Program, Rerun, Run, Turn
from neaptide.timeline import Kind, Life, Timeline


@dataclass(frozen=True, slots=True)
class Span:
    """One instance of a storage, or one op's workspace: alive in the executed steps `born <= step < dies`."""

    name: str
    size: int
    kind: Kind
    born: int
    dies: int
    path: str
    source: str
    lent: bool
    storage: int | None = None


def turn_of(program: Program) -> int:
    """How many executed steps come before the turn."""
    return sum(isinstance(step, (Run, Rerun)) for step in program.steps[: program.turn])


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
            labels.append(("again: " if isinstance(step, Rerun) else "") + op.label)
            if op.workspace != graph.nothing:
                found.append(Span(op.name, op.workspace, "workspace", now, now + 1, op.path, op.source, False))
        elif isinstance(step, Turn):
            turn = len(labels)
        fresh, dead = memory.follow(step)
        now = max(len(labels) - 1, 0) if isinstance(step, (Run, Rerun)) else len(labels)
        born.update(dict.fromkeys(fresh, now))
        dies.update((instance, now + 1) for instance in fresh if memory.values[instance] == 0 and isinstance(step, Rerun))
        if dead is not None:
            dies[dead] = len(labels)
    end = len(labels)
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
        if stop > start:
            about = (storage.path, storage.source, lent, memory.storage[instance])
            found.append(Span(storage.name, storage.size, kind, start, stop, *about))
    return tuple(labels), tuple(found)


def timeline(program: Program, dims: Sequence[int]) -> Timeline:
    """Bytes alive at each step of `program` at the sizes `dims`."""
    labels, found = spans(program)
    sizes = bytes_of(program.graph, dims)
    lives = (Life(s.name, s.kind, sizes[s.size], s.born, s.dies, s.path, s.source) for s in found)
    return Timeline(labels, tuple(life for life in lives if life.bytes))


def bytes_of(graph: Graph, dims: Sequence[int]) -> list[int]:
    """What the allocator takes for each distinct size of `graph` at `dims`."""
    return [allocated(n, graph.device) for n in graph.sizes.evaluate(dims)]


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """The peak of a program, beyond what is lent to it, at every size at once."""

    graph: Graph
    columns: np.ndarray
    rows: np.ndarray
    saved: np.ndarray

    def __repr__(self) -> str:
        return f"Envelope({self.graph!r}, {len(self.rows)} rows of {len(self.columns)} sizes)"

    def peak(self, dims: Sequence[int]) -> int:
        """Bytes at the highest step at the sizes `dims`; parameters, buffers and inputs are not in it."""
        return int((self.rows @ self._bytes(dims)).max(initial=0))

    def kept(self, dims: Sequence[int]) -> int:
        """Bytes that the forward leaves behind: what is saved for the backward, and its outputs."""
        return int(self.saved @ self._bytes(dims))

    def _bytes(self, dims: Sequence[int]) -> np.ndarray:
        every = self.graph.sizes.evaluate(dims)
        return np.array([allocated(every[c], self.graph.device) for c in self.columns], dtype=np.int64)


def envelope(program: Program) -> Envelope:
    """The `Envelope` of a program: its live sets as integer rows over the distinct sizes, dominated rows pruned."""
    labels, found = spans(program)
    own = [s for s in found if not s.lent]
    columns = sorted({s.size for s in own})
    place = {size: i for i, size in enumerate(columns)}
    change = np.zeros((len(labels) + 1, len(columns)), dtype=np.int64)
    for s in own:
        change[s.born, place[s.size]] += 1
        change[s.dies, place[s.size]] -= 1
    rows = change.cumsum(axis=0)[:-1]
    turn = turn_of(program)
    at_turn = np.zeros(len(columns), dtype=np.int64)
    for s in own:
        if s.born < turn < s.dies or (s.born < turn == s.dies == len(labels)):
            at_turn[place[s.size]] += 1
    return Envelope(program.graph, np.array(columns, dtype=np.int64), _undominated(rows), at_turn)


def _undominated(rows: np.ndarray) -> np.ndarray:
    """The rows that no other row is at least as large as in every column."""
    rows = np.unique(rows, axis=0)
    rows = rows[np.argsort(-rows.sum(axis=1), kind="stable")]  # a row can only be dominated by one before it
    kept = np.empty_like(rows)
    count = 0
    for row in rows:
        if not (kept[:count] >= row).all(axis=1).any():
            kept[count] = row
            count += 1
    return kept[:count].copy()
