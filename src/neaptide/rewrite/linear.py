"""Linear layers and batched products made whole again, after AOTAutograd took them apart.

In: an inference graph with `view, addmm, view` (or `mm`) for a linear layer and `expand, view, bmm, view` for a product of
more than three dims. Out: the same graph with `linear` and `matmul`, changed in place. These run the very calls they stand
for, so that results are bit for bit the same and no byte more is taken; but their dims are those of the model, which can be
followed from op to op.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from neaptide.axes import equal
from neaptide.rewrite.fakes import call, placed, replace, sweep
from neaptide.rewrite.forms import VIEWS, is_matrix_transpose, is_tensor, same_sizes, shape, spec
from neaptide.workspaces.rules import merges

aten = torch.ops.aten


def fuse_linear(module: fx.GraphModule) -> None:
    """Make every linear layer whole again."""
    for node in list(module.graph.nodes):
        if node.target in (aten.addmm.default, aten.mm.default):
            _make_linear(node)
    sweep(module)


def fuse_matmul(module: fx.GraphModule) -> None:
    """Make every batched product of more than three dims whole again, where that hides no copy."""
    for node in list(module.graph.nodes):
        if node.target is aten.bmm.default:
            _make_matmul(node)
    sweep(module)


def _make_linear(product: fx.Node) -> None:
    """Put the linear layer that a product is part of in its place.

    With a bias, `linear` runs `addmm` only on contiguous input, and without one it folds the leading dims only of that; on
    any other it would run another kernel.
    """
    *bias, rows, matrix = product.args
    if product.kwargs or not isinstance(rows, fx.Node) or rows.target not in VIEWS:
        return
    x: Any = rows.args[0]
    *lead, depth = shape(x)
    if len(lead) < 2 or not equal(depth, shape(rows)[-1]) or not spec(x).is_contiguous:
        return
    width = shape(product)[-1]
    if bias and not same_sizes(shape(bias[0]), (width,)):
        return
    if not _is_only_viewed_as(product, (*lead, width)):
        return
    with product.graph.inserting_before(product):
        weight = matrix.args[0] if is_matrix_transpose(matrix) else call(product, aten.t.default, matrix)  # type: ignore[arg-type, union-attr]
        _put_in(placed(product, aten.linear.default, x, weight, *bias), product)


def _make_matmul(product: fx.Node) -> None:
    """Put the product of more than three dims that a `bmm` is part of in its place.

    Where an operand had to be copied to be one batch, the copy stands in the graph and is itself the operand.
    """
    left, right = (_before_batching(operand) for operand in product.args)
    if product.kwargs or left is None or right is None or not same_sizes(shape(left)[:-2], shape(right)[:-2]):
        return
    if not _is_only_viewed_as(product, (*shape(left)[:-1], shape(right)[-1])):
        return
    with product.graph.inserting_before(product):
        _put_in(placed(product, aten.matmul.default, left, right), product)


def _before_batching(operand: Any) -> fx.Node | None:
    """An operand of a `bmm` as it was when it had all its dims, if no copy has to be made to lay them in one row."""
    if not isinstance(operand, fx.Node) or operand.target not in VIEWS:
        return None
    whole: Any = operand.args[0]
    while whole.target is aten.expand.default:
        if not same_sizes(shape(whole), shape(whole.args[0])):
            return None
        whole = whole.args[0]
    described = spec(whole)
    is_batched = len(described.shape) > 3 and same_sizes(described.shape[-2:], shape(operand)[-2:])
    return whole if is_batched and merges(described, len(described.shape) - 2) else None


def _is_only_viewed_as(product: fx.Node, wanted: tuple[Any, ...]) -> bool:
    users = list(product.users)
    return bool(users) and all(u.target in VIEWS and is_tensor(u) and same_sizes(shape(u), wanted) for u in users)


def _put_in(whole: fx.Node, product: fx.Node) -> None:
    """Let the whole make the memory that the product made, so that all fakes behind it stay as they are."""
    for view in list(product.users):
        whole.meta["val"] = view.meta["val"]
        replace(view, whole)
