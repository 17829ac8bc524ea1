"""Attention: tiles of scores for each thread in the fused kernels, all of them in the written-out one."""

from __future__ import annotations

from typing import Any

import torch

from neaptide.workspaces.rules import Spec, of, product

aten = torch.ops.aten


def _attention_rows(length: Any) -> int:
    if not isinstance(length, int):
        return 256
    return 256 if length >= 768 else 64 if length >= 192 else 32


@of(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _flash(q: Spec, k: Spec, v: Spec, *rest: Any, threads: int, attn_mask: Spec | None = None, **named: Any) -> Any:
    """Each thread has a tile of scores and one of results; half precision has its scores in both types.

    A mask whose rows are not dense is copied; rows that are all one element are read as they lie.
    """
    scores = 512 * (4 if q.dtype.itemsize > 2 else 6)
    tiles = threads * _attention_rows(q.shape[2]) * (scores + q.shape[3] * 4)
    if attn_mask is None or attn_mask.shape[-1] == 1 or attn_mask.stride[-1] in (0, 1):
        return tiles
    return tiles + attn_mask.nbytes


@of(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _flash_backward(grad: Spec, q: Spec, *rest: Any, threads: int, **named: Any) -> Any:
    """A copy of the output's gradient, and two tiles of scores for each thread."""
    tile = _attention_rows(q.shape[2]) * 512 * 4
    return q.nbytes + threads * tile * (2 if q.dtype.itemsize > 2 else 4)


@of(aten._scaled_dot_product_attention_math.default)
def _attention_math(
    q: Spec,
    k: Spec,
    v: Spec,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    threads: int,
    **named: Any,
) -> Any:
    scores = product(q.shape[:-1]) * k.shape[2] * 4
    whole = scores + 2 * q.nbytes if q.dtype.itemsize > 2 else 2 * scores + 3 * q.nbytes
    return whole + (q.shape[2] * k.shape[2] * 4 if causal else 0)
