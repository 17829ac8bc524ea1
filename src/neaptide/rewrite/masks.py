"""One mask for all that is added to scores and taken out of them, in the form that fused attention takes.

In: the changes of an `Attention`, in order. Out: one tensor of 2 or 4 dims that is added to the scaled scores. Its meaning is
that of the changes, also for a row in which nothing takes part: with a low number in all places the softmax is even, with
-inf it is NaN (zeros, where the softmax is a safe one). A mask that was given as a tensor is not looked into: should a whole
row of it be -inf, fused attention gives zeros.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from neaptide.rewrite.fakes import call, copied, product_of, size
from neaptide.rewrite.forms import same_sizes, shape, spec
from neaptide.rewrite.scores import Added, Attention, Filled

aten = torch.ops.aten


def build_mask(found: Attention, queries: fx.Node) -> fx.Node | None:
    """The mask of an attention, as new nodes where the graph inserts now; `queries` has the leading dims of the scores."""
    like, mask = found.product, None
    for change in found.scores.changes:
        if isinstance(change, Added):
            piece = _dense(like, _typed(like, _at_lead(found, change.mask, change.onto, queries), queries))
            mask = piece if mask is None else call(like, aten.add.Tensor, mask, piece)
        else:
            mask = _filled(found, change, mask, queries)
    return None if mask is None else _dense(like, _at_four(like, mask, len(found.lead), queries))


def lifted(like: fx.Node, node: fx.Node, lead: int) -> fx.Node:
    """A value with `lead` dims before its last two as one with two of them."""
    if lead == 0:
        return call(like, aten.unsqueeze.default, call(like, aten.unsqueeze.default, node, 0), 0)
    if lead == 1:
        return call(like, aten.unsqueeze.default, node, 1)  # one head each, so that the result is contiguous
    if lead == 2:
        return node
    merged = product_of(like, [size(like, node, dim) for dim in range(lead - 1)])
    kept = [size(like, node, dim) for dim in range(lead - 1, lead + 2)]
    return call(like, aten.view.default, node, [merged, *kept])


def _filled(found: Attention, change: Filled, mask: fx.Node | None, queries: fx.Node) -> fx.Node:
    like = found.product
    condition = _at_lead(found, change.condition, change.onto, queries)
    otherwise = mask if mask is not None else _number(like, 0.0, queries)
    low = _number(like, change.low, queries)
    if change.low == -float("inf") and not found.is_safe:
        nothing = call(like, (aten.any if change.keep else aten.all).dim, condition, -1, True)
        low = _chosen(like, nothing, low, _number(like, float("nan"), queries), change.keep)
    return _chosen(like, condition, otherwise, low, change.keep)


def _chosen(like: fx.Node, condition: fx.Node, kept: fx.Node, other: fx.Node, keep: bool) -> fx.Node:
    """`kept` where the condition is `keep`, else `other`."""
    return call(like, aten.where.self, condition, *((kept, other) if keep else (other, kept)))


def _number(like: fx.Node, number: float, queries: fx.Node) -> fx.Node:
    fake = queries.meta["val"]
    with fake.fake_mode:
        return call(like, aten.full.default, [], number, dtype=_wide(fake.dtype), device=fake.device)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _typed(like: fx.Node, mask: fx.Node, queries: fx.Node) -> fx.Node:
    """A mask in a type that the kernel takes beside the queries: theirs, or single beside half precision."""
    own, wide = spec(mask).dtype, _wide(spec(queries).dtype)
    return mask if own in (spec(queries).dtype, wide) else call(like, aten._to_copy.default, mask, dtype=wide)


def _dense(like: fx.Node, mask: fx.Node) -> fx.Node:
    """A mask whose rows lie as the kernel reads them: one element after the other, or all the same."""
    described = spec(mask)
    if not described.shape or described.shape[-1] == 1 or described.stride[-1] in (0, 1):
        return mask
    copies = (user for user in mask.users if user.target is aten.clone.default and spec(user).is_contiguous and user < like)
    return next(copies, None) or copied(like, mask)  # all layers share one, and what it is a copy of need not be kept


def _at_lead(found: Attention, mask: fx.Node, onto: tuple[Any, ...], queries: fx.Node) -> fx.Node:
    """A mask for scores whose leading dims were one, for scores that have them apart."""
    if same_sizes(onto, shape(found.softmax)) or len(shape(mask)) < 3:
        return mask
    if shape(mask)[0] == 1:
        return call(found.product, aten.squeeze.dim, mask, 0)
    like, lead = found.product, len(found.lead)
    sizes = [size(like, queries, dim) for dim in range(lead)] + [size(like, mask, dim) for dim in (1, 2)]
    return call(like, aten.view.default, mask, sizes)


def _at_four(like: fx.Node, mask: fx.Node, lead: int, queries: fx.Node) -> fx.Node:
    """A mask with 2 dims, or with 4."""
    while len(shape(mask)) < 2 or 2 < len(shape(mask)) < lead + 2:
        mask = call(like, aten.unsqueeze.default, mask, 0)
    if len(shape(mask)) == 2:
        return mask
    if lead > 2 and not _is_even(shape(mask)[: lead - 1], shape(queries)[: lead - 1]):
        sizes = [size(like, queries, dim) for dim in range(lead - 1)]
        mask = call(like, aten.expand.default, mask, [*sizes, -1, -1, -1])
    return lifted(like, mask, lead)


def _is_even(dims: tuple[Any, ...], whole: tuple[Any, ...]) -> bool:
    """Whether dims that are to be one are either all there or all of size 1 (where the whole is not of size 1 itself)."""
    given = [(own, full) for own, full in zip(dims, whole, strict=True) if full != 1]
    return all(own == 1 for own, _ in given) or same_sizes([own for own, _ in given], [full for _, full in given])
