"""What will be done, in order: one linear list of small frozen steps over a graph, and the rules that make it legal.

In: a graph and the steps that an `apply` made. Out: a checked `Program`. A training step is one program with a `Turn` in
it: before it the forward, after it the backward; what is alive across the turn is what the forward saves. Memory follows
*instances*: an op that makes fresh memory starts one, views join the instance of what they view, and an instance dies
when its last value is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from neaptide.graph import Graph
from neaptide.steps import Add, Copy, Drop, Fetch, Loop, Mark, Rerun, Run, Same, Send, Step, Turn, makes, reads


@dataclass(frozen=True, eq=False)
class Program:
    """Steps over a graph, from its inputs to its outputs (and, after a `Turn`, to its gradients).

    Where tangents are `absent` (nothing flows back from an output), gradients that depend on them alone are not made.
    """

    graph: Graph
    steps: tuple[Step, ...]
    absent: frozenset[int] = frozenset()
    carried: frozenset[int] = frozenset()
    """Values that cross the turn although the backward does not need them."""

    @cached_property
    def tangents(self) -> tuple[int, ...]:
        """The tangents that the backward is given."""
        return tuple(v for v in self.graph.tangents if v not in self.absent)

    @cached_property
    def gradients(self) -> tuple[int | None, ...]:
        """The graph's gradients, None where one is not made, or is added to what is there."""
        if not self.graph.gradients:
            return ()
        made = {v for step in self.steps for v in makes(self.graph, step)}
        there = made | set(self.tangents) | set(self.graph.inputs) | set(self.graph.constants)
        added = set(self.added)
        return tuple(v if v in there and i not in added else None for i, v in enumerate(self.graph.gradients))

    @cached_property
    def added(self) -> tuple[int, ...]:
        """The positions of the gradients that are added to what is there, in that order."""
        return tuple(step.position for step in self.steps if isinstance(step, Add))

    @cached_property
    def handed(self) -> frozenset[int]:
        """The values that the program hands out: outputs and gradients."""
        return frozenset(v for v in (*self.graph.outputs, *self.gradients) if v is not None)

    @cached_property
    def turn(self) -> int:
        """The position of the `Turn`; the number of steps where there is none."""
        return next((i for i, step in enumerate(self.steps) if isinstance(step, Turn)), len(self.steps))

    @cached_property
    def saved(self) -> tuple[int, ...]:
        """The values that the backward takes over from the forward, inputs included, in order of first use."""
        made = set(self.graph.tangents) | set(self.graph.constants)
        taken: dict[int, None] = {}
        for step in self.steps[self.turn :]:
            if isinstance(step, (Run, Rerun, Fetch, Same, Add, Loop)):
                taken.update(dict.fromkeys(v for v in reads(self.graph, step) if v not in made))
                made.update(makes(self.graph, step))
        taken.update(dict.fromkeys(v for v in self.gradients if v is not None and v not in made))
        return tuple(taken)

    @cached_property
    def marks(self) -> tuple[int, ...]:
        """The random ops whose generator state the forward notes."""
        return tuple(step.op for step in self.steps if isinstance(step, Mark))

    @cached_property
    def away(self) -> tuple[int, ...]:
        """The values that the backward has back from where they were sent, in that order."""
        return tuple(step.value for step in self.steps if isinstance(step, Fetch))

    @cached_property
    def copies(self) -> frozenset[int]:
        """The inputs that the backward reads from a private copy."""
        return frozenset(step.value for step in self.steps if isinstance(step, Copy))

    def __repr__(self) -> str:
        return f"Program({self.graph!r}, {len(self.steps)} steps)"

    def __str__(self) -> str:
        return "\n".join(self.describe(step) for step in self.steps)

    def describe(self, step: Step) -> str:
        """One step in words."""
        ops, values = self.graph.ops, self.graph.values
        match step:
            case Run(op, onto) | Rerun(op, onto):
                again = "again " if isinstance(step, Rerun) else ""
                over = "" if onto is None else f" over {values[onto].name}"
                return f"run {again}{ops[op].name}{over}  # {ops[op].label}"
            case Drop(value):
                return f"drop {values[value].name}"
            case Mark(op):
                return f"mark the generator before {ops[op].name}"
            case Copy(value):
                return f"copy {values[value].name}"
            case Send(value):
                return f"send {values[value].name} away"
            case Fetch(value):
                return f"fetch {values[value].name}"
            case Same(op, value):
                return f"take {values[value].name} for {ops[op].name}"
            case Add(position):
                return f"add gradient {position}"
            case Turn():
                return "turn to the backward"
            case Loop(_, chunk, _, made):
                names = ", ".join(values[m.value].name for m in made)
                inner = [f"    {part.op}: {ops[part.op].name}  # {ops[part.op].label}" for part in step.parts]
                return "\n".join([f"in parts of {chunk} make {names}", *inner])


def with_drops(
    graph: Graph, steps: Sequence[Step], absent: frozenset[int] = frozenset(), carried: frozenset[int] = frozenset()
) -> Program:
    """The program of `steps`, with a `Drop` right after the last use of all that they make and do not hand out.

    A value that is made again begins a second life; the first ends at its last use before. What is `carried` across the
    turn lives until then, used or not.
    """
    bare = Program(graph, tuple(steps), absent, carried)
    handed, ops = bare.handed, graph.ops
    last: dict[int, int] = {}
    drops: dict[int, list[int]] = {}
    owned: set[int] = set()
    for position, step in enumerate(steps):
        kind = type(step)
        if kind is Run or kind is Rerun or kind in (Send, Fetch, Same, Add, Loop):
            is_op = kind is Run or kind is Rerun  # nearly all steps are
            for value in ops[step.op].inputs if is_op else reads(graph, step):  # type: ignore[union-attr]
                if value in owned:
                    last[value] = position
            for value in ops[step.op].outputs if is_op else makes(graph, step):  # type: ignore[union-attr]
                if value in last and value not in handed:
                    drops.setdefault(last[value], []).append(value)
                owned.add(value)
                last[value] = position
        elif isinstance(step, Copy):
            last[step.value] = position
        elif isinstance(step, Turn):
            owned.update(bare.tangents, bare.copies)
            last.update(dict.fromkeys(bare.tangents, position))
            last.update((v, position) for v in carried if v in last)
    for value, position in last.items():
        if value not in handed:
            drops.setdefault(position, []).append(value)
    placed: list[Step] = []
    for position, step in enumerate(steps):
        placed.append(step)
        placed.extend(Drop(v) for v in drops.get(position, ()))
    return Program(graph, tuple(placed), absent, carried)
