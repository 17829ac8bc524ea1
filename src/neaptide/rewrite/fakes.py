"""New nodes in an AOTAutograd graph: how they get their fake tensors, and how the nodes behind them get theirs anew.

What aliases what is told by the fake tensors' storages (`neaptide.trace`). So a node that makes fresh memory has a fake with
a storage of its own, and every view of it, however far down, has one on that storage. No fake is computed with a guard: a
rewrite comes after the sizes of the capture are settled.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from neaptide._torch import FakeTensor, FakeTensorMode
from neaptide.graph import spec_of
from neaptide.ops import is_once, is_random
from neaptide.rewrite.forms import VIEWS, same_sizes

aten = torch.ops.aten

OF_THE_RESULT = frozenset({"val", "tensor_meta", "example_value", "eager_input_vals", "unbacked_bindings"})
"""What in a node's meta tells of its result, and so does not pass to a node that takes its place."""


def call(like: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A new call where the graph inserts now, with its fake result and the place in the model that `like` has.

    A view that does not fit the strides of what it views is one of a copy.
    """
    node = placed(like, target, *args, **kwargs)
    node.meta["val"] = _viewed(node) if target in VIEWS else result(node)
    return node


def placed(like: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A new call where the graph inserts now, with the place in the model that `like` has, and no result as yet."""
    node = like.graph.call_function(target, args, kwargs)
    node.meta.update({key: held for key, held in like.meta.items() if key not in OF_THE_RESULT})
    return node


def copied(like: fx.Node, source: Any) -> fx.Node:
    """A new contiguous copy of a value."""
    return call(like, aten.clone.default, source, memory_format=torch.contiguous_format)


def size(like: fx.Node, source: fx.Node, dim: int) -> Any:
    """The size of a value's dim, to be an argument: a number, or a node that holds it."""
    whole = source.meta["val"].shape[dim]
    if not isinstance(whole, torch.SymInt):
        return int(whole)
    for node in like.graph.find_nodes(op="placeholder"):
        held = node.meta.get("val")
        if isinstance(held, torch.SymInt) and held.node.expr == whole.node.expr:
            return node
    return call(like, aten.sym_size.int, source, dim)


def product_of(like: fx.Node, sizes: Sequence[Any]) -> Any:
    """The product of sizes, to be an argument."""
    whole, *rest = sizes
    for other in rest:
        both = (whole, other)
        whole = whole * other if not any(isinstance(n, fx.Node) for n in both) else call(like, operator.mul, *both)
    return whole


def result(node: fx.Node) -> Any:
    """What a call makes of its arguments' fakes."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode = next((leaf.fake_mode for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor)), None)
    with _unguarded(mode), torch.inference_mode(False), torch.no_grad():
        return node.target(*args, **kwargs)  # type: ignore[operator]


def refresh(nodes: Iterable[fx.Node]) -> None:
    """Compute the fakes anew of all that comes after `nodes`, as far as their memory or their strides reach.

    A call that still makes fresh memory, in the same strides, keeps the fake it had. Where a `view` does not fit the strides
    any more, a copy is put before it.
    """
    changed = set(nodes)
    order = [node for graph in dict.fromkeys(node.graph for node in changed) for node in graph.nodes]
    for node in order:
        if node in changed or not any(source in changed for source in node.all_input_nodes) or not _is_repeatable(node):
            continue
        new = _viewed(node) if node.target in VIEWS else result(node)
        if _shares_memory(node, new) or not _is_alike(new, node.meta["val"]):
            node.meta["val"] = new
            changed.add(node)


def memory(node: Any) -> int:
    """What tells whether two tensors share memory."""
    return _memory(node.meta["val"])


def replace(old: fx.Node, new: fx.Node) -> None:
    """Let all that took `old` take `new`, which is the same value, and remove `old`."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def sweep(module: fx.GraphModule) -> None:
    """Remove what nothing takes any more and what has no effect, and write the module's code."""
    module.graph.eliminate_dead_code(lambda node: node.is_impure(impure_random=False) or is_once(node) or is_random(node))
    module.recompile()


@contextmanager
def _unguarded(mode: FakeTensorMode | None) -> Iterator[None]:
    """Under a fake mode, with no size of the capture being decided."""
    if mode is None:
        yield
    elif mode.shape_env is None:
        with mode:
            yield
    else:
        with mode, mode.shape_env.suppress_guards():
            yield


def _viewed(node: fx.Node) -> Any:
    try:
        return result(node)
    except (RuntimeError, ValueError):
        with node.graph.inserting_before(node):
            node.update_arg(0, copied(node, node.args[0]))
        return result(node)


def _is_repeatable(node: fx.Node) -> bool:
    """Whether a call's fake can be computed again: sizes that only the data tells would get new names."""
    if node.op != "call_function" or not _tensors(node.meta.get("val")):
        return False
    if isinstance(node.target, OpOverload):
        return torch.Tag.dynamic_output_shape not in node.target.tags
    return node.target is operator.getitem


def _tensors(val: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(val) if isinstance(leaf, torch.Tensor)]


def _shares_memory(node: fx.Node, new: Any) -> bool:
    taken = {_memory(t) for source in node.all_input_nodes for t in _tensors(source.meta.get("val"))}
    return any(_memory(t) in taken for t in _tensors(new))


def _memory(fake: torch.Tensor) -> int:
    return fake.untyped_storage()._cdata if fake.layout is torch.strided else id(fake)


def _is_alike(new: Any, old: Any) -> bool:
    specs = ((spec_of(a), spec_of(b)) for a, b in zip(_tensors(new), _tensors(old), strict=True))
    return all(same_sizes((*a.shape, *a.stride), (*b.shape, *b.stride)) for a, b in specs)
