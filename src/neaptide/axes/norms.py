"""Normalisations: everything that is not normalised over, and the gradients of weights as sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from neaptide.axes.rules import Axis, Flow, cuts, equal, flows, quotient, results
from neaptide.workspaces import Spec

aten = torch.ops.aten


@flows(
    aten.native_layer_norm.default,
    aten.layer_norm.default,
    aten.rms_norm.default,
    aten._fused_rms_norm.default,
)
def normalize_rows(
    x: Spec, shape: Any, weight: Spec | None = None, bias: Any = None, *rest: Any, out: tuple[Spec, ...]
) -> Iterator[Axis]:
    """Leading dims, in the result and in the statistics; `rms_norm` has a number where others have a bias."""
    for dim in range(len(x.shape) - len(shape)):
        yield Axis(cuts((x, dim), (weight, None), (bias, None)), (Flow(dim),) * len(out))


@flows(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    grad: Spec, x: Spec, shape: Any, mean: Spec, rstd: Spec, weight: Any, bias: Any, *rest: Any,
    out: tuple[Spec | None, ...],
) -> Iterator[Axis]:  # fmt: skip
    """Leading dims; each adds to the gradients of weight and bias."""
    for dim in range(len(x.shape) - len(shape)):
        cut = cuts((grad, dim), (x, dim), (mean, dim), (rstd, dim), (weight, None), (bias, None))
        yield Axis(cut, results(out, Flow(dim), "sum", "sum"), instead=_dense_statistics if dim else None)


def _dense_statistics(
    first: Any, last: Any, grad_out: torch.Tensor, input: torch.Tensor, normalized_shape: Any, mean: torch.Tensor,
    rstd: torch.Tensor, *rest: Any,
) -> Any:  # fmt: skip
    """The kernel reads the statistics as if they lay side by side, and reads others where they do not."""
    dense = mean.contiguous(), rstd.contiguous()
    return aten.native_layer_norm_backward.default(grad_out, input, normalized_shape, *dense, *rest)


def _some_groups(
    first: Any, last: Any, x: torch.Tensor, weight: Any, bias: Any, n: Any, c: Any, hxw: Any, group: Any, eps: float
) -> Any:
    """As many groups as the part's channels make, each as wide as in the whole; the kernel wants them side by side."""
    channels = last - first
    return aten.native_group_norm.default(x.contiguous(), weight, bias, n, channels, hxw, channels // (c // group), eps)


@flows(aten.native_group_norm.default)
def normalize_groups(
    x: Spec, weight: Spec | None, bias: Spec | None, n: Any, c: Any, hxw: Any, group: Any, eps: float, *, out: tuple[Spec, ...]
) -> Iterator[Axis]:
    """Images, whose number is an argument; and groups of channels, each with its statistics."""
    if len(x.shape) < 2 or not (equal(x.shape[0], n) and equal(x.shape[1], c)):
        return
    yield Axis(cuts((x, 0), (weight, None), (bias, None)), (Flow(0),) * len(out), sizes=((3, None),))
    width = quotient(c, group)
    if width is not None:
        cut = cuts((x, Flow(1, width)), (weight, Flow(0, width)), (bias, Flow(0, width)))
        yield Axis(cut, (Flow(1, width), Flow(1), Flow(1)), instead=_some_groups)


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """`group_norm` over the groups of a part, each of `width` channels."""

    __name__ = "group_norm_part"  # what a graph asks of a function that it calls
    width: int

    def __call__(self, first: Any, last: Any, x: torch.Tensor, num_groups: Any, *rest: Any, **named: Any) -> torch.Tensor:
        return aten.group_norm.default(x, (last - first) // self.width, *rest, **named)


@flows(aten.group_norm.default)
def normalize_in_groups(
    x: Spec, groups: Any, weight: Spec | None = None, bias: Spec | None = None, *rest: Any, out: tuple[Spec, ...]
) -> Iterator[Axis]:
    """Images, and groups of channels where their width is known."""
    yield Axis(cuts((x, 0), (weight, None), (bias, None)), (Flow(0),))
    width = quotient(x.shape[1], groups)
    if isinstance(width, int):
        cut = cuts((x, Flow(1, width)), (weight, Flow(0, width)), (bias, Flow(0, width)))
        yield Axis(cut, (Flow(1, width),), instead=GroupNorm(width))


@flows(aten.native_group_norm_backward.default)
def group_norm_backward(
    grad: Spec, x: Spec, mean: Spec, rstd: Spec, weight: Any, *rest: Any, out: tuple[Spec | None, ...]
) -> Iterator[Axis]:
    """Images; each adds to the gradients of weight and bias."""
    if out[0] is not None:
        cut = cuts((grad, 0), (x, 0), (mean, 0), (rstd, 0), (weight, None))
        yield Axis(cut, results(out, Flow(0), "sum", "sum"), sizes=((5, None),))


@flows(aten._native_batch_norm_legit_no_training.default, aten._batch_norm_no_update.default)
def normalize_by_statistics(x: Spec, *given: Any, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """With statistics that are given, everything is by itself: images, channels, positions."""
    yield from _by_channel(x, given, out)
    for dim in range(len(x.shape)):
        if dim != 1:
            # What is saved of the statistics is empty, or the same for every part.
            yield Axis(cuts((x, dim), *((spec, None) for spec in given)), (Flow(dim), *(None for _ in out[1:])))


@flows(aten.native_batch_norm.default, aten.batch_norm.default)
def normalize_perhaps_by_statistics(
    x: Spec, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *rest: Any, out: tuple[Spec, ...]
) -> Iterator[Axis]:
    """In training it updates the statistics in passing, and stays whole."""
    if not training and mean is not None and variance is not None:
        yield from normalize_by_statistics(x, weight, bias, mean, variance, out=out)


@flows(
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten._batch_norm_with_update_functional.default,
)
def normalize_channels(x: Spec, *given: Any, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Statistics of a batch are made channel by channel; updated ones are results."""
    yield from _by_channel(x, given, out)


@flows(aten.native_batch_norm_backward.default)
def batch_norm_backward(grad: Spec, x: Spec, *given: Any, out: tuple[Spec | None, ...]) -> Iterator[Axis]:
    """Channels, as forwards."""
    for axis in _by_channel(x, given, out):
        yield Axis((Flow(1), *axis.inputs), axis.outputs)


def _by_channel(x: Spec, given: Any, out: tuple[Spec | None, ...]) -> Iterator[Axis]:
    """Channels: the second dim of what has many, the only one of what has a number for each, none of what is empty."""
    if len(x.shape) > 1:
        yield Axis(cuts((x, 1), *((spec, _channel(spec)) for spec in given)), tuple(_channel(spec) for spec in out))


def _channel(spec: Any) -> Flow | None:
    if not isinstance(spec, Spec) or 0 in spec.shape:
        return None
    return Flow(min(len(spec.shape) - 1, 1))
