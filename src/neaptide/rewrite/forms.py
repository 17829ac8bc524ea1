"""What can be told of a node from its shape: which values are the same one in another shape, which dims lie in one row.

Sizes are compared as expressions, so that nothing is decided about them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from neaptide.axes import equal
from neaptide.graph import spec_of
from neaptide.workspaces import Spec

aten = torch.ops.aten

VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})
COPIES = frozenset({aten.clone.default, aten.contiguous.default})
ONES = frozenset({aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default})
TURNS = frozenset({aten.permute.default, aten.transpose.int, aten.t.default})
SAME = frozenset({aten.alias.default, aten.detach.default, aten.expand.default})


def spec(node: Any) -> Spec:
    """The shape, strides, dtype and device of a node's result."""
    return spec_of(node.meta["val"])


def shape(node: Any) -> tuple[Any, ...]:
    """A node's shape, as numbers and expressions."""
    return spec(node).shape


def is_tensor(node: Any) -> bool:
    """Whether an argument is a node whose result is a single strided tensor."""
    held = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(held, torch.Tensor) and held.layout is torch.strided


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are the same at every size of the capture.

    >>> same_sizes((2, 3), (2, 3)), same_sizes((2, 3), (6,))
    (True, False)
    """
    return len(a) == len(b) and all(equal(one, other) for one, other in zip(a, b, strict=True))


def before(node: Any) -> fx.Node | None:
    """A value as it was before calls that only gave it another shape, the elements in the same order; None if none did."""
    if not is_tensor(node) or node.op != "call_function" or not node.args or not is_tensor(node.args[0]):
        return None
    source: Any = node.args[0]
    if node.target in VIEWS or node.target in COPIES or node.target in ONES:
        return source
    if node.target in SAME:
        return source if same_sizes(shape(node), shape(source)) else None
    return _before_turns(node) if node.target in TURNS else None


def after(node: fx.Node) -> fx.Node | None:
    """The form that a value is given next, where nothing else takes it."""
    made = node
    while len(made.users) == 1:
        (made,) = made.users
        if before(made) is node:
            return made
        if made.target not in TURNS:
            return None
    return None


def _before_turns(node: fx.Node) -> fx.Node | None:
    """What was permuted, by one call or by several that undo each other; dims of size 1 may be anywhere."""
    order, source = permutation(node), node.args[0]
    while True:
        sizes = shape(source)
        kept = [dim for dim in order if sizes[dim] != 1]
        if kept == sorted(kept):
            return source  # type: ignore[return-value]
        if source.target not in TURNS:  # type: ignore[union-attr]
            return None
        inner = permutation(source)
        order, source = [inner[dim] for dim in order], source.args[0]  # type: ignore[union-attr]


def permutation(node: Any) -> list[int]:
    """For each dim of the result of a `permute`, `transpose` or `t`, the dim of its argument that it is."""
    dims = list(range(len(shape(node.args[0]))))
    if node.target is aten.permute.default:
        return [int(dim) % len(dims) for dim in node.args[1]]
    if node.target is aten.transpose.int:
        first, second = node.args[1] % len(dims), node.args[2] % len(dims)
        dims[first], dims[second] = second, first
        return dims
    return dims[::-1]


def is_matrix_transpose(node: fx.Node) -> bool:
    """Whether a call swaps the last two dims of its argument and leaves the others as they are."""
    if node.op != "call_function" or node.target not in TURNS or not is_tensor(node.args[0]):
        return False
    dims = list(range(len(shape(node))))
    return len(dims) > 1 and permutation(node) == [*dims[:-2], dims[-1], dims[-2]]


def forms(node: Any) -> Iterator[Any]:
    """A value in all the shapes it had, the latest first, copies of it included."""
    while node is not None:
        yield node
        node = before(node)


def earliest(node: fx.Node, wanted: Sequence[Any]) -> fx.Node | None:
    """The earliest form of a value that has the wanted shape, be it with other dims of size 1.

    Copies that were made for a later shape are then not needed.
    """
    exact = [form for form in forms(node) if same_sizes(shape(form), wanted)]
    alike = [form for form in forms(node) if same_sizes(_wide(shape(form)), _wide(wanted))]
    return (exact or alike or [None])[-1]


def _wide(sizes: Sequence[Any]) -> list[Any]:
    return [size for size in sizes if size != 1]
