"""The small frozen steps that programs are made of, and what each of them reads and makes.

In: a graph and a step. Out: values. A loop is one step: its parts read slices of what it takes from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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


def reads(graph: Graph, step: Step) -> tuple[int, ...]:
    """The values that a step needs."""
    kind = type(step)
    if kind is Run or kind is Rerun:  # nearly all are, and this is asked millions of times
        return graph.ops[step.op].inputs  # type: ignore[union-attr]
    match step:
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
    kind = type(step)
    if kind is Run or kind is Rerun:
        return graph.ops[step.op].outputs  # type: ignore[union-attr]
    match step:
        case Same(op):
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
