"""Dropout in its parts: the mask is drawn, what it lets through is multiplied. So that can be made again with no number drawn.

In: a joint graph from AOTAutograd. Out: the same graph, changed in place. On the CPU the kernel does just that, bit for bit;
the fused ones of accelerators draw otherwise, and stay.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from neaptide.rewrite.fakes import call, replace
from neaptide.rewrite.forms import spec

aten = torch.ops.aten


def part_dropouts(module: fx.GraphModule) -> None:
    """Let masks be values of their own."""
    for node in module.graph.find_nodes(op="call_function", target=aten.native_dropout.default):
        source, chance, trains = node.args
        if isinstance(source, fx.Node) and isinstance(chance, float) and 0 < chance < 1 and trains is True:
            _part(node, source, chance)
    module.recompile()


def _part(node: fx.Node, source: fx.Node, chance: float) -> None:
    results: dict[Any, fx.Node] = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    if source.meta["val"].device.type != "cpu" or len(results) != len(node.users):
        return
    with node.graph.inserting_before(node):
        bare = call(node, aten.empty_like.default, source, dtype=torch.bool, memory_format=torch.contiguous_format)
        mask = call(node, aten.bernoulli.p, bare, 1 - chance)
        masked = call(node, aten.mul.Tensor, source, mask)
        scale = float(torch.tensor(1 / (1 - chance), dtype=source.meta["val"].dtype))  # as the kernel rounds it
        through = call(node, aten.mul.Tensor, masked, scale)
    made = {0: through, 1: mask}
    if any(spec(made[i]) != spec(old) for i, old in results.items()):
        for new in (through, masked, mask, bare):
            node.graph.erase_node(new)
        return
    for i, old in results.items():
        made[i].meta["val"] = old.meta["val"]  # views of it, further down, are of this memory
        replace(old, made[i])
    node.graph.erase_node(node)
    if 0 not in results:
        for new in (through, masked):
            node.graph.erase_node(new)
