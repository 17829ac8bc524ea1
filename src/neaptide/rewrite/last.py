"""A slice is taken before what it is a slice of is computed, so that only what is used is computed.

In: a graph in which a `slice` or `select` is all that is used of a value (the last position's logits). Out: the same graph
with the ops that made the value done on the part alone: back through every op that treats the positions of that dim apart
from each other, as the table of axes tells (`neaptide.axes`), as long as all that takes its result takes a part of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from neaptide.axes import Axis, Flow, along_output, axes, equal
from neaptide.axes.parts import cut_inputs, put_sizes
from neaptide.graph import described, spec_of
from neaptide.ops import is_once, is_random
from neaptide.rewrite.fakes import call, copied, memory, refresh, replace, size, sweep
from neaptide.rewrite.forms import is_tensor, shape, spec
from neaptide.trace import module_path

aten = torch.ops.aten
SLICE, SELECT = aten.slice.Tensor, aten.select.int


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a value along a dim: all that is used of it, and less than the whole."""

    node: fx.Node
    source: fx.Node
    dim: int
    where: tuple[Any, ...]
    extent: Any


Place = tuple[int, int]
"""Which of a call's results, and the dim of it that runs along the axis."""


def narrow_early(module: fx.GraphModule) -> list[str]:
    """Take every slice as early as it can be; which they were, by the places in the model of what they are slices of."""
    done = []
    for node in list(module.graph.nodes):
        part = _read_slice(node)
        found = _calls_in_part(part) if part is not None else {}
        if part is not None and any(_makes_memory(call) for call in found):
            done.append(f"{module_path(part.source) or 'the graph'} on a part only")
            _put_in(part, found)
            sweep(module)
    return done


def _read_slice(node: fx.Node) -> Slice | None:
    if node.target not in (SLICE, SELECT) or not is_tensor(node) or node.kwargs:
        return None
    source: Any = node.args[0]
    given: tuple[Any, ...] = node.args[1:] or (0,)
    dim = given[0] % len(shape(source))
    where, extent = given[1:], shape(node)[dim] if node.target is SLICE else 1
    if node.target is SELECT:
        index = given[1]
        where = (index, index + 1 if index != -1 else sys.maxsize) if isinstance(index, int) else ()
    if not where or len(source.users) != 1 or equal(extent, shape(source)[dim]):
        return None
    return Slice(node, source, dim, where, extent)


def _calls_in_part(part: Slice) -> dict[fx.Node, Axis]:
    """The calls that need only be done on the part, each with its axis, from the last to the first.

    All that takes a call's result comes before it here, so that it is known by then whether all of it takes the same part.
    """
    found: dict[fx.Node, Axis] = {}
    wanted: dict[fx.Node, Place | None] = {part.source: (0, part.dim)}
    inside = {part.node}
    for node in reversed(list(takewhile(lambda other: other is not part.node, part.node.graph.nodes))):
        place = wanted.get(node)
        if place is None or not inside.issuperset(node.users):
            continue
        if node.target is getitem:
            inside.add(node)
            wanted[node.args[0]] = (node.args[1], place[1]) if _is_only_result(node) else None
        elif (axis := _axis(node, place, part.extent)) is not None:
            inside.add(node)
            found[node] = axis
            for source, flow in _inputs(node, axis):
                asked = None if flow is None else (0, flow.dim)
                wanted[source] = asked if wanted.get(source, asked) == asked else None
    return found


def _is_only_result(taken: fx.Node) -> bool:
    return all(other is taken or not other.users for other in taken.args[0].users)  # type: ignore[union-attr]


def _axis(node: fx.Node, place: Place, extent: Any) -> Axis | None:
    """The axis along which a call's result is wanted in part, if its positions are computed apart from each other."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or is_random(node) or is_once(node):
        return None
    results = [spec_of(t) for t in tree_leaves(node.meta["val"]) if isinstance(t, torch.Tensor)]
    position, dim = place
    axis = along_output(axes(node.target, *described(node), results), position, Flow(dim))
    if axis is None or axis.instead is not None:
        return None
    flows = [flow for flow in axis.inputs if flow is not None]
    is_told = bool(flows) or isinstance(extent, int)
    return axis if is_told and all(flow.block == 1 for flow in flows) else None


def _inputs(node: fx.Node, axis: Axis) -> Iterator[tuple[fx.Node, Flow | None]]:
    given = (leaf for leaf in tree_leaves((list(node.args), dict(node.kwargs))) if is_tensor(leaf))
    return zip(given, axis.inputs, strict=True)


def _makes_memory(node: fx.Node) -> bool:
    return not is_tensor(node) or all(memory(node) != memory(other) for other in node.all_input_nodes if is_tensor(other))


def _put_in(part: Slice, found: Mapping[fx.Node, Axis]) -> None:
    """Do the calls on the part, each where it was, or where the slice was if that depends on a size computed before it."""
    early = all(not isinstance(leaf, fx.Node) or leaf.op == "placeholder" for leaf in part.where)
    made: dict[tuple[fx.Node, int], fx.Node] = {}
    for node, axis in reversed(list(found.items())):
        with part.node.graph.inserting_before(node if early else part.node):
            new = _done_in_part(node, axis, part, made)
        for result, dim in _results(node, axis):
            with part.node.graph.inserting_after(new):
                made[result, dim] = new if result is node else call(result, getitem, new, result.args[1])
    last = made[part.source, part.dim]
    if part.node.target is SELECT:
        with part.node.graph.inserting_before(part.node):
            last = call(part.node, SELECT, last, part.dim, 0)
    replace(part.node, last)
    refresh([last])


def _results(node: fx.Node, axis: Axis) -> Iterator[tuple[fx.Node, int]]:
    """The nodes that are a call's results, and the dims of them that are in part."""
    if is_tensor(node):
        yield node, axis.outputs[0].dim  # type: ignore[union-attr]
        return
    for taken in list(node.users):
        flow = axis.outputs[taken.args[1]]  # type: ignore[index]
        if isinstance(flow, Flow):
            yield taken, flow.dim


def _done_in_part(node: fx.Node, axis: Axis, part: Slice, made: dict[tuple[fx.Node, int], fx.Node]) -> fx.Node:
    """A call on the part of what it reads; what is not itself computed in part is sliced."""
    parts: list[tuple[fx.Node, int]] = []

    def narrow(leaf: fx.Node, flow: Flow) -> fx.Node:
        key = (leaf, flow.dim)
        if key not in made:
            made[key] = call(node, SLICE, leaf, flow.dim, *part.where)
        parts.append((made[key], flow.dim))
        return made[key]

    args, kwargs = cut_inputs(node.args, node.kwargs, axis, narrow, is_tensor)
    if axis.sizes:
        args = put_sizes(args, axis, part.extent if isinstance(part.extent, int) else size(node, *parts[0]))
    if node.target is aten.linear.default and not spec(args[0]).is_contiguous:
        args[0] = copied(node, args[0])  # small, and one product for all rows in place of one for each
    return call(node, node.target, *args, **kwargs)
