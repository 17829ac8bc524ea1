"""Concrete shapes: what every tensor of a graph looks like at one size, and in one part of a loop.

In: a graph, concrete dims. Out: `Spec`s of ints, from the one table of sizes, so that what is asked of thousands of ops for a
new size (their workspaces, their times) costs look-ups and no symbolic arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx
from torch.utils._pytree import tree_map

from neaptide.axes import Axis, Flow
from neaptide.graph import Graph, expression
from neaptide.workspaces import Spec, is_listed, workspace


class Shapes:
    """The shapes and strides of a graph's values as indices into its table of sizes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._indices: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        add = graph.sizes.add
        for value, held in enumerate(graph.values):
            fake = held.fake
            if isinstance(fake, torch.Tensor) and fake.layout is torch.strided:
                shape = tuple(add(expression(size)) for size in fake.shape)
                self._indices[value] = (shape, tuple(add(expression(step)) for step in fake.stride()))

    def form(self, values: Sequence[int]) -> object:
        """What tells whether tensors look alike at every size."""
        return tuple((self._indices.get(v), getattr(self.graph.values[v].fake, "dtype", None)) for v in values)

    def at(self, dims: Sequence[int]) -> Concrete:
        """Everything at the sizes `dims`."""
        return Concrete(self.graph, self._indices, self.graph.sizes.evaluate(dims))


class Concrete:
    """The shapes of a graph at one size."""

    def __init__(self, graph: Graph, indices: dict[int, tuple[tuple[int, ...], tuple[int, ...]]], sizes: Sequence[int]) -> None:
        self.graph, self.sizes = graph, sizes
        self._indices = indices
        self._specs: dict[int, Spec | None] = {}

    def spec(self, value: int) -> Spec | None:
        """What a value looks like; None where it is no (strided) tensor."""
        if value not in self._specs:
            found = self._indices.get(value)
            fake = self.graph.values[value].fake
            self._specs[value] = None if found is None else Spec(*self._numbers(found), fake.dtype, fake.device.type)
        return self._specs[value]

    def _numbers(self, indices: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        shape, stride = indices
        return tuple(self.sizes[i] for i in shape), tuple(self.sizes[i] for i in stride)

    def arguments(self, op: int, cut: Callable[[int, Spec], Spec] = lambda _, spec: spec) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of an op with a spec for each tensor; `cut` changes the one at a position among the tensors."""
        node = self.graph.ops[op].node
        position = 0

        def described(leaf: Any) -> Any:
            nonlocal position
            if not isinstance(leaf, fx.Node):
                return leaf
            spec = self.spec(self.graph.value_of[leaf]) if leaf in self.graph.value_of else None
            if spec is None:
                fake = leaf.meta.get("val")
                return _number(self.graph, fake, self.sizes) if isinstance(fake, torch.SymInt) else fake
            position += 1
            return cut(position - 1, spec)

        return tree_map(described, list(node.args)), {k: tree_map(described, v) for k, v in node.kwargs.items()}

    def extent(self, spec: Spec, flow: Flow, rows: int, whole: int) -> Spec:
        """A part of a tensor: `rows` units of `whole` along its flow."""
        shape = list(spec.shape)
        shape[flow.dim] = shape[flow.dim] // whole * rows
        return Spec(tuple(shape), spec.stride, spec.dtype, spec.device)

    def part(self, op: int, axis: Axis, rows: int, whole: int) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of an op for `rows` units of `whole` along an axis, as specs."""

        def cut(position: int, spec: Spec) -> Spec:
            flow = axis.inputs[position]
            return spec if flow is None else self.extent(spec, flow, rows, whole)

        return self.arguments(op, cut)

    def part_workspace(self, op: int, axis: Axis, rows: int, whole: int) -> int:
        """Bytes that an op hides while it runs on a part."""
        target = self.graph.ops[op].target
        if not is_listed(target) and axis.beside is None:
            return 0
        args, kwargs = self.part(op, axis, rows, whole)
        own = workspace(target, args, kwargs, torch.get_num_threads()) if is_listed(target) else 0
        return int(own + (axis.beside(*args, **kwargs) if axis.beside is not None else 0))

    def beside(self, op: int, axis: Axis) -> int:
        """Bytes that an op makes for itself where it is done in parts, if one part were all."""
        args, kwargs = self.arguments(op)
        return int(axis.beside(*args, **kwargs)) if axis.beside is not None else 0


def rows_of(extent: int, chunk: int) -> int:
    """The most units in a part, where `extent` units are shared out evenly among parts of at most `chunk`.

    >>> rows_of(1000, 256), rows_of(100, 256)
    (250, 100)
    """
    return -(-extent // -(-extent // chunk)) if extent > 0 else 0


def _number(graph: Graph, size: torch.SymInt, sizes: Sequence[int]) -> int:
    """A symbolic number among the arguments; it has its place in the table only if some tensor has that size."""
    known = graph.sizes.find(expression(size))
    return sizes[known] if known is not None else int(size.node.hint or 0)


_made: WeakKeyDictionary[Graph, Shapes] = WeakKeyDictionary()


def shapes_of(graph: Graph) -> Shapes:
    """The shapes of a graph, made once."""
    if graph not in _made:
        _made[graph] = Shapes(graph)
    return _made[graph]
