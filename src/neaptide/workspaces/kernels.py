"""Everything else: kernels that want contiguous input, compute in a wider type, or keep a copy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch

from neaptide.workspaces.rules import Spec, copy_bytes, of, product

aten = torch.ops.aten


HOLLOW = frozenset({aten.mse_loss.default, aten.smooth_l1_loss.default})
"""Losses whose result, a single number, is cut out of the memory of all the terms, and holds on to it."""


def retained(target: Any, args: Sequence[Any], results: Sequence[torch.Tensor]) -> dict[int, int]:
    """Outputs that hold more memory than their shapes say: which, and bytes.

    oneDNN's LSTM keeps what its backward needs in a last output that is empty on fake tensors; of the 15 times its
    result's bytes that it asks for, it touches about 9.5 where gradients are wanted (1.25 of them in any case).
    """
    if target in HOLLOW:
        return {0: max(args[0].nbytes, args[1].nbytes)}
    if target is aten.mkldnn_rnn_layer.default and torch.is_grad_enabled():
        return {3: 33 * results[0].nbytes // 4}
    return {}


@of(aten.mkldnn_rnn_layer.default)
def _rnn_layer(x: Spec, *rest: Any, threads: int, **named: Any) -> Any:
    """The states of all steps."""
    return 5 * x.shape[0] * x.shape[1] * rest[9]


def _elements(spec: Spec) -> Any:
    return product(spec.shape)


def _is_half(spec: Spec) -> bool:
    return spec.dtype in (torch.bfloat16, torch.float16)


@of(aten._softmax.default, aten._log_softmax.default, aten.native_layer_norm.default)
def _contiguous(x: Spec, *rest: Any, threads: int, **named: Any) -> Any:
    return copy_bytes(x)


@of(aten.native_group_norm.default)
def _group_norm(x: Spec, *rest: Any, threads: int, **named: Any) -> Any:
    """Some images' groups in a loop do not lie together."""
    return 0 if x.is_channels_last else copy_bytes(x)


@of(
    aten._softmax_backward_data.default,
    aten._log_softmax_backward_data.default,
    aten.native_layer_norm_backward.default,
)
def _both_contiguous(grad: Spec, x: Spec, *rest: Any, threads: int, **named: Any) -> Any:
    return copy_bytes(grad) + copy_bytes(x)


@of(aten._fused_rms_norm.default)
def _rms_norm(x: Spec, *rest: Any, threads: int, **named: Any) -> Any:
    """The CPU has no fused kernel: squares, and for half precision everything in single."""
    return 5 * x.nbytes if _is_half(x) else x.nbytes


@of(
    *(getattr(aten, name).Tensor for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")),
    aten.maximum.default,
    aten.minimum.default,
)
def _promoted(*args: Any, threads: int, **named: Any) -> Any:
    """Operands of another type than the common one are converted first; single numbers are not."""
    specs = [arg for arg in args if isinstance(arg, Spec) and arg.shape]
    if not specs:
        return 0
    common = reduce(torch.promote_types, (spec.dtype for spec in specs))
    return sum(_elements(spec) * common.itemsize for spec in specs if spec.dtype != common)


@of(*(getattr(aten, name).Tensor for name in ("add_", "sub_", "mul_", "div_")))
def _promoted_in_place(x: Spec, *args: Any, threads: int, **named: Any) -> Any:
    """A narrower target is computed beside itself as well."""
    wider = any(isinstance(arg, Spec) and arg.shape and torch.promote_types(x.dtype, arg.dtype) != x.dtype for arg in args)
    return _promoted(x, *args, threads=threads) * (2 if wider else 1)


@of(aten.where.self)
def _where(condition: Spec, *args: Any, threads: int) -> Any:
    return _promoted(*args, threads=threads)


@of(aten.native_dropout.default, aten.native_dropout_backward.default)
def _dropout(x: Spec, *rest: Any, threads: int, **named: Any) -> Any:
    return x.nbytes


@of(aten.bernoulli.p)
def _bernoulli(x: Spec, *rest: Any, threads: int, **named: Any) -> Any:
    """Numbers are drawn as 32-bit integers."""
    return 4 * _elements(x)


@of(aten.masked_select.default)
def _masked_select(x: Spec, mask: Spec, *, threads: int) -> Any:
    """The mask as integers and their running sum."""
    return 16 * _elements(x)


@of(aten.gather.default, aten.scatter.src, aten.scatter_add.default)
def _scattered(x: Spec, *rest: Any, threads: int, **named: Any) -> Any:
    return 4 * _elements(x) if _is_half(x) else 0


def _row(x: Spec, dim: int) -> Any:
    return x.shape[dim] if x.shape else 1


@of(aten.sort.default)
def _sort(x: Spec, dim: int = -1, *rest: Any, threads: int, **named: Any) -> Any:
    """A row at a time, with its indices."""
    return _row(x, dim) * (16 if x.dtype.itemsize == 8 else 8)


@of(aten.topk.default)
def _topk(x: Spec, k: Any, dim: int = -1, *rest: Any, threads: int, **named: Any) -> Any:
    return 16 * _row(x, dim)


@of(aten._unique2.default)
def _unique(x: Spec, *rest: Any, threads: int, **named: Any) -> Any:
    return x.nbytes + _elements(x) * (16 if x.dtype.itemsize == 8 else 8)


@of(aten.any.default)
def _any(x: Spec, *, threads: int) -> Any:
    return 0 if x.dtype is torch.bool else _elements(x)


@of(aten.logsumexp.default)
def _logsumexp(x: Spec, *rest: Any, threads: int, **named: Any) -> Any:
    return x.nbytes


@of(aten.binary_cross_entropy_with_logits.default)
def _logits(x: Spec, *rest: Any, threads: int, **named: Any) -> Any:
    return 8 * _elements(x)


@of(aten.mean.dim)
def _mean(x: Spec, *rest: Any, threads: int, **named: Any) -> Any:
    """Half precision is averaged in single."""
    return 4 * _elements(x) if _is_half(x) else 0


@of(aten.sum.dim_IntList)
def _sum(x: Spec, *rest: Any, threads: int, dtype: torch.dtype | None = None, **named: Any) -> Any:
    return _elements(x) * dtype.itemsize if dtype is not None and dtype != x.dtype and _is_half(x) else 0


@of(aten.mse_loss.default, aten.smooth_l1_loss.default)
def _loss(x: Spec, target: Spec, reduction: int = 1, *rest: Any, threads: int, **named: Any) -> Any:
    return 4 * _elements(x) if _is_half(x) and reduction else 0


@of(aten.huber_loss.default)
def _huber_loss(x: Spec, target: Spec, reduction: int = 1, *rest: Any, threads: int, **named: Any) -> Any:
    return _elements(x) * (6 if _is_half(x) else 4) if reduction else 0
