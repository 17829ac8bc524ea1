"""What a traced graph does for nothing: slices of a whole dim and copies of a part, as `cache[:, i] = row` leaves them, and
copies of what nobody changes, as dropout leaves them in evaluation.

In: an fx graph from AOTAutograd. Out: the same graph, changed in place. A part that is written through such a slice
becomes a part of the memory itself, which can then be written in place (`apply.inplace`).
"""

from __future__ import annotations

import sys

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from neaptide.graph import spec_of
from neaptide.ops import PART_OF, written_arguments
from neaptide.rewrite.fakes import memory, refresh, replace
from neaptide.rewrite.known import take_known_sizes

SLICE, SCATTER = torch.ops.aten.slice.Tensor, torch.ops.aten.slice_scatter.default
COPY, CLONE = torch.ops.aten.copy.default, torch.ops.aten.clone.default


def simplify(module: fx.GraphModule) -> None:
    """Take out all that is done for nothing."""
    take_known_sizes(module)
    for node in list(module.graph.nodes):
        if node.op == "call_function" and not node.kwargs:
            _take_whole_slice(node)
            _take_copied_part(node)
    _take_idle_copies(module)
    module.recompile()


def _take_whole_slice(node: fx.Node) -> None:
    """A slice of everything is what it slices; a write of everything is what it writes, if nothing else takes that."""
    if node.target not in (SLICE, SCATTER) or any(user.op == "output" for user in node.users):
        return
    given = 1 if node.target is SLICE else 2
    same = node.args[given - 1]
    if not isinstance(same, fx.Node) or not _is_whole(*node.args[given:]):
        return
    if spec_of(same.meta["val"]) != spec_of(node.meta["val"]):
        return
    if node.target is SCATTER:  # views of the written whole share its memory, which is now made here
        if not _is_only_for(same, node):
            return
        same.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(same)
    node.graph.erase_node(node)


def _is_whole(dim: object = 0, start: object = None, end: object = None, step: object = 1) -> bool:
    return start in (None, 0) and end in (None, sys.maxsize) and step == 1


def _is_only_for(value: fx.Node, user: fx.Node) -> bool:
    return value.op == "call_function" and value.target in PART_OF and list(value.users) == [user]


def _take_copied_part(node: fx.Node) -> None:
    """A write of a part takes what is copied to its place: a copy has the part's strides, and so its extent."""
    copy = node.args[1] if node.target in PART_OF else None
    if not isinstance(copy, fx.Node) or copy.target is not COPY or not isinstance(copy.args[1], fx.Node):
        return
    made, source = spec_of(copy.meta["val"]), spec_of(copy.args[1].meta["val"])
    if (made.shape, made.dtype, made.device) == (source.shape, source.dtype, source.device):
        node.replace_input_with(copy, copy.args[1])
        if not copy.users:
            node.graph.erase_node(copy)


def _take_idle_copies(module: fx.GraphModule) -> None:
    """A copy in the same strides is what it copies, if neither is handed out and nothing writes to either."""
    end = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    lent = {memory(n) for n in module.graph.nodes if n.op in ("placeholder", "get_attr") and _is_strided(n)}
    handed = {memory(n) for n in tree_leaves(end.args) if isinstance(n, fx.Node) and _is_strided(n)}
    written = {memory(w) for n in module.graph.nodes if n.op == "call_function" for w in written_arguments(n)}
    changed: list[fx.Node] = []
    for node in list(module.graph.nodes):
        source = node.args[0] if node.op == "call_function" and node.target is CLONE else None
        if not isinstance(source, fx.Node) or spec_of(source.meta["val"]) != spec_of(node.meta["val"]):
            continue
        if {memory(source), memory(node)} & (lent | handed | written):
            continue
        replace(node, source)
        changed.append(source)
    if changed:
        refresh(changed)


def _is_strided(node: fx.Node) -> bool:
    val = node.meta.get("val")
    return isinstance(val, torch.Tensor) and val.layout is torch.strided
