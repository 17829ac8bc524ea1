"""Sizes that are known without making what has them.

In: an fx graph from AOTAutograd. Out: the same graph, changed in place.
"""

from __future__ import annotations

import torch
from torch import fx

from neaptide.graph import expression
from neaptide.rewrite.fakes import replace


def take_known_sizes(module: fx.GraphModule) -> None:
    """A size that is an input is that input, however it was come by: nothing has to be made in order to be measured."""
    given: dict[object, fx.Node] = {}
    for node in list(module.graph.nodes):
        val = node.meta.get("val")
        if not isinstance(val, torch.SymInt):
            continue
        if node.op == "placeholder":
            given.setdefault(expression(val), node)
        elif node.op == "call_function" and expression(val) in given:
            replace(node, given[expression(val)])
