"""Sizes that are known without making what has them.

In: an fx graph from AOTAutograd. Out: the same graph, changed in place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch import fx

from neaptide._torch import FloorDiv
from neaptide.graph import expression
from neaptide.rewrite.fakes import replace

ARITHMETIC: dict[Any, Callable[..., Any]] = {sympy.Add: operator.add, sympy.Mul: operator.mul, FloorDiv: operator.floordiv}


def take_known_sizes(module: fx.GraphModule) -> None:
    """A size that is an input, or follows from some, is just that: nothing has to be made in order to be measured."""
    given: dict[object, Any] = {}
    first = next((node for node in module.graph.nodes if node.op != "placeholder"), None)
    for node in list(module.graph.nodes):
        val = node.meta.get("val")
        if not isinstance(val, torch.SymInt):
            continue
        if node.op == "placeholder":
            given.setdefault(expression(val), node)
        elif node.op == "call_function":
            known = given.get(expression(val))
            if known is None and node.target is torch.ops.aten.sym_size.int and first is not None:
                with module.graph.inserting_before(first):
                    known = _computed(module.graph, expression(val), given)
            if isinstance(known, fx.Node) and known is not node:
                first = node.next if node is first else first
                replace(node, known)


def _computed(graph: fx.Graph, size: Any, given: dict[object, Any]) -> Any:
    """A size from those that are there, as a node or a number; None where that takes more than sums, products and quotients."""
    if isinstance(size, int) or size.is_Integer:
        return int(size)
    if size in given:
        return given[size]
    target = ARITHMETIC.get(size.func)
    if target is None:
        return None
    parts = [_computed(graph, part, given) for part in size.args]
    if any(part is None for part in parts):
        return None
    made, *others = parts
    for part in others:
        vals = [each.meta["val"] if isinstance(each, fx.Node) else each for each in (made, part)]
        made = graph.call_function(target, (made, part))
        made.meta["val"] = target(*vals)
    given[size] = made
    return made
