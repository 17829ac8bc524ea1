"""A program becomes Python: straight pieces as fx graphs, whose source can be read and handed on to a compiler.

In: a program. Out: callables that take one list of arguments and clear it, so that each tensor dies at its last use.
An inference program is one piece; a training program is two, parted at its `Turn`.
"""

from __future__ import annotations

from dataclasses import dataclass

from neaptide.inner.calls import Fuse
from neaptide.program import Program
from neaptide.writer import Emitted, Writer


@dataclass(frozen=True, slots=True)
class Slots:
    """What any plan of a graph may carry across the turn: tensors with their numbers of dims, generator states before random
    ops, and sizes. By the values and ops of one form of the graph, None where it has no such thing."""

    tensors: tuple[int | None, ...]
    ranks: tuple[int, ...]
    marks: tuple[int | None, ...] = ()
    sizes: tuple[int | None, ...] = ()


def emit_inference(program: Program, fuse: Fuse | None = None) -> Emitted:
    """The whole program as one piece: the graph's inputs in, its outputs out."""
    graph = program.graph
    piece = Writer(graph, fuse)
    piece.take(graph.inputs)
    piece.read_sizes(program.steps)
    piece.steps(program.steps, graph.outputs)
    return piece.done([piece.out(v) for v in graph.outputs], "infer")


def emit_forward(program: Program, slots: Slots, fuse: Fuse | None = None) -> Emitted:
    """The steps before the turn: the graph's inputs in; outputs, generator states, saved tensors and sizes out.

    What other plans would save, and this one does not, is handed out empty. Where something is sent away, the `Store` that
    takes it comes in first, here and in the backward.
    """
    graph = program.graph
    saved = program.carried.union(program.saved)
    piece = Writer(graph, fuse)
    piece.take_store(program)
    piece.take(graph.inputs)
    piece.read_sizes(program.steps[: program.turn])
    piece.steps(program.steps[: program.turn], (*graph.outputs, *saved, *slots.sizes))
    outputs = [piece.out(v) for v in graph.outputs]
    outputs += [piece.nothing(1) if m is None or m not in program.marks else piece.states[m] for m in slots.marks]
    for slot, rank in zip(slots.tensors, slots.ranks, strict=True):
        held = None if slot is None or slot not in saved else piece.copies.get(slot) or piece.out(slot)
        outputs.append(piece.nothing(rank) if held is None else held)
    outputs += [piece.out(v) if v in piece.names else 0 for v in slots.sizes]
    return piece.done(outputs, "forward")


def emit_backward(program: Program, slots: Slots, fuse: Fuse | None = None) -> Emitted:
    """The steps after the turn: free and saved sizes, generator states, saved tensors, tangents, and the gradients that are
    added to, in; gradients out.

    All of the graph's tangents come in, None where one is absent; a gradient that is not made, or is added, goes out as None.
    """
    graph = program.graph
    piece = Writer(graph, fuse)
    piece.take_store(program)
    piece.dims = [piece.graph.placeholder(f"size_{symbol.name}") for symbol in graph.sizes.symbols]
    piece.names.update((value, piece.dims[number]) for value, number in graph.free_inputs.items())
    piece.take(slots.sizes)
    for mark in slots.marks:
        if mark is None:
            piece.take([None])
        else:
            piece.states[mark] = piece.graph.placeholder(f"state_{graph.ops[mark].name}")
    piece.take(slots.tensors)
    piece.take(graph.tangents)
    piece.sums = {position: piece.graph.placeholder(f"sum_{position}") for position in program.added}
    piece.steps(program.steps[program.turn :], program.gradients)
    return piece.done([piece.out(v) for v in program.gradients], "backward")
