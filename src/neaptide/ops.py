"""What is known of ops themselves: which are random, which must not run twice, what they write, what they can write onto.

Everything has a safe answer for an op that nobody listed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

COLLECTIVES = frozenset({"_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "c10d", "fsdp"})


def is_random(node: fx.Node) -> bool:
    """Whether a call draws random numbers. Attention is random only with dropout, though it is always tagged so."""
    target = node.target
    if isinstance(target, HigherOrderOperator):
        return any(is_random(inner) for body in _bodies(node) for inner in body.graph.nodes)
    if not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    dropout = argument(node, "dropout_p")
    return bool(dropout) if dropout is not None else not _has_argument(target, "dropout_p")


def is_once(node: fx.Node) -> bool:
    """Whether a call must not be repeated: it writes to what it was given, talks to other ranks, or has other effects."""
    target = node.target
    if isinstance(target, OpOverload):
        return target._schema.is_mutable or target.namespace in COLLECTIVES or target.namespace == "debugprims"
    if isinstance(target, HigherOrderOperator):
        inner = (n for body in _bodies(node) for n in body.graph.nodes if n.op == "call_function")
        return "effect" in target.name() or any(is_once(n) for n in inner)
    return False


def written_arguments(node: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes whose memory a call writes."""
    target = node.target
    if not isinstance(target, OpOverload) or not target._schema.is_mutable:
        return ()
    written = []
    for position, declared in enumerate(target._schema.arguments):
        if declared.alias_info is not None and declared.alias_info.is_write:
            given = node.args[position] if position < len(node.args) else node.kwargs.get(declared.name)
            written += [n for n in (given if isinstance(given, (list, tuple)) else [given]) if isinstance(n, fx.Node)]
    return tuple(written)


def argument(node: fx.Node, name: str) -> Any:
    """The argument called `name`, wherever it was passed; its default otherwise; None where the op has none such."""
    for position, declared in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if declared.name == name:
            if position < len(node.args):
                return node.args[position]
            return node.kwargs.get(name, declared.default_value if declared.has_default_value() else None)
    return None


@cache
def in_place_variant(target: OpOverload) -> OpOverload | None:
    """The op that computes the same as `target` and writes it onto its first argument, where that is known to be safe.

    >>> in_place_variant(torch.ops.aten.relu.default)
    <OpOverload(op='aten.relu_', overload='default')>
    >>> in_place_variant(torch.ops.aten.mm.default) is None
    True
    """
    name = target._schema.name.split("::")[-1]
    if target.namespace != "aten" or not (torch.Tag.pointwise in target.tags or name in _SCATTERS):
        return None
    packet = getattr(torch.ops.aten, name + "_", None)
    if packet is None or target._overloadname not in packet.overloads():
        return None
    variant = getattr(packet, target._overloadname)
    given = [(a.name, str(a.type)) for a in target._schema.arguments]
    taken = [(a.name, str(a.type)) for a in variant._schema.arguments]
    written = [a.alias_info is not None and a.alias_info.is_write for a in variant._schema.arguments]
    plain = given == taken and written[:1] == [True] and not any(written[1:])
    return variant if plain and len(target._schema.returns) == 1 else None


# Not pointwise, but each element of the first argument is read before it is written, or only written.
_SCATTERS = frozenset({"index_put", "index_copy", "index_add", "index_fill", "scatter", "scatter_add", "masked_scatter"})


# Writes of a part: the view that the part is, so that the rest of the first argument need not be copied.
PART_OF = {
    torch.ops.aten.slice_scatter.default: torch.ops.aten.slice.Tensor,
    torch.ops.aten.select_scatter.default: torch.ops.aten.select.int,
    torch.ops.aten.diagonal_scatter.default: torch.ops.aten.diagonal.default,
    torch.ops.aten.as_strided_scatter.default: torch.ops.aten.as_strided.default,
}


def can_write_onto_first(target: Any) -> bool:
    """Whether `target` can put its result over its first argument, given that nobody else reads that any more."""
    return isinstance(target, OpOverload) and (target in PART_OF or in_place_variant(target) is not None)


@cache
def _has_argument(target: OpOverload, name: str) -> bool:
    return any(a.name == name for a in target._schema.arguments)


def _bodies(node: fx.Node) -> list[fx.GraphModule]:
    owner = node.graph.owning_module
    named = (getattr(owner, str(a.target), None) for a in node.all_input_nodes if a.op == "get_attr")
    return [body for body in named if isinstance(body, fx.GraphModule)]
