"""A copy of an fx graph to be changed."""

from __future__ import annotations

from torch import fx


def copied_module(module: fx.GraphModule) -> fx.GraphModule:
    """The same nodes under the same names, with the same fakes in a meta of their own."""
    graph = fx.Graph()
    taken: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        taken[node] = graph.node_copy(node, taken.__getitem__)
    return fx.GraphModule(module, graph)
