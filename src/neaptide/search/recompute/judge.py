"""A training step replayed on storages alone: what a choice of what to keep takes, in bytes and seconds, in milliseconds.

In: a joint graph, and the inputs that a backward reads from a copy; then dims; then the storages to keep. Out: bytes at each
step, the peak, and what is run again. It follows `apply.recompute` and `apply.inplace` step by step, and the timeline of the
program that they make of a choice says the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neaptide.allocator import allocated
from neaptide.apply import recompute, without
from neaptide.apply.inplace import overwritable
from neaptide.graph import Graph
from neaptide.hardware import Machine
from neaptide.program import Run, Same
from neaptide.search.recompute.seeds import RECOMPUTE, SAVE, is_tagged, keep_all
from neaptide.shapes import shapes_of
from neaptide.timing import alike, cost, whole

Storages = frozenset[int]


@dataclass(frozen=True, slots=True)
class Step:
    """An op by the memory that it reads and makes."""

    op: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    over: int | None = None
    """What the result can be written over, where nothing needs that any more."""


@dataclass(frozen=True, eq=False)
class Replay:
    """One choice, step by step, whatever the sizes: first the forward, then the backward with what is run again."""

    keep: Storages
    spans: np.ndarray
    """Columns: the step at which something is born, the one before which it is gone, and the index of its size."""
    length: int
    again: tuple[int, ...]
    needed: dict[int, int]
    """For each storage of the forward that the backward needs, the step at which it does first."""
    steps: tuple[int, ...]
    """For each op of the backward, its step."""


@dataclass(frozen=True, eq=False)
class Played:
    """One choice at one size."""

    replay: Replay
    levels: np.ndarray
    """Bytes at each step."""
    seconds: float
    """What running again takes."""
    kept: int
    """Bytes that the forward leaves behind."""

    @property
    def keep(self) -> Storages:
        return self.replay.keep

    @cached_property
    def peak(self) -> int:
        return int(self.levels.max(initial=0))


class Judge:
    """What does not depend on the sizes: the ops as steps over storages."""

    def __init__(self, graph: Graph, absent: Collection[int] = (), changing: Collection[int] = ()) -> None:
        self.graph = graph
        program = recompute(graph, keep_all(graph))
        if absent:
            program = without(program, absent)
        turn = program.turn
        self._alias: dict[int, int] = {}
        self.forward = self._steps(program.steps[:turn])
        self.backward = self._steps(program.steps[turn:])
        self.lent = self._homes((*graph.inputs, *graph.constants))
        self.copied = self._homes(changing)
        self.tangents = self._homes(program.tangents)
        self.handed = self._homes(v for v in graph.outputs if v is not None)
        self.gradients = self._homes(v for v in graph.gradients if v is not None)
        self.maker = {s: step for step in self.forward for s in step.makes}
        """What the forward makes, and how."""
        self.op = {s: step.op for s, step in self.maker.items()}
        """The op that makes each of them."""
        ops = {s: graph.ops[op] for s, op in self.op.items()}
        self.births, self.ends = self._lives()
        steps = enumerate(self.forward)
        self.taken_over = {s.over for now, s in steps if s.over in self.births and self.ends[s.over] == now + 1}
        """What the forward writes over if it is not kept."""
        self._size = [s.size if s.device == graph.device else graph.nothing for s in graph.storages]
        self._hidden = [op.workspace for op in graph.ops]
        self._replays: dict[Storages, Replay] = {}
        self.pinned = frozenset(s for s, op in ops.items() if op.once or is_tagged(op.node, SAVE))
        """What cannot be made again, or is not to be."""
        self.unkept = frozenset(s for s, op in ops.items() if is_tagged(op.node, RECOMPUTE)) - self.pinned
        """What the user's own checkpointing wants made again."""

    def _homes(self, values: Iterable[int]) -> frozenset[int]:
        found = (self.graph.values[v].storage for v in values)
        return frozenset(self._alias.get(s, s) for s in found if s is not None)

    def _steps(self, steps: Iterable[object]) -> list[Step]:
        """The ops that make memory or read it for good; views take nothing, and what reads them reads what they look at."""
        graph = self.graph
        found: list[Step] = []
        for step in steps:
            if not isinstance(step, (Run, Same)):
                continue
            op = graph.ops[step.op]
            held = [s for v in op.outputs if (s := graph.values[v].storage) is not None]
            if isinstance(step, Same):
                (home,) = self._homes([step.value])
                self._alias.update(dict.fromkeys(held, home))
                continue
            reads = tuple(dict.fromkeys(h for v in op.inputs for h in self._homes([v])))
            makes = tuple(dict.fromkeys(s for s in held if self._alias.get(s, s) not in reads))
            if makes or not held or op.writes:
                found.append(Step(step.op, reads, makes, self._over(step.op)))
        return found

    def _over(self, index: int) -> int | None:
        """The storage that an op can write its result over: one that only one of its inputs lies in."""
        first = overwritable(self.graph, index)
        if first is None:
            return None
        homes = [h for v in self.graph.ops[index].inputs for h in self._homes([v])]
        (home,) = self._homes([first])
        return home if homes.count(home) == 1 else None

    @cached_property
    def alike(self) -> list[int]:
        return alike(self.graph)

    @cached_property
    def wanted(self) -> frozenset[int]:
        """What the forward makes and the backward reads."""
        read = {s for step in self.backward for s in step.reads} | self.gradients
        return frozenset(s for s in read if s in self.maker)

    def values(self, keep: Storages) -> frozenset[int]:
        """The values by which `apply.recompute` is told to keep these storages."""
        return frozenset(v for s in keep for v in self.graph.ops[self.op[s]].outputs if self.graph.values[v].storage == s)

    def storages(self, values: Collection[int]) -> Storages:
        """The storages of the forward that values lie in."""
        return frozenset(s for s in self._homes(values) if s in self.maker)

    def at(self, dims: Sequence[int], machine: Machine) -> Scene:
        return Scene(self, dims, machine)

    def replay(self, keep: Storages) -> Replay:
        """What a choice does."""
        if keep not in self._replays:
            self._replays[keep] = self._replay(keep)
        return self._replays[keep]

    def _replay(self, keep: Storages) -> Replay:
        hidden, nothing = self._hidden, self.graph.nothing
        count = len(self.graph.storages)
        there, used = bytearray(count), bytearray(count)
        for storage in (*self.lent, *self.tangents):
            there[storage] = 1
        stay = keep | self.pinned | self.handed
        inner: list[tuple[int, int, int]] = []
        born: dict[int, int] = {}
        last = [-1] * count
        needed: dict[int, int] = {}
        overs: list[tuple[int, int]] = []
        again: list[int] = []
        places: list[int] = []
        turn = now = len(self.forward)
        for step in self.backward:
            todo = [s for s in reversed(step.reads) if not there[s]]
            while todo:
                wanted = todo[-1]
                if there[wanted]:
                    todo.pop()
                    continue
                if wanted in stay:
                    there[todo.pop()] = 1
                    needed[wanted] = last[wanted] = now
                    continue
                maker = self.maker[wanted]
                missing = [s for s in maker.reads if not there[s]]
                if missing:
                    todo.extend(missing)
                    continue
                again.append(maker.op)
                for storage in maker.reads:
                    last[storage] = now
                    used[storage] = 1
                for storage in maker.makes:
                    there[storage] = 1
                    if used[storage] or storage in self.handed:  # the second making is let go of at once
                        inner.append((now, now + 1, self._size[storage]))
                    else:  # also what would have been kept, if nothing has read it yet
                        born[storage] = last[storage] = needed[storage] = now
                if maker.over is not None:
                    overs.append((maker.over, now))
                if hidden[maker.op] != nothing:
                    inner.append((now, now + 1, hidden[maker.op]))
                now += 1
                todo.pop()
            for storage in step.reads:
                last[storage] = now
                used[storage] = 1
            places.append(now)
            for storage in step.makes:
                there[storage] = 1
                born[storage] = last[storage] = now
            if step.over is not None:
                overs.append((step.over, now))
            if hidden[step.op] != nothing:
                inner.append((now, now + 1, hidden[step.op]))
            now += 1
        for storage in self.gradients:
            last[storage] = now
        before = self._before.copy()
        for row, storage in enumerate(self.births):
            if storage in self.handed:
                before[row, 1] = now
            elif last[storage] >= 0 and storage not in born:
                before[row, 1] = last[storage] + 1
        taken_over = {s for s, at in overs if s in born and last[s] == at}
        inner.extend((begin, last[s] + (s not in taken_over), self._size[s]) for s, begin in born.items())
        inner.extend((turn, max(last[s], turn) + 1, self._size[s]) for s in self.tangents)
        inner.extend((0, last[s] + 1, self._size[s]) for s in self.copied if last[s] >= 0)
        spans = np.concatenate([before, np.array(inner, dtype=np.int64).reshape(-1, 3)])
        spans[:, 1] = np.minimum(spans[:, 1], now + 1)
        return Replay(keep, spans, now + 1, tuple(again), needed, tuple(places))

    @cached_property
    def _before(self) -> np.ndarray:
        """The spans of the forward where nothing is kept, and of what its ops hide."""
        rows = [(begin, self.ends[s] - (s in self.taken_over), self._size[s]) for s, begin in self.births.items()]
        rows += [(at, at + 1, self._hidden[step.op]) for at, step in enumerate(self.forward)]
        return np.array(rows, dtype=np.int64).reshape(-1, 3)

    def _lives(self) -> tuple[dict[int, int], dict[int, int]]:
        """Where the storages of the forward are born, and where they end if nothing keeps them."""
        births: dict[int, int] = {}
        ends: dict[int, int] = {}
        for now, step in enumerate(self.forward):
            ends.update((s, now + 1) for s in (*step.reads, *step.makes) if s in births or s in step.makes)
            births.update(dict.fromkeys(step.makes, now))
        return births, ends


class Scene:
    """A joint graph at one size."""

    def __init__(self, judge: Judge, dims: Sequence[int], machine: Machine) -> None:
        graph = judge.graph
        self.judge = judge
        self._sizes = np.array([allocated(n, graph.device) for n in graph.sizes.evaluate(dims)], dtype=np.int64)
        self.bytes = [int(self._sizes[s.size]) if s.device == graph.device else 0 for s in graph.storages]
        self.seconds = self._prices(dims, machine)
        self._known: dict[Storages, Played] = {}

    def _prices(self, dims: Sequence[int], machine: Machine) -> dict[int, float]:
        """What each op of the forward takes; those that are alike are asked for once."""
        shapes = shapes_of(self.judge.graph).at(dims)
        known: dict[int, float] = {}
        found: dict[int, float] = {}
        for step in self.judge.forward:
            kind = self.judge.alike[step.op]
            if kind not in known:
                known[kind] = whole(cost(shapes, step.op, machine), machine)
            found[step.op] = known[kind]
        return found

    def play(self, keep: Storages) -> Played:
        """What a choice takes."""
        if keep not in self._known:
            replay = self.judge.replay(keep)
            begins, stops, sizes = replay.spans.T
            amounts = self._sizes[sizes]
            change = np.bincount(begins, amounts, replay.length + 1) - np.bincount(stops, amounts, replay.length + 1)
            levels = change.cumsum()[: replay.length].astype(np.int64)
            turn = len(self.judge.forward)
            kept = int(amounts[(begins < turn) & (stops > turn)].sum())
            self._known[keep] = Played(replay, levels, sum(self.seconds[op] for op in replay.again), kept)
        return self._known[keep]

    @property
    def looked_at(self) -> list[Played]:
        """All choices that were ever played here."""
        return list(self._known.values())
