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
    """An op by the memory that it reads, makes and hides; what is the `same` as something else has no op."""

    op: int | None
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
        self.forward = [self._step(s) for s in program.steps[:turn] if isinstance(s, Run)]
        self.backward = [self._step(s) for s in program.steps[turn:] if isinstance(s, (Run, Same))]
        self.lent = self._homes((*graph.inputs, *graph.constants))
        self.copied = self._homes(changing)
        self.tangents = self._homes(program.tangents)
        self.handed = self._homes(v for v in graph.outputs if v is not None)
        self.gradients = self._homes(v for v in graph.gradients if v is not None)
        self.maker = {s: step for step in self.forward for s in step.makes}
        """What the forward makes, and how."""
        self.op = {s: step.op for s, step in self.maker.items() if step.op is not None}
        """The op that makes each of them."""
        ops = {s: graph.ops[op] for s, op in self.op.items()}
        self.births, self.ends = self._lives()
        steps = enumerate(self.forward)
        self.taken_over = {s.over for now, s in steps if s.over in self.births and self.ends[s.over] == now + 1}
        """What the forward writes over if it is not kept."""
        self._replays: dict[Storages, Replay] = {}
        self.pinned = frozenset(s for s, op in ops.items() if op.once or is_tagged(op.node, SAVE))
        """What cannot be made again, or is not to be."""
        self.unkept = frozenset(s for s, op in ops.items() if is_tagged(op.node, RECOMPUTE)) - self.pinned
        """What the user's own checkpointing wants made again."""

    def _homes(self, values: Iterable[int]) -> frozenset[int]:
        found = (self.graph.values[v].storage for v in values)
        return frozenset(self._alias.get(s, s) for s in found if s is not None)

    def _step(self, step: Run | Same) -> Step:
        graph = self.graph
        op = graph.ops[step.op]
        held = [graph.values[v].storage for v in op.outputs]
        if isinstance(step, Same):
            (made,) = held
            other = graph.values[step.value].storage
            assert made is not None
            assert other is not None
            self._alias[made] = self._alias.get(other, other)
            return Step(None, (self._alias[made],), ())
        reads = tuple(dict.fromkeys(h for v in op.inputs for h in self._homes([v])))
        makes = tuple(dict.fromkeys(s for s in held if s is not None and self._alias.get(s, s) not in reads))
        return Step(step.op, reads, makes, self._over(step.op))

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
        nothing, device = self.graph.nothing, self.graph.device
        size = [storage.size if storage.device == device else nothing for storage in self.graph.storages]
        hidden = [op.workspace for op in self.graph.ops]
        there = set(self.lent | self.tangents)
        used: set[int] = set()
        stay = keep | self.pinned | self.handed
        spans: list[tuple[int, int, int]] = []
        born: dict[int, int] = {}
        last: dict[int, int] = {}
        needed: dict[int, int] = {}
        overs: list[tuple[int, int]] = []
        again: list[int] = []
        places: list[int] = []
        turn = now = len(self.forward)
        for step in self.backward:
            todo = [s for s in reversed(step.reads) if s not in there]
            while todo:
                wanted = todo[-1]
                if wanted in there:
                    todo.pop()
                    continue
                if wanted in stay:
                    there.add(todo.pop())
                    needed[wanted] = last[wanted] = now
                    continue
                maker = self.maker[wanted]
                missing = [s for s in maker.reads if s not in there]
                if missing:
                    todo.extend(missing)
                    continue
                assert maker.op is not None
                again.append(maker.op)
                last.update(dict.fromkeys(maker.reads, now))
                used.update(maker.reads)
                for storage in maker.makes:
                    if storage in self.handed or storage in used:  # the second making is let go of at once
                        spans.append((now, now + 1, size[storage]))
                        last.setdefault(storage, now)
                    else:  # also what would have been kept, if nothing has read it yet
                        born[storage] = last[storage] = needed[storage] = now
                    there.add(storage)
                if maker.over is not None:
                    overs.append((maker.over, now))
                if hidden[maker.op] != nothing:
                    spans.append((now, now + 1, hidden[maker.op]))
                now += 1
                todo.pop()
            last.update(dict.fromkeys(step.reads, now))
            used.update(step.reads)
            if step.op is None:
                continue
            places.append(now)
            there.update(step.makes)
            born.update(dict.fromkeys(step.makes, now))
            last.update(dict.fromkeys(step.makes, now))
            if step.over is not None:
                overs.append((step.over, now))
            if hidden[step.op] != nothing:
                spans.append((now, now + 1, hidden[step.op]))
            now += 1
        last.update(dict.fromkeys(self.gradients, now))
        for storage, begin in self.births.items():
            stop = self.ends[storage]
            if storage in self.handed:
                stop = now
            elif storage in last and storage not in born:
                stop = last[storage] + 1
            else:
                stop -= storage in self.taken_over
            spans.append((begin, stop, size[storage]))
        taken_over = {s for s, at in overs if s in born and last[s] == at}
        spans.extend((begin, last[s] + (s not in taken_over), size[s]) for s, begin in born.items())
        spans.extend((turn, last.get(s, turn) + 1, size[s]) for s in self.tangents)
        spans.extend((0, last[s] + 1, size[s]) for s in self.copied if s in last)
        spans.extend((at, at + 1, hidden[s.op]) for at, s in enumerate(self.forward) if s.op is not None)
        found = np.array(spans, dtype=np.int64).reshape(-1, 3)
        found[:, 1] = np.minimum(found[:, 1], now + 1)
        return Replay(keep, found, now + 1, tuple(again), needed, tuple(places))

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
            if step.op is not None:
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
