"""What will be done, in order: one linear list of small frozen steps over a graph, and the rules that make it legal.

In: a graph and the steps that an `apply` made. Out: a checked `Program`. A training step is one program with a `Turn` in
it: before it the forward, after it the backward; what is alive across the turn is what the forward saves. Memory follows
*instances*: an op that makes fresh memory starts one, views join the instance of what they view, and an instance dies
when its last value is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from neaptide.axes import Axis, Flow
from neaptide.axes.rules import Reduced
from neaptide.graph import Graph


@dataclass(frozen=True, slots=True)
class Run:
    """Run an op; with `onto`, in place over that input, whose memory its result takes over."""

    op: int
    onto: int | None = None


@dataclass(frozen=True, slots=True)
class Rerun:
    """Run an op again to have its result back; a random op draws the numbers it drew the first time."""

    op: int
    onto: int | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """Let go of a value; its memory is free once no other value shares it."""

    value: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Note the generator's state before a random op that will run again."""

    op: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Keep a private copy of an input that may have changed when the backward needs it."""

    value: int


@dataclass(frozen=True, slots=True)
class Send:
    """Bring a value away, for the backward: its memory need not wait."""

    value: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Have a value back that was sent away."""

    value: int


@dataclass(frozen=True, slots=True)
class Same:
    """An op with nothing to do: its result is a value that is there already."""

    op: int
    value: int


@dataclass(frozen=True, slots=True)
class Add:
    """Add a gradient (a position among the graph's) to the one that is there: it is not handed out."""

    position: int


@dataclass(frozen=True, slots=True)
class Turn:
    """The forward hands out its outputs; the backward begins, with its tangents."""


@dataclass(frozen=True, slots=True)
class Part:
    """In a loop: run an op on one part of what it reads, along an axis of it."""

    op: int
    axis: Axis


@dataclass(frozen=True, slots=True)
class Made:
    """A whole result of a loop: which part of it each round makes, or how the rounds' results are combined.

    With `onto`, the parts are written over those of an input of which each round reads only its own part.
    """

    value: int
    how: Flow | Reduced
    onto: int | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """What a round of a loop is given of a value from outside: its part along `flow`, or the whole."""

    value: int
    flow: Flow | None


@dataclass(frozen=True, slots=True)
class Loop:
    """Run the body on one part after the other: `chunk` units of the axis at most, of `extent` (a size of the graph) in all."""

    extent: int
    chunk: int
    body: tuple[Part | Drop, ...]
    made: tuple[Made, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The ops of the body."""
        return tuple(step for step in self.body if isinstance(step, Part))


Step: TypeAlias = Run | Rerun | Drop | Mark | Copy | Send | Fetch | Same | Add | Turn | Loop


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


def reads(graph: Graph, step: Step) -> tuple[int, ...]:
    """The values that a step needs."""
    match step:
        case Run(op) | Rerun(op):
            return graph.ops[op].inputs
        case Same(_, value) | Copy(value) | Send(value):
            return (value,)
        case Add(position):
            value = graph.gradients[position]
            return () if value is None else (value,)
        case Loop():
            return reads_of_parts(graph, step.parts)
        case _:
            return ()


def reads_of_parts(graph: Graph, parts: Iterable[Part]) -> tuple[int, ...]:
    """The values that the body of a loop takes from outside."""
    inside = {v for part in parts for v in graph.ops[part.op].outputs}
    return tuple(dict.fromkeys(v for part in parts for v in graph.ops[part.op].inputs if v not in inside))


def cuts_of_parts(graph: Graph, parts: Sequence[Part]) -> tuple[Cut, ...]:
    """What the body of a loop takes from outside, each as it is cut."""
    inside = {v for part in parts for v in graph.ops[part.op].outputs}
    wanted: dict[Cut, None] = {}
    for part in parts:
        tensors = graph.operands(part.op)
        wanted.update(dict.fromkeys(Cut(v, f) for v, f in zip(tensors, part.axis.inputs, strict=True) if v not in inside))
        others = (v for v in graph.ops[part.op].inputs if v not in tensors and v not in inside)
        wanted.update(dict.fromkeys(Cut(v, None) for v in others))
    return tuple(wanted)


def makes(graph: Graph, step: Step) -> tuple[int, ...]:
    """The values that are there after a step and were not before."""
    match step:
        case Run(op) | Rerun(op) | Same(op):
            return graph.ops[op].outputs
        case Fetch(value):
            return (value,)
        case Loop():
            return tuple(made.value for made in step.made)
        case _:
            return ()


def with_inner_drops(graph: Graph, parts: Sequence[Part], late: Iterable[int] = ()) -> tuple[Part | Drop, ...]:
    """The body of a loop: its ops, with a `Drop` after the last use of each value; those in `late` live to the end."""
    last = {v: position for position, part in enumerate(parts) for v in graph.ops[part.op].outputs}
    for position, part in enumerate(parts):
        last.update((v, position) for v in graph.ops[part.op].inputs if v in last)
    last.update((v, len(parts) - 1) for v in late)
    drops: dict[int, list[int]] = {}
    for value, position in last.items():
        drops.setdefault(position, []).append(value)
    body: list[Part | Drop] = []
    for position, part in enumerate(parts):
        body.append(part)
        body.extend(Drop(v) for v in drops.get(position, ()))
    return tuple(body)


def with_drops(
    graph: Graph, steps: Sequence[Step], absent: frozenset[int] = frozenset(), carried: frozenset[int] = frozenset()
) -> Program:
    """The program of `steps`, with a `Drop` right after the last use of all that they make and do not hand out.

    A value that is made again begins a second life; the first ends at its last use before. What is `carried` across the
    turn lives until then, used or not.
    """
    bare = Program(graph, tuple(steps), absent, carried)
    handed = bare.handed
    last: dict[int, int] = {}
    drops: dict[int, list[int]] = {}
    owned: set[int] = set()
    for position, step in enumerate(steps):
        if isinstance(step, (Run, Rerun, Send, Fetch, Same, Add, Loop)):
            for value in reads(graph, step):
                if value in owned:
                    last[value] = position
            for value in makes(graph, step):
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
