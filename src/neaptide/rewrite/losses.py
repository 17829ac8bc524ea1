"""A joint graph in which the loss over classes can be made in parts, row by row.

In: a joint graph, and the tangents that are usually absent. Out: a changed copy of its fx graph: a mean becomes a sum that is
divided, what only absent tangents flow through is gone, a shape that is left and come back to is never left, and nothing has
two names. Those that are left are the same: what a forward of the one keeps, a backward of the other finds.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from neaptide.apply.absent import other_summand, zeros
from neaptide.axes.losses import MEAN, SUM
from neaptide.graph import Graph
from neaptide.rewrite.copies import copied_module
from neaptide.rewrite.fakes import call, replace, sweep
from neaptide.rewrite.forms import VIEWS, same_sizes, spec

aten = torch.ops.aten
ALIASES = (aten.detach.default, aten.alias.default)
CASTS = (aten._to_copy.default, aten.to.dtype)


def losses_by_row(graph: Graph, absent: Collection[int]) -> fx.GraphModule | None:
    """The copy; None where there is no such loss."""
    if not any(op.target is aten.nll_loss_forward.default for op in graph.ops):
        return None
    module = copied_module(graph.module)
    _leave_out(module, graph, frozenset(absent))
    for node in list(module.graph.nodes):
        if node.target is aten.nll_loss_forward.default and node.args[3] == MEAN:
            _sum_and_divide(node)
    for node in list(module.graph.nodes):
        if node.target in ALIASES and isinstance(node.args[0], fx.Node):
            replace(node, node.args[0])
        elif node.target in VIEWS:
            _stay_in_shape(node)
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
