"""A program becomes Python: straight pieces as fx graphs, whose source can be read and handed on to a compiler.

In: a program. Out: callables that take one list of arguments and clear it, so that each tensor dies at its last use.
An inference program is one piece; a training program is two, parted at its `Turn`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.graph import CodeGen
from torch.fx.node import map_arg

from neaptide import generator
from neaptide.graph import Graph
from neaptide.ops import PART_OF, in_place_variant
from neaptide.program import Copy, Mark, Program, Rerun, Run, Same, Step

Piece: TypeAlias = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Emitted:
    """A piece of a program that runs, and its source."""

    run: Piece
    module: fx.GraphModule

    @property
    def source(self) -> str:
        """The Python source of the piece."""
        return self.module.code


def emit_inference(program: Program) -> Emitted:
    """The whole program as one piece: the graph's inputs in, its outputs out."""
    piece = _Piece(program.graph)
    piece.take(program.graph.inputs)
    piece.steps(program.steps)
    return piece.done([piece.out(v) for v in program.graph.outputs], "infer")


def emit_forward(program: Program, slots: Sequence[int], marks: Sequence[int], sizes: Sequence[int]) -> Emitted:
    """The steps before the turn: the graph's inputs in; outputs, generator states, saved tensors and sizes out.

    Slots and marks are what *any* plan of the graph saves; what this one does not is handed out empty.
    """
    graph = program.graph
    piece = _Piece(graph)
    piece.take(graph.inputs)
    piece.steps(program.steps[: program.turn])
    saved = frozenset(program.saved)
    outputs = [piece.out(v) for v in graph.outputs]
    outputs += [piece.states[m] if m in program.marks else piece.nothing(1) for m in marks]
    for slot in slots:
        held = piece.copies.get(slot) or piece.out(slot) if slot in saved else piece.nothing(graph.values[slot].fake.dim())
        outputs.append(held)
    outputs += [piece.out(v) if v in piece.names else 0 for v in sizes]
    return piece.done(outputs, "forward")


def emit_backward(program: Program, slots: Sequence[int], marks: Sequence[int], sizes: Sequence[int]) -> Emitted:
    """The steps after the turn: sizes, generator states, saved tensors and tangents in; gradients out.

    All of the graph's tangents come in, None where one is absent; a gradient that is not made goes out as None.
    """
    graph = program.graph
    piece = _Piece(graph)
    piece.take(sizes)
    for mark in marks:
        piece.states[mark] = piece.graph.placeholder(f"state_{graph.ops[mark].name}")
    piece.take(slots)
    piece.take(graph.tangents)
    piece.steps(program.steps[program.turn :])
    return piece.done([piece.out(v) for v in program.gradients], "backward")


class _Boxed(CodeGen):
    """Arguments come in one list, which is cleared, and those that are not used are let go of at once."""

    def __init__(self, unused: frozenset[str]) -> None:
        super().__init__()
        self._unused = unused

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **_: Any) -> str:
        names = [v.split(":")[0].split("=")[0].strip() for v in free_vars if v != "self"]
        bound = ["_" if name in self._unused else name for name in names]
        lines = ["def forward(self, args):"]
        if bound:
            lines.append(f"    {', '.join(bound)}, = args")
        lines.append("    args.clear()" + ("; _ = None" if "_" in bound else ""))
        return "\n".join(lines)


class _Piece:
    """An fx graph in the making; `names` maps a graph's value to the node that holds it now."""

    def __init__(self, source: Graph) -> None:
        self.source = source
        self.graph = fx.Graph()
        self.names: dict[int, fx.Node] = {}
        self.copies: dict[int, fx.Node] = {}
        self.states: dict[int, fx.Node] = {}
        self.empty: dict[int, fx.Node] = {}
        self.of_node = {v.node: i for i, v in enumerate(source.values) if v.part is None}
        self.of_part = {(v.node, v.part): i for i, v in enumerate(source.values) if v.part is not None}

    def take(self, values: Sequence[int]) -> None:
        for value in values:
            self.names[value] = self.graph.placeholder(self.source.values[value].name.replace(".", "_part"))

    def out(self, value: int | None) -> fx.Node | None:
        return None if value is None else self.name(value)

    def name(self, value: int) -> fx.Node:
        if value not in self.names:
            held = self.source.values[value].node
            assert held.op == "get_attr", f"{held} is not there"
            self.names[value] = self.graph.get_attr(str(held.target))
        return self.names[value]

    def nothing(self, dims: int) -> fx.Node:
        """An empty tensor of so many dims, in place of what is not saved."""
        if dims not in self.empty:
            self.empty[dims] = self.graph.call_function(generator.nothing, (dims,))
        return self.empty[dims]

    def steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case Run(op, onto):
                    self.call(op, onto)
                case Rerun(op, onto) if self.source.ops[op].random:
                    device = self.device(op)
                    now = self.graph.call_function(generator.rewind, (self.states[op], device))
                    self.call(op, onto)
                    self.graph.call_function(generator.restore, (now, device))
                case Rerun(op, onto):
                    self.call(op, onto)
                case Mark(op):
                    self.states[op] = self.graph.call_function(generator.state, (self.device(op),))
                case Copy(value):
                    self.copies[value] = self.graph.call_function(torch.ops.aten.clone.default, (self.name(value),))
                case Same(op, value):
                    self.names[self.source.ops[op].outputs[0]] = self.name(value)
                case _:
                    pass  # fx lets go of every name at its last use, which is where the drops are

    def device(self, op: int) -> str:
        made = [self.source.values[v].storage for v in self.source.ops[op].outputs]
        return next((self.source.storages[s].device for s in made if s is not None), self.source.device)

    def call(self, index: int, onto: int | None) -> None:
        op = self.source.ops[index]
        args: Any = map_arg(op.node.args, self.argument)
        kwargs: Any = map_arg(op.node.kwargs, self.argument)
        if onto is None:
            made = self.graph.create_node("call_function", op.target, args, kwargs, op.name)
        else:
            made = self.write(op.target, args, kwargs, op.name)
        made.meta["place"] = (op.path, op.source)
        if self.source.values[op.outputs[0]].part is None:
            self.names[op.outputs[0]] = made
            return
        for value in op.outputs:
            if value in self.names and value in self.source.outputs:
                continue
            taken = (made, self.source.values[value].part)
            self.names[value] = self.graph.create_node("call_function", operator.getitem, taken, {}, f"{op.name}_{taken[1]}")

    def write(self, target: OpOverload, args: Any, kwargs: Any, name: str) -> fx.Node:
        variant = in_place_variant(target)
        if variant is not None:
            return self.graph.create_node("call_function", variant, args, kwargs, name)
        whole, part, *where = args
        view = self.graph.call_function(PART_OF[target], (whole, *where), kwargs)
        self.graph.call_function(torch.ops.aten.copy_.default, (view, part))
        return whole

    def argument(self, node: fx.Node) -> fx.Node:
        if node in self.of_node:
            return self.name(self.of_node[node])
        key: Any = node.args[:2]
        if key in self.of_part:
            return self.name(self.of_part[key])
        raise AssertionError(f"{node} is an argument of which nothing is known")

    def done(self, outputs: list[Any], name: str) -> Emitted:
        self.graph.output(tuple(outputs))
        self.graph.eliminate_dead_code(lambda node: node.op != "call_function" or node.target is not operator.getitem)
        unused = frozenset(node.name for node in self.graph.nodes if node.op == "placeholder" and not node.users)
        self.graph.set_codegen(_Boxed(unused))
        module = fx.GraphModule(self.source.module, self.graph, name)
        return Emitted(module.forward, module)
