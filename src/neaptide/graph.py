"""What a model means: ATen ops over values, values over storages, every storage's bytes a symbolic expression.

In: an fx graph from AOTAutograd (inference, or forward and backward in one), whose nodes carry fake tensors. Out: a
frozen `Graph`. A value is a name; a storage is memory. Views and in-place ops make several values of one storage, which
costs its bytes once and lives until its last value dies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal
from weakref import WeakKeyDictionary

import sympy
import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from neaptide._torch import FloorDiv
from neaptide.sizes import Sizes, quotient
from neaptide.timeline import Kind
from neaptide.workspaces import Spec

Phase = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory: `size` is the index of its bytes in the graph's `Sizes`."""

    name: str
    size: int
    kind: Kind
    device: str
    path: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A name for a tensor (or, where `storage` is None, for a size). `node` carries its fake tensor in `meta["val"]`."""

    name: str
    storage: int | None
    node: fx.Node
    part: int | None = None
    """The position in the op's result, where the op returns several."""

    @property
    def fake(self) -> Any:
        """The fake tensor (or symbolic size) that stands for the value."""
        val = self.node.meta.get("val")
        return val if self.part is None or val is None else val[self.part]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One call: what it reads, makes and writes in place, and where in the user's model it came from."""

    name: str
    node: fx.Node
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    writes: tuple[int, ...]
    phase: Phase
    random: bool
    once: bool
    workspace: int
    path: str = ""
    source: str = ""

    def __repr__(self) -> str:
        return f"Op({self.name}: {self.label})"

    @property
    def target(self) -> Any:
        return self.node.target

    @property
    def label(self) -> str:
        """The op's name as a person would say it, with its module path."""
        name = getattr(self.target, "__name__", str(self.target))
        if isinstance(self.target, torch._ops.OpOverload):
            name = self.target.name().split("::")[-1].removesuffix(".default")
        return f"{name} @ {self.path}" if self.path else name


@dataclass(frozen=True, slots=True)
class Input:
    """What is known of a graph input beforehand: its name, what it is for, the module it belongs to."""

    name: str
    kind: Kind
    path: str = ""


@dataclass(frozen=True, eq=False)
class Graph:
    """A captured graph. `values[i]` is made by `maker[i]` (an op's index), or is an input or constant (None)."""

    name: str
    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    storages: tuple[Storage, ...]
    inputs: tuple[int, ...]
    tangents: tuple[int, ...]
    constants: tuple[int, ...]
    outputs: tuple[int | None, ...]
    gradients: tuple[int | None, ...]
    sizes: Sizes
    module: fx.GraphModule
    maker: tuple[int | None, ...]
    mutated: frozenset[int]
    """The inputs that a run of the graph changes, inside it or right after it."""
    holders: Mapping[int, fx.Node]
    """For each value, the node whose own result it is (for a part of a result, the node that takes it out)."""
    fixed: Mapping[str, str]
    """Input sizes that PyTorch took as constants, and why."""
    device: str
    nothing: int
    """The index of the size 0."""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.ops)} ops, {len(self.values)} values, {len(self.storages)} storages)"

    @property
    def trains(self) -> bool:
        return bool(self.gradients)

    @cached_property
    def value_of(self) -> Mapping[fx.Node, int]:
        """For each node that is one value, that value."""
        return {node: value for value, node in self.holders.items()}

    @cached_property
    def places(self) -> tuple[tuple[int, int | None], ...]:
        """Where among the inputs each free size can be read: as a number, or as a dim of a tensor."""
        found: dict[str, tuple[int, int | None]] = {}
        for position, value in enumerate(self.inputs):
            fake = self.values[value].fake
            if isinstance(fake, torch.SymInt):
                found[str(fake.node.expr)] = (position, None)
            elif isinstance(fake, torch.Tensor):
                for dim, size in enumerate(fake.shape):
                    found.setdefault(str(size), (position, dim))
        return tuple(found[s.name] for s in self.sizes.symbols)

    @cached_property
    def free_inputs(self) -> Mapping[int, int]:
        """The inputs that are free sizes, and which: one size may come in more than once."""
        order = {s.name: number for number, s in enumerate(self.sizes.symbols)}
        numbers = ((v, self.values[v].fake) for v in self.inputs)
        names = ((v, str(fake.node.expr)) for v, fake in numbers if isinstance(fake, torch.SymInt))
        return {v: order[name] for v, name in names if name in order}

    @cached_property
    def held(self) -> tuple[int, ...]:
        """For each storage the index of what it takes on the graph's device: nothing for one that is elsewhere."""
        return tuple(s.size if s.device == self.device else self.nothing for s in self.storages)

    def operands(self, op: int) -> tuple[int, ...]:
        """The tensors that an op is given, in the order of its arguments, each as often as it is given."""
        return self._operands[op]

    @cached_property
    def _operands(self) -> list[tuple[int, ...]]:
        values, known = self.values, self.value_of
        leaves = (tree_leaves((list(op.node.args), dict(op.node.kwargs))) for op in self.ops)
        given = ((known[leaf] for leaf in each if isinstance(leaf, fx.Node)) for each in leaves)
        return [tuple(v for v in each if isinstance(values[v].fake, torch.Tensor)) for each in given]

    @cached_property
    def lies(self) -> tuple[tuple[tuple[int, int | None, int | None], ...], ...]:
        """For each op its results: the value, its storage, and what it shares that with: an input, or a result before it."""
        found = []
        for op in self.ops:
            sharing = {self.values[v].storage: v for v in op.inputs}
            results = []
            for value in op.outputs:
                storage = self.values[value].storage
                results.append((value, storage, sharing.get(storage)))
                sharing.setdefault(storage, value)
            found.append(tuple(results))
        return tuple(found)

    def spec(self, value: int) -> Spec:
        """The shape, strides, dtype and device of a tensor, as expressions."""
        found = self._specs.get(value)
        if found is None:
            found = self._specs[value] = spec_of(self.values[value].fake)
        return found

    @cached_property
    def _specs(self) -> dict[int, Spec]:
        return {}

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The label of each op."""
        return tuple(op.label for op in self.ops)

    def storage_of(self, value: int) -> int | None:
        return self.values[value].storage

    def source_text(self) -> str:
        """The graph as PyTorch prints it."""
        return str(self.module.graph)


def expression(size: Any) -> Any:
    """A size as a plain int or a sympy expression, with divisions done that leave no rest.

    Sizes that the capture was found to need equal (as many labels as rows of scores) are one expression.
    """
    if not isinstance(size, torch.SymInt):
        return int(size)
    found = _divided(size.node.expr)
    same = _same_sizes(size.node.shape_env)
    return same.get(sympy.expand(found), found) if same else found


_same: WeakKeyDictionary[Any, tuple[int, dict[Any, Any]]] = WeakKeyDictionary()


def _same_sizes(shapes: Any) -> dict[Any, Any]:
    """For expressions that guards of a capture say are equal to another, one of the two to stand for both."""
    guards = shapes.guards
    known, same = _same.get(shapes, (0, {}))
    if known != len(guards):
        for guard in guards[known:]:
            if isinstance(guard.expr, sympy.Eq):
                sides = sorted((sympy.expand(shapes.replace(side)) for side in guard.expr.args), key=str)
                one, other = (same.get(side, side) for side in sides)
                if one != other and not any(side.is_Symbol or side.is_number for side in sides):  # those torch puts in itself
                    same.update((side, one) for side, stands in [*same.items(), (other, other)] if stands == other)
        _same[shapes] = (len(guards), same)
    return same


@cache
def _divided(size: Any) -> Any:
    if not size.has(FloorDiv):
        return size

    def divide(whole: Any, part: Any) -> Any:
        ratio = quotient(whole, part)
        return FloorDiv(whole, part) if ratio is None else ratio

    done = size.replace(FloorDiv, divide)
    return done if done == size else _divided(done)  # what was divided inside may let the outside be


def spec_of(fake: torch.Tensor) -> Spec:
    """The shape, strides, dtype and device of a fake tensor, as expressions."""
    strides = tuple(expression(s) for s in fake.stride()) if fake.layout is torch.strided else ()
    return Spec(tuple(expression(s) for s in fake.shape), strides, fake.dtype, fake.device.type)


def described(node: fx.Node) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, with a spec for each tensor and an expression for each symbolic number."""

    def as_spec(leaf: Any) -> Any:
        val = leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf
        if isinstance(val, torch.Tensor):
            return spec_of(val)
        return expression(val) if isinstance(val, torch.SymInt) else val

    return tree_map(as_spec, list(node.args)), {k: tree_map(as_spec, v) for k, v in node.kwargs.items()}
