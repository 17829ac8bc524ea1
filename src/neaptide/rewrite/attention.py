"""Attention that is written out becomes one call, whose kernel never has all the scores at once.

In: a graph with product, softmax, product (`scores.read_attention`). Out: the same graph with PyTorch's fused attention in
their place: on the CPU the flash kernel itself, elsewhere `scaled_dot_product_attention`, which chooses. Keys and values that
were repeated for groups of heads are taken as they were before.

FlashAttention: Dao et al., 2022 (arXiv:2205.14135).
"""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from neaptide.axes import equal
from neaptide.ops import written_arguments
from neaptide.rewrite.fakes import call, copied, memory, refresh, replace, size, sweep
from neaptide.rewrite.forms import COPIES, is_tensor, same_sizes, shape, spec
from neaptide.rewrite.masks import build_mask, lifted
from neaptide.rewrite.scores import SOFTMAX, Attention, operand, read_attention, unrepeated, untransposed
from neaptide.trace import module_path

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


def fuse_attention(module: fx.GraphModule) -> list[str]:
    """Make one call of every attention that is written out; which they were, by their places in the model."""
    done = []
    for node in list(module.graph.nodes):
        found = read_attention(node) if node.target in SOFTMAX and is_tensor(node) else None
        if found is not None and _fuse(found):
            done.append(f"attention of {module_path(node) or 'the graph'} in one call")
    if done:
        sweep(module)
    return done


def _fuse(found: Attention) -> bool:
    lead, like, scores = found.lead, found.product, found.scores
    keys = untransposed(scores.right)
    is_turned = keys is None or operand(keys, lead) is None
    given: tuple[Any, ...] = (scores.left, scores.right if is_turned else keys, found.values)
    if not _is_fusible(found) or any(operand(node, lead) is None for node in given):
        return False
    with like.graph.inserting_before(like):
        q, k, v = (_at_lead(like, node, lead) for node in given)
        if is_turned:
            k = call(like, aten.transpose.int, k, -2, -1)
        queries, *others = (_dense_rows(like, node) for node in (q, k, v))
        made = _unlifted(like, _attention(found, queries, *_grouped(*others)), len(lead), queries)
    handed = _strides_handed_out(like.graph)
    _put_in(made, like)
    refresh([made])
    if not same_sizes(_strides_handed_out(made.graph), handed):
        made = _made_contiguous(made)
    _take_needless_copies(made)
    return True


def _is_fusible(found: Attention) -> bool:
    """Whether the kernel takes the operands: one floating type, and on the CPU one size of heads."""
    specs = [spec(node) for node in (found.scores.left, found.scores.right, found.values, found.product)]
    is_one_kind = len({(s.dtype, s.device) for s in specs}) == 1 and specs[0].dtype in DTYPES
    if any(0 in s.shape for s in specs):
        return False
    return is_one_kind and (specs[0].device != "cpu" or equal(specs[0].shape[-1], specs[2].shape[-1]))


def _at_lead(like: fx.Node, given: Any, lead: tuple[Any, ...]) -> fx.Node:
    """An operand with the leading dims of the scores, in the earliest form that has them, apart from dims of size 1."""
    wanted = (*lead, *shape(given)[-2:])
    form: Any = operand(given, lead)
    if same_sizes(shape(form), wanted):
        return form
    wide = (dim for dim, own in enumerate(shape(form)) if own != 1)
    return call(like, aten.view.default, form, [1 if full == 1 else size(like, form, next(wide)) for full in wanted])


def _dense_rows(like: fx.Node, node: fx.Node) -> fx.Node:
    return node if spec(node).stride[-1] == 1 else copied(like, node)


def _grouped(keys: fx.Node, values: fx.Node) -> tuple[fx.Node, fx.Node]:
    """Keys and values before their heads were repeated for groups of queries, where both were, and alike."""
    fewer, few = unrepeated(keys), unrepeated(values)
    is_alike = len(shape(fewer)) > 1 and equal(shape(fewer)[1], shape(few)[1])
    is_dense = spec(fewer).stride[-1] == 1 and spec(few).stride[-1] == 1
    return (fewer, few) if is_alike and is_dense else (keys, values)


def _attention(found: Attention, queries: fx.Node, keys: fx.Node, values: fx.Node) -> fx.Node:
    """The fused call, with four dims."""
    like, lead = found.product, len(found.lead)
    mask = build_mask(found, queries)
    q, k, v = (lifted(like, node, lead) for node in (queries, keys, values))
    if spec(q).device == "cpu":
        both = call(like, FLASH, q, k, v, 0.0, False, attn_mask=mask, scale=found.scores.scale)
        return call(like, getitem, both, 0)
    grouped = not equal(shape(q)[1], shape(k)[1])
    fused = aten.scaled_dot_product_attention.default
    return call(like, fused, q, k, v, mask, 0.0, False, scale=found.scores.scale, enable_gqa=grouped)


def _unlifted(like: fx.Node, made: fx.Node, lead: int, queries: fx.Node) -> fx.Node:
    """The result with the leading dims that the scores had."""
    if lead == 0:
        return call(like, aten.squeeze.dim, call(like, aten.squeeze.dim, made, 0), 0)
    if lead == 1:
        return call(like, aten.squeeze.dim, made, 1)
    if lead == 2:
        return made
    sizes = [size(like, queries, dim) for dim in range(lead + 1)]
    return call(like, aten.view.default, made, [*sizes, size(like, made, 3)])


def _put_in(made: fx.Node, product: fx.Node) -> None:
    """Give the result to all that took the product, be it in another shape."""
    if same_sizes(shape(product), shape(made)):
        return replace(product, made)
    for view in list(product.users):
        if same_sizes(shape(view), shape(made)):
            replace(view, made)
        else:
            view.update_arg(0, made)
    return None


def _strides_handed_out(graph: fx.Graph) -> list[Any]:
    return [step for leaf in tree_leaves(graph.output_node().args) if is_tensor(leaf) for step in spec(leaf).stride]


def _made_contiguous(made: fx.Node) -> fx.Node:
    """The result laid out as a product's, where what is handed out would lie in another way."""
    with made.graph.inserting_after(made):
        copy = copied(made, made)
    made.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)
    refresh([copy])
    return copy


def _take_needless_copies(made: fx.Node) -> None:
    """Leave out copies that only made contiguous what now is so: the kernel lays its result out as the queries lie."""
    for node in list(made.graph.nodes):
        if node.target in COPIES and node.kwargs.get("memory_format") is torch.contiguous_format:
            source: Any = node.args[0]
            if memory(source) == memory(made) and spec(source).is_contiguous and _is_private(source) and not _is_written(node):
                replace(node, source)
                refresh([source])


def _is_private(node: fx.Node) -> bool:
    """Whether nothing hands out a value's memory, or writes to it."""
    handed = (leaf for leaf in tree_leaves(node.graph.output_node().args) if is_tensor(leaf))
    return all(memory(other) != memory(node) for other in handed) and not _is_written(node)


def _is_written(node: fx.Node) -> bool:
    written = (into for other in node.graph.nodes for into in written_arguments(other) if is_tensor(into))
    return any(memory(into) == memory(node) for into in written)
