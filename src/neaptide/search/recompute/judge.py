"""A training step as steps over storages: what it reads, makes and writes over, whatever is kept and whatever the sizes.

In: a program that keeps everything, the inputs that a backward reads from a copy, and values that it makes again in any case;
then choices. Out: their replays. They follow `apply.recompute` and `apply.inplace` step by step: the timeline of the program
made of a choice says the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neaptide.apply.inplace import overwritable
from neaptide.program import Program
from neaptide.search.recompute.replay import Choice, Replay, Storages, replayed
from neaptide.search.recompute.seeds import RECOMPUTE, SAVE, is_tagged
from neaptide.steps import Loop, Part, Run, Same, makes, reads
from neaptide.timing import alike


@dataclass(frozen=True, slots=True)
class Step:
    """An op, or a loop of them, by the memory that it reads and makes."""

    op: int
    """A loop has none, and is not run again."""
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    over: int | None
    """What the result can be written over, where nothing needs that any more."""
    hidden: int
    """What it takes inside, by the index of the size; of loops, counted from the end."""


LOOP = -1


class Judge:
    """What does not depend on the sizes: the ops as steps over storages."""

    def __init__(self, program: Program, changing: Collection[int] = (), again: Collection[int] = ()) -> None:
        graph = self.graph = program.graph
        turn = program.turn
        self.loops: list[Loop] = []
        self._alias: dict[int, int] = {}
        self._values: dict[int, list[int]] = {}
        self.forward = self._steps(program.steps[:turn])
        self.backward = self._steps(program.steps[turn:])
        looped = [part.op for loop in self.loops for part in loop.parts]
        ran = {step.op for step in program.steps if isinstance(step, Run)}
        self.instead = [op for op in dict.fromkeys(looped) if op not in ran]
        """The ops that loops run and nothing else does; the others they run once more."""
        self.lent = self._homes((*graph.inputs, *graph.constants))
        self.copied = self._homes(changing)
        self.tangents = self._homes(program.tangents)
        self.handed = self._homes(v for v in graph.outputs if v is not None)
        self.gradients = self._homes(v for v in program.gradients if v is not None)
        self.maker = {s: step for step in self.forward for s in step.makes}
        """What the forward makes, and how."""
        self.op = {s: step.op for s, step in self.maker.items()}
        """The op that makes each of them."""
        ops = {s: graph.ops[op] for s, op in self.op.items() if op != LOOP}
        in_loops = frozenset(s for s, op in self.op.items() if op == LOOP)
        self.births, self.ends = self._lives()
        steps = enumerate(self.forward)
        self.taken_over = {s.over for now, s in steps if s.over in self.births and self.ends[s.over] == now + 1}
        """What the forward writes over if it is not kept."""
        self.size = graph.held
        """What storages take, by the index of the size."""
        self._replays: dict[Choice, Replay] = {}
        self.pinned = in_loops.union(s for s, op in ops.items() if op.once or is_tagged(op.node, SAVE))
        """What cannot be made again, or is not to be."""
        tagged = frozenset(s for s, op in ops.items() if is_tagged(op.node, RECOMPUTE))
        self.unkept = (tagged | self.storages(again)) - self.pinned
        """What is made again: the user's own checkpointing wants it so, or loops of the backward make it for themselves."""

    def _home(self, value: int) -> int | None:
        storage = self.graph.values[value].storage
        return None if storage is None else self._alias.get(storage, storage)

    def _homes(self, values: Iterable[int]) -> frozenset[int]:
        return frozenset(home for v in values if (home := self._home(v)) is not None)

    def _steps(self, steps: Iterable[object]) -> list[Step]:
        """The ops that make memory or read it for good; views take nothing, and what reads them reads what they look at."""
        graph = self.graph
        found: list[Step] = []
        for step in steps:
            if isinstance(step, Loop):
                found.append(self._loop(step))
            if not isinstance(step, (Run, Same)):
                continue
            op = graph.ops[step.op]
            held = [s for v in op.outputs if (s := graph.values[v].storage) is not None]
            if isinstance(step, Same):
                home = self._home(step.value)
                self._alias.update((s, home) for s in held if home is not None)
                continue
            reads = tuple(dict.fromkeys(h for v in op.inputs if (h := self._home(v)) is not None))
            makes = tuple(dict.fromkeys(s for s in held if self._alias.get(s, s) not in reads))
            if makes or not held or op.writes:
                first = overwritable(graph, step.op, self._home)
                found.append(Step(step.op, reads, makes, None if first is None else self._home(first), op.workspace))
                for value in op.outputs:
                    self._values.setdefault(graph.values[value].storage or 0, []).append(value)
        return found

    def _loop(self, loop: Loop) -> Step:
        read = tuple(dict.fromkeys(h for v in reads(self.graph, loop) if (h := self._home(v)) is not None))
        made = {v: s for v in makes(self.graph, loop) if (s := self.graph.values[v].storage) is not None}
        self.loops.append(loop)
        for value, storage in made.items():
            self._values.setdefault(storage, []).append(value)
        return Step(LOOP, read, tuple(dict.fromkeys(made.values())), None, -len(self.loops))

    @cached_property
    def alike(self) -> list[int]:
        return alike(self.graph)

    @cached_property
    def like(self) -> list[int]:
        """For each loop, the first that takes the same memory and time at every size."""
        first: dict[object, int] = {}
        return [first.setdefault(self._form(loop), number) for number, loop in enumerate(self.loops)]

    def _form(self, loop: Loop) -> object:
        def size(value: int) -> object:
            storage = self.graph.values[value].storage
            return None if storage is None else self.graph.held[storage]

        body = tuple((self.alike[step.op], step.axis) if isinstance(step, Part) else size(step.value) for step in loop.body)
        made = tuple((size(made.value), made.how, made.onto is None) for made in loop.made)
        return loop.extent, loop.chunk, body, made

    @cached_property
    def wanted(self) -> frozenset[int]:
        """What the forward makes and the backward reads."""
        read = {s for step in self.backward for s in step.reads} | self.gradients
        return frozenset(s for s in read if s in self.maker)

    @cached_property
    def there_anyway(self) -> frozenset[int]:
        """What the backward reads and has in any case: it is handed out, or cannot be made again."""
        return self.wanted & (self.handed | self.pinned)

    def values(self, keep: Storages) -> frozenset[int]:
        """The values by which `apply.recompute` is told to keep or send these storages."""
        return frozenset(v for s in keep for v in self._values[s])

    def storages(self, values: Collection[int]) -> Storages:
        """The storages of the forward that values lie in."""
        return frozenset(s for s in self._homes(values) if s in self.maker)

    def replay(self, choice: Choice) -> Replay:
        """What a choice does."""
        if choice not in self._replays:
            self._replays[choice] = replayed(self, choice)
        return self._replays[choice]

    def forget_all_but(self, choices: Collection[Choice]) -> None:
        """Let go of what was looked at and not chosen."""
        self._replays = {choice: replay for choice, replay in self._replays.items() if choice in choices}

    @cached_property
    def before(self) -> np.ndarray:
        """The spans of the forward where nothing is kept, and of what its ops hide."""
        rows = [(begin, self.ends[s] - (s in self.taken_over), self.size[s]) for s, begin in self.births.items()]
        rows += [(at, at + 1, step.hidden) for at, step in enumerate(self.forward)]
        return np.array(rows, dtype=np.int64).reshape(-1, 3)

    def _lives(self) -> tuple[dict[int, int], dict[int, int]]:
        """Where the storages of the forward are born, and where they end if nothing keeps them."""
        births: dict[int, int] = {}
        ends: dict[int, int] = {}
        for now, step in enumerate(self.forward):
            ends.update((s, now + 1) for s in (*step.reads, *step.makes) if s in births or s in step.makes)
            births.update(dict.fromkeys(step.makes, now))
        return births, ends
