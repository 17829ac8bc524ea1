"""A joint graph of which more can be made in parts, row by row.

In: a joint graph, the tangents that are usually absent, and the values that are wide. Out: a changed copy of its fx graph:
the mean of a loss becomes a sum that is divided, what only absent tangents flow through is gone, what wide dropouts let
through is made again of their masks, what is done element by element to wide rows is done to the rows themselves, a shape
that is left and come back to is never left, and nothing has two names. Those that are left are the same: what a forward of
the one keeps, a backward of the other finds.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from neaptide.apply.absent import other_summand, zeros
from neaptide.axes import equal
from neaptide.axes.losses import MEAN, SUM
from neaptide.graph import Graph
from neaptide.rewrite.copies import copied_module
from neaptide.rewrite.fakes import call, refresh, replace, sweep
from neaptide.rewrite.forms import VIEWS, is_tensor, same_sizes, shape, spec

aten = torch.ops.aten
ALIASES = (aten.detach.default, aten.alias.default)
CASTS = (aten._to_copy.default, aten.to.dtype)


def by_rows(graph: Graph, absent: Collection[int], wide: Collection[int] = ()) -> fx.GraphModule:
    """The copy."""
    module = copied_module(graph.module)
    _leave_out(module, graph, frozenset(absent))
    for node in list(module.graph.nodes):
        if node.target is aten.nll_loss_forward.default and node.args[3] == MEAN:
            _sum_and_divide(node)
    widest = {graph.holders[v].name for v in wide if v in graph.holders}
    backward = {op.name for op in graph.ops if op.phase == "backward"}
    changed = [made for node in list(module.graph.nodes) if node.name in widest for made in _mask_again(node, backward)]
    widest.update(node.name for node in changed)
    for node in list(module.graph.nodes):
        if node.target in ALIASES and isinstance(node.args[0], fx.Node):
            replace(node, node.args[0])
        elif node.target in VIEWS:
            _stay_in_shape(node)
        elif node.name in widest:
            changed += _work_on_rows(node)
    refresh(changed)
    sweep(module)
    return module


def _leave_out(module: fx.GraphModule, graph: Graph, absent: frozenset[int]) -> None:
    """Take out what only absent tangents flow through: sums with them are their other summand."""
    nodes = {node.name: node for node in module.graph.nodes}
    zero = zeros(graph, absent)
    for index, op in enumerate(graph.ops):
        if op.phase == "backward" and not all(v in zero for v in op.outputs):
            other = other_summand(graph, index, zero)
            if other is not None:
                replace(nodes[op.name], nodes[graph.holders[other].name])
    gone = {nodes[graph.holders[v].name] for v in zero if v in graph.holders and graph.holders[v].name in nodes}
    end = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    count = len(graph.outputs)
    handed = tree_leaves(end.args, is_leaf=lambda leaf: leaf is None)
    end.args = (tuple(None if i >= count and leaf in gone else leaf for i, leaf in enumerate(handed)),)


def _sum_and_divide(loss: fx.Node) -> None:
    """The mean of a loss as what it is."""
    parts: dict[Any, fx.Node] = {node.args[1]: node for node in loss.users if node.target is operator.getitem}
    if set(parts) != {0, 1}:
        return
    loss.update_arg(3, SUM)
    last = max(parts.values(), key=list(loss.graph.nodes).index)
    with loss.graph.inserting_after(last):
        mean = call(loss, aten.div.Tensor, parts[0], parts[1])
    parts[0].replace_all_uses_with(mean, delete_user_cb=lambda user: user is not mean)


def _mask_again(kept: fx.Node, backward: Collection[str]) -> list[fx.Node]:
    """What a dropout let through, for the backward: made again of what came in and the mask, with no number drawn."""
    drop: Any = kept.args[0] if kept.target is operator.getitem and kept.args[1] == 0 else None
    if drop is None or drop.target is not aten.native_dropout.default or not isinstance(drop.args[1], float):
        return []
    users = [user for user in kept.users if user.name in backward]
    mask = next((user for user in drop.users if user.target is operator.getitem and user.args[1] == 1), None)
    if not users or mask is None or not 0 <= drop.args[1] < 1:
        return []
    first = min(users, key=list(kept.graph.nodes).index)
    with kept.graph.inserting_before(first):
        masked = call(first, aten.mul.Tensor, drop.args[0], mask)
        again = call(first, aten.mul.Tensor, masked, 1 / (1 - drop.args[1]))
    for user in users:
        user.replace_input_with(kept, again)
    return [masked, again]


def _work_on_rows(node: fx.Node) -> list[fx.Node]:
    """What is done element by element to rows in another shape: done to the rows, its result in that shape; the new calls."""
    target = node.target
    if not isinstance(target, OpOverload) or target._schema.is_mutable or not _is_pointwise(target):
        return []
    rows: dict[fx.Node, fx.Node] = {}
    masks: list[fx.Node] = []
    for source in filter(is_tensor, node.all_input_nodes):
        inner: Any = source.args[0] if source.target in VIEWS else None
        if is_tensor(inner) and same_sizes(shape(source), shape(node)) and _are_rows_of(inner, node):
            rows[source] = inner
        elif source.target is aten.bernoulli.p and same_sizes(shape(source), shape(node)) and isinstance(shape(node)[-1], int):
            masks.append(source)
        elif len(shape(source)) > 1:
            return []
    if not rows:
        return []
    like = next(iter(rows))
    with node.graph.inserting_before(node):
        rows.update((mask, call(node, aten.view.default, mask, [-1, shape(node)[-1]])) for mask in masks)
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: rows.get(n, n))
        made = call(node, target, *args, **kwargs)
        shaped = call(node, aten.view.default, made, like.args[1])
    replace(node, shaped)
    return [made, shaped]


def _is_pointwise(target: OpOverload) -> bool:
    return torch.Tag.pointwise in target.tags or target is aten.native_dropout_backward.default


def _are_rows_of(rows: fx.Node, node: fx.Node) -> bool:
    """Whether a matrix has the last dim of a result as its rows, one behind the other in memory."""
    held, whole = spec(rows), shape(node)
    return len(held.shape) == 2 < len(whole) and equal(held.shape[1], whole[-1]) and same_sizes(held.stride, (held.shape[1], 1))


def _stay_in_shape(view: fx.Node) -> None:
    """A view of a view, or of a cast of one, that has the shape which the first had of: that itself, or its cast."""
    inner: Any = view.args[0]
    cast = inner if isinstance(inner, fx.Node) and inner.target in CASTS else None
    outer: Any = inner if cast is None else cast.args[0]
    if not isinstance(outer, fx.Node) or outer.target not in VIEWS:
        return
    source: Any = outer.args[0]
    own, there = spec(view), spec(source)
    if not same_sizes(own.shape, there.shape) or not same_sizes(own.stride, there.stride):
        return
    if cast is None:
        replace(view, source)
        return
    with view.graph.inserting_before(view):
        replace(view, call(cast, cast.target, source, *cast.args[1:], **cast.kwargs))
