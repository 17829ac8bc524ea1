"""Element by element: ops whose operands are broadcast to the result, so that every dim of it is an axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from neaptide.axes.rules import Axis, Flow, alike, broadcast, cuts, flows, tensors_in
from neaptide.workspaces import Spec

aten = torch.ops.aten


@flows(
    "pointwise",
    # Copies and conversions, which are not tagged.
    aten.clone.default,
    aten._to_copy.default,
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.to.device,
    aten.contiguous.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten._conj.default,
    aten.copy.default,
    "prims::convert_element_type",
    # Untagged arithmetic.
    aten.masked_fill.Tensor,
    aten.where.ScalarSelf,
    aten.where.ScalarOther,
    aten.where.Scalar,
    aten.fill.Scalar,
    aten.fill.Tensor,
    aten.rsub.Tensor,
    aten.floor_divide.default,
    aten.floor_divide.Scalar,
    aten.complex.default,
    aten.polar.default,
    aten.hardswish.default,
    aten._prelu_kernel.default,
    aten.log_sigmoid_forward.default,
    # Gradients of activations.
    aten.elu_backward.default,
    aten.leaky_relu_backward.default,
    aten.hardtanh_backward.default,
    aten.hardswish_backward.default,
    aten.hardsigmoid_backward.default,
    aten.hardshrink_backward.default,
    aten.softshrink_backward.default,
    aten.softplus_backward.default,
    aten.mish_backward.default,
    aten.log_sigmoid_backward.default,
    # Of another tensor's shape.
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.empty_like.default,
)
def element_by_element(*args: Any, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """Dims are matched from the last one; an operand of size 1 along a dim, or without it, is needed whole."""
    tensors = tensors_in(args, named)
    if any(spec is None or len(spec.shape) != len(out[0].shape) for spec in out):
        return
    rank = len(out[0].shape) if out else 0
    for dim in range(rank):
        entries = tuple(broadcast(spec, rank, dim) for spec in tensors)
        if any(entries):
            yield Axis(entries, (Flow(dim),) * len(out))


@flows(aten.bucketize.Tensor, aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar)
def look_up_each(x: Spec, among: Any, *rest: Any, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """Each element by itself, in a table that is needed whole."""
    for dim in range(len(x.shape)):
        yield Axis(cuts((x, dim), (among, None)), (Flow(dim),))


@flows(aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default)
def loss(x: Spec, target: Spec, reduction: int = 1, *rest: Any, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """Elements by themselves where they are not reduced (0), added up where they are summed (2); a mean (1) stays whole."""
    if reduction == 0:
        yield from alike((x, target), out)
    elif reduction == 2 and len(x.shape) == len(target.shape):
        for dim in range(len(x.shape)):
            yield Axis((Flow(dim), Flow(dim)), ("sum",))
