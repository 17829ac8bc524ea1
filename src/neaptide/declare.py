"""The split that AOTAutograd is told: a forward that saves all that any plan may save, a backward that takes it.

In: a graph and its slots. Out: two modules whose signatures AOTAutograd builds
its wrappers around. Their bodies are complete but never run: at each call the runner runs the plan's own pieces.
"""

from __future__ import annotations

from operator import getitem

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from neaptide._torch import FakeTensor
from neaptide.emit import Slots
from neaptide.errors import CaptureError
from neaptide.graph import Graph

aten = torch.ops.aten


def declare(graph: Graph, slots: Slots) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The declared forward and backward. Saved are, in order: a header, the generator states, the tensors, the sizes."""
    fake_mode = next(v.fake.fake_mode for v in graph.values if isinstance(v.fake, FakeTensor))
    nodes = list(graph.module.graph.nodes)
    late = _late(graph)
    forward, before = fx.Graph(), {}
    for node in nodes:
        if node.op != "output" and node not in late:
            before[node] = forward.node_copy(node, lambda n: before[n])
    extra = []
    for position, dims in enumerate([2, *([1] * len(slots.marks))]):
        made = forward.call_function(aten.empty.memory_format, ((0,) * dims,))
        made.name = f"neaptide_{position}"
        with fake_mode:
            made.meta["val"] = torch.empty((0,) * dims)
        extra.append(made)
    held = [graph.holders[v] for v in slots.tensors if v is not None]
    counts = [graph.holders[v] for v in slots.sizes if v is not None]
    described = tree_leaves(nodes[-1].meta["desc"])
    outputs = [None if v is None else before[graph.holders[v]] for v in graph.outputs]
    saved = [*extra, *(before[n] for n in held), *(before[n] for n in counts)]
    end = forward.output((*outputs, *saved))
    end.meta["desc"] = [*described[: len(outputs)], *([None] * len(saved))]

    backward, after = fx.Graph(), {}
    for node in [*counts, *extra, *held, *(graph.values[v].node for v in graph.tangents)]:
        after[node] = backward.placeholder(node.name)
        after[node].meta = dict(node.meta)
    for node in (graph.values[v].node for v in graph.tangents):
        after[node] = backward.call_function(refuse_to_run, (after[node],))
        after[node].meta = dict(node.meta)
    for node in nodes:
        if node in after or node.op not in ("get_attr", "call_function"):
            continue
        if node in late or all(a in after for a in node.all_input_nodes):
            after[node] = backward.node_copy(node, lambda n: after[n])
    end = backward.output(tuple(None if v is None else after[graph.holders[v]] for v in graph.gradients))
    end.meta["desc"] = list(described[len(outputs) :])
    return fx.GraphModule(graph.module, forward), fx.GraphModule(graph.module, backward)


def refuse_to_run(tangent: object = None) -> None:
    """Stands at the start of a declared backward. Compiled autograd would run that, in place of what was planned."""
    raise CaptureError(
        "neaptide plans the backward itself and cannot run under compiled autograd, which replaces it. "
        "Turn it off: torch._dynamo.config.compiled_autograd = False."
    )


def _late(graph: Graph) -> set[fx.Node]:
    """The nodes of the backward: tangents, ops, and what takes their results apart."""
    late = {graph.values[v].node for v in graph.tangents} | {op.node for op in graph.ops if op.phase == "backward"}
    for node in graph.module.graph.nodes:
        if node.op == "call_function" and node.target is getitem and node.args[0] in late:
            late.add(node)
    return late
