"""One round of a loop as an fx graph: the body's ops on parts of what they read.

In: a `Loop` step. Out: a graph that is given the round's first and last unit, the numbers it needs, what it reads (cut or
whole) and the parts of the results to write to. Each op runs as it is, on slices, with the part's extent where it names one.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map

from neaptide._torch import suggest_memory_format
from neaptide.axes import Axis, Flow
from neaptide.axes.matrix import add_products
from neaptide.axes.parts import put_sizes
from neaptide.graph import Graph
from neaptide.steps import Cut, Loop, Made, Part, cuts_of_parts

aten = torch.ops.aten


def group_norm_part(x: torch.Tensor, *rest: Any) -> Any:
    """The op, whose kernel takes nothing but contiguous memory."""
    return aten.native_group_norm.default(x.contiguous(memory_format=suggest_memory_format(x)), *rest)


OF_ANY_LAYOUT = {
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
    aten.native_group_norm.default: group_norm_part,
}
"""A slice, or a batch of one, may lie otherwise than the whole: then the part is copied where the whole was not."""


ADDED: dict[Any, Any] = {aten.mm.default: aten.addmm_.default, aten.bmm.default: add_products}
"""Products whose sum over the rounds is made without a product of its own for each."""


class Round:
    """The graph of one round, what it is given of the values from outside, and the numbers it is given beside."""

    def __init__(self, source: Graph, loop: Loop, with_sizes: bool = False) -> None:
        self.source = source
        self.loop = loop
        self.graph = fx.Graph()
        self.local: dict[int, fx.Node] = {}
        self.lo, self.hi = self._take("lo"), self._take("hi")
        self.extras, self.numbers = self._take_blocks(loop)
        self.sizes = [self._take(f"size_{s.name}") for s in source.sizes.symbols] if with_sizes else []
        """The free sizes, for whoever needs them beside the ops."""
        if with_sizes:
            self.extras += tuple(source.sizes.symbol(s.name) for s in source.sizes.symbols)
        self.cuts, self.given = self._take_cuts(loop)
        self.results = {m.value: self._take(f"{self._name(m.value)}_out") for m in loop.made}
        self._extents: dict[Any, fx.Node] = {}
        at_once = {m.value: m for m in loop.made if m.onto is None}
        for index, part in enumerate(loop.parts):
            self._call(part, index)
            for value in source.ops[part.op].outputs:
                if value in at_once:
                    self._write(at_once[value])
        for made in loop.made:
            if made.onto is not None:  # what it is written over was read by then
                self._write(made)
        self.graph.output(())

    def _name(self, value: int) -> str:
        return self.source.values[value].name.replace(".", "_part")

    def _take(self, name: str) -> fx.Node:
        """What the round is given next, under a name of its own: one value may come cut and whole."""
        given = self.graph.placeholder(name)
        given.target = given.name
        return given

    def _take_blocks(self, loop: Loop) -> tuple[tuple[Any, ...], dict[Any, Any]]:
        """The sizes of blocks that are not plain numbers come from outside."""
        blocks = dict.fromkeys(h.block for p in loop.parts for h in p.axis.outputs if isinstance(h, Flow))
        symbolic = [b for b in blocks if not isinstance(b, int)]
        numbers: dict[Any, Any] = {b: b for b in blocks if isinstance(b, int)}
        numbers |= {b: self._take(f"block_{i}") for i, b in enumerate(symbolic)}
        return tuple(symbolic), numbers

    def _take_cuts(self, loop: Loop) -> tuple[tuple[Cut, ...], dict[Cut, fx.Node]]:
        wanted = cuts_of_parts(self.source, loop.parts)
        return wanted, {cut: self._take(self._name(cut.value)) for cut in wanted}

    def _call(self, part: Part, index: int) -> None:
        op, axis = self.source.ops[part.op], part.axis
        position = 0

        def argument(leaf: Any) -> Any:
            nonlocal position
            if not isinstance(leaf, fx.Node):
                return leaf
            value = self.source.value_of[leaf]
            flow = None
            if isinstance(self.source.values[value].fake, torch.Tensor):
                flow = axis.inputs[position]
                position += 1
            return self.local[value] if value in self.local else self.given[Cut(value, flow)]

        args: Any = tree_map(argument, list(op.node.args))
        kwargs: Any = {k: tree_map(argument, v) for k, v in op.node.kwargs.items()}
        if axis.sizes:
            args = put_sizes(args, axis, self._extent(axis))
        target: Any = OF_ANY_LAYOUT.get(op.target, op.target)
        if axis.instead is not None:
            target, args = axis.instead, (self._times(self.lo, axis.block), self._times(self.hi, axis.block), *args)
        made = self.graph.create_node("call_function", target, tuple(args), kwargs, op.name)
        made.meta.update(place=(op.path, op.source), part=index)
        if self.source.values[op.outputs[0]].part is None:
            self.local[op.outputs[0]] = made
            return
        for value in op.outputs:
            taken = (made, self.source.values[value].part)
            self.local[value] = self.graph.create_node("call_function", operator.getitem, taken, {}, f"{op.name}_{taken[1]}")

    def _extent(self, axis: Axis) -> fx.Node:
        """How many positions of the first result's dim a round makes."""
        if 1 not in self._extents:
            self._extents[1] = self.graph.call_function(operator.sub, (self.hi, self.lo))
        if axis.block not in self._extents:
            self._extents[axis.block] = self._times(self._extents[1], axis.block)
        return self._extents[axis.block]

    def _times(self, units: fx.Node, block: Any) -> fx.Node:
        return units if block == 1 else self.graph.call_function(operator.mul, (units, self.numbers[block]))

    def _write(self, made: Made) -> None:
        onto, result = self.results[made.value], self.local[made.value]
        if made.how == "sum":
            adds = ADDED.get(result.target)
            if adds is None or result.kwargs:
                self.graph.call_function(aten.add_.Tensor, (onto, result))
            else:
                self.graph.call_function(adds, (onto, *result.args))
                self.graph.erase_node(result)
            return
        if not isinstance(made.how, Flow):
            combine = aten.maximum.default if made.how == "max" else aten.minimum.default
            result = self.graph.call_function(combine, (onto, result))
        self.graph.call_function(aten.copy_.default, (onto, result))
