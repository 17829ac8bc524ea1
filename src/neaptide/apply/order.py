"""A graph with its ops in another order.

In: a graph and an order of its ops. Out: the same graph, its ops in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neaptide.graph import Graph


def reordered(graph: Graph, order: Sequence[int]) -> Graph:
    """The graph with its ops in this order."""
    place = {old: new for new, old in enumerate(order)}
    maker = tuple(None if op is None else place[op] for op in graph.maker)
    return replace(graph, ops=tuple(graph.ops[old] for old in order), maker=maker)
