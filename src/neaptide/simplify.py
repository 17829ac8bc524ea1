"""What a traced graph does for nothing, as `cache[:, i] = row` leaves it: slices of a whole dim, copies of a part.

In: an fx graph from AOTAutograd. Out: the same graph, changed in place. A part that is written through such a slice
becomes a part of the memory itself, which can then be written in place (`apply.inplace`).
"""

from __future__ import annotations

import sys

import torch
from torch import fx

from neaptide.graph import spec_of
from neaptide.ops import PART_OF

SLICE, SCATTER = torch.ops.aten.slice.Tensor, torch.ops.aten.slice_scatter.default
COPY = torch.ops.aten.copy.default


def simplify(module: fx.GraphModule) -> None:
    """Take out all that is done for nothing."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and not node.kwargs:
            _take_whole_slice(node)
            _take_copied_part(node)
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
