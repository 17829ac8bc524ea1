"""What to keep from the forward for the backward: the starting points from which plans are made.

In: a joint graph. Out: named sets of values to keep. "nothing" recomputes nothing but what the user's own
`torch.utils.checkpoint` asks for; "min-cut" is what PyTorch's own partitioner would save; "light" keeps less than that, where
kernels are fused and what they make of each other costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

from neaptide._torch import min_cut_partition
from neaptide.graph import Graph, Op

aten = torch.ops.aten
RECOMPUTE = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
SAVE = (CheckpointPolicy.MUST_SAVE,)
ROW_BY_ROW = frozenset(
    {aten._softmax.default, aten._log_softmax.default, aten.native_layer_norm.default, aten._to_copy.default}
)
"""What costs a pass or two over what it reads, beside elementwise ops."""


def starting_points(
    graph: Graph,
    joint: fx.GraphModule,
    joint_inputs: Any,
    forward_outputs: int,
    settings: Mapping[str, Any],
    fused: bool = False,
) -> dict[str, frozenset[int]]:
    """Sets of values to keep, each under the name of what is recomputed with it; the last is what a compiler would do."""
    points = {"nothing": keep_all(graph)}
    partitioned = keep_min_cut(graph, joint, joint_inputs, forward_outputs, settings)
    if partitioned is not None:
        points["min-cut"] = partitioned
        if fused and (light := keep_less(graph, partitioned)) != partitioned:
            points["light"] = light
    return points


def keep_less(graph: Graph, kept: frozenset[int]) -> frozenset[int]:
    """What is kept, less what light ops make of the rest of it and of what is there anyway (parameters, inputs, outputs)."""
    handed = {_looked_at(graph, v) for v in graph.outputs if v is not None}
    there = {*graph.inputs, *graph.constants, *handed}
    left = set(kept)
    for value in sorted(kept, reverse=True):
        maker = graph.maker[value]
        op = None if maker is None else graph.ops[maker]
        if op is None or value in there or not _is_light(op) or is_tagged(op.node, SAVE):
            continue
        given = {_looked_at(graph, v) for v in op.inputs if graph.values[v].storage is not None}
        if given <= there | left - {value}:
            left.discard(value)
            left |= given & handed
    return frozenset(left)


def _is_light(op: Op) -> bool:
    if op.random or op.once or not isinstance(op.target, OpOverload):
        return False
    return torch.Tag.pointwise in op.target.tags or op.target in ROW_BY_ROW


def keep_all(graph: Graph) -> frozenset[int]:
    """All that the backward reads of the forward, as eager keeps it, less what the user asked to have recomputed."""
    read = {v for op in graph.ops if op.phase == "backward" for v in op.inputs}
    todo = [v for v in (*read, *graph.gradients) if v is not None and _is_forward(graph, v)]
    kept: set[int] = set()
    seen: set[int] = set()
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        maker = graph.maker[value]
        if maker is not None and is_tagged(graph.ops[maker].node, RECOMPUTE):
            todo.extend(graph.ops[maker].inputs)
        else:
            kept.add(value)
    return frozenset(kept)


def _is_forward(graph: Graph, value: int) -> bool:
    maker = graph.maker[value]
    return value not in graph.tangents and (maker is None or graph.ops[maker].phase == "forward")


def is_tagged(node: fx.Node, policies: Collection[CheckpointPolicy]) -> bool:
    """Whether the user's own checkpointing says one of these of an op's result."""
    return node.meta.get("recompute") in policies


def keep_min_cut(
    graph: Graph, joint: fx.GraphModule, joint_inputs: Any, forward_outputs: int, settings: Mapping[str, Any]
) -> frozenset[int] | None:
    """What PyTorch's min-cut partitioner saves, asked on a copy of the graph; None where it cannot say."""
    copied: dict[fx.Node, fx.Node] = {}
    twin = fx.Graph()
    for node in joint.graph.nodes:
        copied[node] = twin.node_copy(node, lambda n: copied[n])
    try:
        forward, _ = min_cut_partition(
            fx.GraphModule(joint, twin), joint_inputs, num_fwd_outputs=forward_outputs, **dict(settings)
        )
    except Exception:  # a seed that cannot be had costs a seed, not the capture
        return None
    names = {copied[node].name: value for value, node in graph.holders.items() if node in copied}
    (outputs,) = next(n for n in forward.graph.nodes if n.op == "output").args
    saved = [n for n in outputs[forward_outputs:] if isinstance(n, fx.Node)]
    found = {names[n.name] for n in saved if n.name in names}
    return frozenset(_looked_at(graph, v) for v in found if isinstance(graph.values[v].fake, torch.Tensor))


def _looked_at(graph: Graph, value: int) -> int:
    """For a view, the value that it looks at: keeping one keeps the other's memory, and views are made again for nothing."""
    storage = graph.values[value].storage
    while (maker := graph.maker[value]) is not None and not graph.ops[maker].writes:
        base = next((v for v in graph.ops[maker].inputs if graph.values[v].storage == storage), None)
        if base is None:
            break
        value = base
    return value
