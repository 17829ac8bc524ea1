"""Scaled dot-product attention: sequences, heads, and rows of queries, each of which sees all keys or those before it.

A part of the rows of causal attention begins in the middle of the triangle: it is run with a mask of its own in place of the
flag. With dropout, which draws one number for each score, attention stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from neaptide.axes.rules import Axis, Flow, broadcast, cuts, equal, flows, quotient
from neaptide.workspaces import Spec

aten = torch.ops.aten


@flows(aten.scaled_dot_product_attention.default)
def attention(
    q: Spec, k: Spec, v: Spec, mask: Spec | None = None, dropout: float = 0.0, causal: bool = False, *,
    out: tuple[Spec, ...], enable_gqa: bool = False, **named: Any,
) -> Iterator[Axis]:  # fmt: skip
    """The op as it is called; which kernel runs is decided later."""
    if not dropout:
        yield from _attended(q, k, v, mask, enable_gqa, len(out), _causal_rows if causal else None)


@flows(aten._scaled_dot_product_attention_math.default)
def written_out_attention(
    q: Spec, k: Spec, v: Spec, mask: Spec | None = None, dropout: float = 0.0, causal: bool = False, kept: Any = None, *,
    out: tuple[Spec, ...], enable_gqa: bool = False, **named: Any,
) -> Iterator[Axis]:  # fmt: skip
    """Its second result is the matrix of weights, with a row for each query."""
    if not dropout and kept is None and all(spec is not None and len(spec.shape) == len(q.shape) for spec in out):
        yield from _attended(q, k, v, mask, enable_gqa, len(out), _causal_weights if causal else None)


@flows(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention(
    q: Spec, k: Spec, v: Spec, dropout: float = 0.0, causal: bool = False, *,
    out: tuple[Spec, ...], attn_mask: Spec | None = None, **named: Any,
) -> Iterator[Axis]:  # fmt: skip
    """Its second result has one number for each query: (batch, heads, rows)."""
    if not dropout:
        yield from _attended(q, k, v, attn_mask, False, len(out), _causal_tile if causal else None)


def _attended(q: Spec, k: Spec, v: Spec, mask: Spec | None, grouped: bool, made: int, rows: Any) -> Iterator[Axis]:
    """The axes, of which all results have the same dims; `rows` runs some rows of causal attention."""
    rank = len(q.shape)
    if rank < 2 or any(len(spec.shape) != rank for spec in (k, v)):
        return
    for dim in range(rank - 2):
        block = quotient(q.shape[dim], k.shape[dim]) if grouped and dim == rank - 3 else 1
        if block is not None and equal(k.shape[dim], v.shape[dim]):
            masked = broadcast(mask, rank, dim)
            masked = masked and replace(masked, block=block)
            yield Axis(cuts((q, Flow(dim, block)), (k, dim), (v, dim), (mask, masked)), (Flow(dim, block),) * made)
    if rows is None or mask is None:
        masked = broadcast(mask, rank, rank - 2)
        given = cuts((q, rank - 2), (k, None), (v, None), (mask, masked))
        beside = _mask_bytes if rows in (_causal_rows, _causal_tile) else None  # the written-out op's workspace has it
        yield Axis(given, (Flow(rank - 2),) * made, instead=rows, beside=beside)


def _causal_rows(
    first: Any, last: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: None = None,
    dropout_p: float = 0.0, is_causal: bool = True, **named: Any,
) -> torch.Tensor:  # fmt: skip
    """Rows of causal attention: keys from the last row on are seen by none of them."""
    k, v = k[..., :last, :], v[..., :last, :]
    if first == 0:
        return aten.scaled_dot_product_attention.default(q, k, v, None, 0.0, True, **named)
    return aten.scaled_dot_product_attention.default(q, k, v, _added(first, q, k), 0.0, False, **named)


def _causal_weights(
    first: Any, last: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: None = None,
    dropout_p: float = 0.0, is_causal: bool = True, dropout_mask: None = None, **named: Any,
) -> Any:  # fmt: skip
    """As above with all keys, which the weights have a column for."""
    return aten._scaled_dot_product_attention_math.default(q, k, v, _added(first, q, k), 0.0, False, None, **named)


def _causal_tile(
    first: Any, last: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0,
    is_causal: bool = True, *, attn_mask: None = None, **named: Any,
) -> Any:  # fmt: skip
    """As above, by the kernel itself."""
    k, v = k[..., :last, :], v[..., :last, :]
    if first == 0:
        return aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v, 0.0, True, **named)
    mask = _added(first, q, k)
    return aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v, 0.0, False, attn_mask=mask, **named)


def _added(first: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """What to add to the scores of the rows from `first` on: nothing for the keys up to their own position, which they see."""
    unseen = torch.full((q.shape[-2], k.shape[-2]), float("-inf"), dtype=q.dtype, device=q.device)
    return unseen.triu_(first + 1)


def _mask_bytes(q: Spec, k: Spec, *rest: Any, **named: Any) -> Any:
    return q.shape[-2] * k.shape[-2] * q.dtype.itemsize


@flows(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_attention_backward(
    grad: Spec, q: Spec, k: Spec, v: Spec, result: Spec, logsumexp: Spec, dropout: float, causal: bool, *,
    out: tuple[Spec, ...], attn_mask: Spec | None = None, **named: Any,
) -> Iterator[Axis]:  # fmt: skip
    """Sequences and heads; rows of queries add to the gradients of all keys and values."""
    if dropout or attn_mask is not None:
        return
    for dim in (0, 1):
        yield Axis((Flow(dim),) * 6, (Flow(dim),) * 3)
    if not causal:
        row = Flow(2)
        yield Axis((row, row, None, None, row, row), (row, "sum", "sum"))
