"""A piece of a program in the making: its steps become the nodes of an fx graph, whose source can be read and handed on.

In: a graph and steps, one after the other. Out: a callable that takes one list of arguments and clears it, so that each tensor
dies at its last use.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.graph import CodeGen
from torch.fx.node import map_arg

from neaptide import away, generator
from neaptide.graph import Graph
from neaptide.inner import calls
from neaptide.inner.calls import Fuse
from neaptide.inner.compiler import Kernels
from neaptide.inner.straight import Stretch, stretches
from neaptide.inner.within import with_kernels
from neaptide.loops import Looped, signature, write_loop
from neaptide.ops import PART_OF, in_place_variant
from neaptide.program import Program
from neaptide.rounds import Round, group_norm_part
from neaptide.steps import Add, Copy, Fetch, Loop, Mark, Rerun, Run, Same, Send, Step, reads

Piece: TypeAlias = Callable[[list[Any]], Sequence[Any]]
STRICT: dict[Any, Any] = {torch.ops.aten.native_group_norm.default: group_norm_part}
"""Kernels that refuse a layout which a trace may mistake for the one they take (with a batch of one): checked first."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """A piece of a program that runs, and its source."""

    run: Piece
    module: fx.GraphModule
    takes_store: bool = False
    """Whether the `Store` of a call comes first among the arguments."""
    kernels: tuple[Kernels, ...] = ()
    """What a compiler made of fragments of it."""

    @property
    def source(self) -> str:
        """The source of the piece, of its loops and of its kernels."""
        loops = [m for m in self.module.children() if isinstance(m, Looped)]
        inner = [*(part for loop in loops for part in (loop.module.code, loop.source)), *(k.source for k in self.kernels)]
        return "\n".join([*inner, self.module.code])


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


class Writer:
    """An fx graph in the making; `names` maps a graph's value to the node that holds it now."""

    def __init__(self, source: Graph, fuse: Fuse | None) -> None:
        self.source = source
        self.fuse = fuse
        self.graph = fx.Graph()
        self.names: dict[int, fx.Node] = {}
        self.copies: dict[int, fx.Node] = {}
        self.states: dict[int, fx.Node] = {}
        self.sums: dict[int, fx.Node] = {}
        """The gradients that others are added to, by position."""
        self.empty: dict[int, fx.Node] = {}
        self.dims: list[fx.Node] = []
        self.store: fx.Node | None = None
        self.after: dict[str, str] = {}
        """For each value that is fetched, the one that is next."""
        self.loops: dict[str, Looped] = {}
        self.fused: list[Kernels] = []
        self.within: list[Kernels] = []
        """What a compiler made of stretches, and of rounds of loops."""
        self.named: dict[Hashable, str] = {}

    def take(self, values: Sequence[int | None]) -> None:
        for value in values:
            if value is None:
                self.graph.placeholder(f"unused_{len(self.graph.nodes)}")
            else:
                self.names[value] = self.graph.placeholder(self.source.values[value].name.replace(".", "_part"))

    def take_store(self, program: Program) -> None:
        if program.away:
            self.store = self.graph.placeholder("store")
            self.after = dict(pairwise(self.source.values[v].name for v in program.away))

    def read_sizes(self, steps: Sequence[Step]) -> None:
        """The free sizes, for the loops among the steps, read before any input is let go of."""
        if self.fuse is not None or any(isinstance(step, Loop) for step in steps):
            for position, dim in self.source.places:
                given = self.names[self.source.inputs[position]]
                self.dims.append(given if dim is None else self.graph.call_function(torch.ops.aten.sym_size.int, (given, dim)))

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

    def steps(self, steps: Sequence[Step], wanted: Sequence[int | None]) -> None:
        """All steps of a piece, of which some values are `wanted` in the end; those that can run as one are fused."""
        together = steps if self.fuse is None else stretches(self.source, steps, {v for v in wanted if v is not None})
        for each in together:
            kernels = self.fuse(each) if isinstance(each, Stretch) and self.fuse is not None else None
            if kernels is not None and isinstance(each, Stretch):
                self.run_fused(each, kernels)
            else:
                for step in each.steps if isinstance(each, Stretch) else (each,):
                    self.step(step)

    def step(self, step: Step) -> None:
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
            case Send(value):
                self.graph.call_function(away.send, (self.store, self.source.values[value].name, self.name(value)))
            case Fetch(value):
                own = self.source.values[value].name
                given = (self.store, own, self.after.get(own))
                name = f"fetched_{own.replace('.', '_part')}"
                self.names[value] = self.graph.create_node("call_function", away.fetch, given, {}, name)
            case Same(op, value):
                self.names[self.source.ops[op].outputs[0]] = self.name(value)
            case Add(position):
                (value,) = reads(self.source, step)
                self.graph.call_function(torch.ops.aten.add_.Tensor, (self.sums[position], self.name(value)))
            case Loop():
                self.loop(step)
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
            made = self.graph.create_node("call_function", STRICT.get(op.target, op.target), args, kwargs, op.name)
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

    def run_fused(self, stretch: Stretch, kernels: Kernels) -> None:
        """A stretch as one call."""
        given = (*self.dims, *(self.name(v) for v in stretch.given))
        self.names.update(zip(stretch.made, calls.call(self.graph, len(self.fused), given, len(stretch.made)), strict=True))
        self.fused.append(kernels)

    def loop(self, loop: Loop) -> None:
        key = signature(self.source, loop)
        name = self.named.get(key) or self.write_loop(key, loop)
        made = self.graph.call_module(name, (*self.dims, *(self.name(v) for v in reads(self.source, loop))))
        first = self.source.ops[loop.parts[0].op]
        made.meta["place"] = (first.path, first.source)
        if len(loop.made) == 1:
            self.names[loop.made[0].value] = made
            return
        for position, result in enumerate(loop.made):
            taken = (made, position)
            self.names[result.value] = self.graph.create_node(
                "call_function", operator.getitem, taken, {}, f"{name}_{position}"
            )

    def write_loop(self, key: Hashable, loop: Loop) -> str:
        """The code of a loop, for it and for all that are like it."""
        name = self.named[key] = f"loop_{len(self.loops)}"
        inner = Round(self.source, loop, self.fuse is not None)
        graph, fused = (inner.graph, []) if self.fuse is None else with_kernels(inner, self.fuse)
        self.within += fused
        body = compiled(graph, calls.modules(fused), f"round_{len(self.loops)}")
        source = write_loop(name, self.source, loop, inner.cuts, inner.extras)
        self.loops[name] = Looped(name, source, body.forward, body)
        return name

    def argument(self, node: fx.Node) -> fx.Node:
        return self.name(self.source.value_of[node])

    def done(self, outputs: list[Any], name: str) -> Emitted:
        self.graph.output(tuple(outputs))
        held: dict[str, Any] = {str(n.target): _held(self.source.module, n) for n in self.graph.nodes if n.op == "get_attr"}
        module = compiled(self.graph, {**held, **self.loops, **calls.modules(self.fused)}, name)
        return Emitted(module.forward, module, self.store is not None, (*self.fused, *self.within))


def compiled(graph: fx.Graph, held: dict[str, Any], name: str) -> fx.GraphModule:
    """A graph as a module that takes one list of arguments and lets go of each at its last use."""
    graph.eliminate_dead_code(lambda node: node.op != "call_function" or node.target is not operator.getitem)
    unused = frozenset(node.name for node in graph.nodes if node.op == "placeholder" and not node.users)
    graph.set_codegen(_Boxed(unused))
    return fx.GraphModule(held, graph, name)


def _held(module: fx.GraphModule, node: fx.Node) -> Any:
    held: Any = module
    for part in str(node.target).split("."):
        held = getattr(held, part)
    return held
