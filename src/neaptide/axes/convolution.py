"""Convolutions, pooling and resampling: images by themselves, channels where they do not mix; never parts of a plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from neaptide.axes.rules import Axis, Flow, alike, cuts, flows, quotient, results, tensors_in
from neaptide.workspaces import Spec

aten = torch.ops.aten


@flows(aten.convolution.default)
def convolution(
    x: Spec, weight: Spec, bias: Spec | None, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any,
    groups: Any, *, out: tuple[Spec, ...],
) -> Iterator[Axis]:  # fmt: skip
    """Images; output channels; input channels where no bias is added; groups of channels, where there are some."""
    yield from _convolved(x, weight, bias, transposed, groups)
    wide, narrow = quotient(x.shape[1], groups), quotient(out[0].shape[1], groups)
    if groups != 1 and len(x.shape) == len(weight.shape) and wide is not None and narrow is not None:
        cut = Flow(0, wide if transposed else narrow)
        yield Axis(cuts((x, Flow(1, wide)), (weight, cut), (bias, Flow(0, narrow))), (Flow(1, narrow),), instead=_some_groups)


def _some_groups(
    first: Any, last: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: Any,
) -> torch.Tensor:  # fmt: skip
    """As many groups as the part's channels make; the weights' second dim is one group's share of them."""
    fewer = (last - first if transposed else x.shape[1]) // weight.shape[1]
    return aten.convolution.default(x, weight, bias, stride, padding, dilation, transposed, output_padding, fewer)


@flows(
    *(getattr(aten, f"conv{dims}d").default for dims in (1, 2, 3)),
    *(getattr(aten, f"conv{dims}d").padding for dims in (1, 2, 3)),
)
def plain_convolution(
    x: Spec, weight: Spec, bias: Spec | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1,
    *, out: tuple[Spec, ...],
) -> Iterator[Axis]:  # fmt: skip
    """As the general one."""
    yield from _convolved(x, weight, bias, False, groups)


def _convolved(x: Spec, weight: Spec, bias: Spec | None, transposed: bool, groups: Any) -> Iterator[Axis]:
    if len(x.shape) != len(weight.shape):
        return
    yield Axis(cuts((x, 0), (weight, None), (bias, None)), (Flow(0),))
    if groups == 1:
        outer, inner = (1, 0) if transposed else (0, 1)
        yield Axis(cuts((x, None), (weight, outer), (bias, 0)), (Flow(1),))
        if bias is None:
            yield Axis((Flow(1), Flow(inner)), ("sum",))


@flows(aten.convolution_backward.default)
def convolution_backward(grad: Spec, x: Spec, weight: Spec, *rest: Any, out: tuple[Spec | None, ...]) -> Iterator[Axis]:
    """Images: their own gradients, and a share of the weights' and the bias's."""
    if len(x.shape) == len(weight.shape):
        yield Axis((Flow(0), Flow(0), None), results(out, Flow(0), "sum", "sum"))


def _planes(dims: int) -> Callable[..., Iterator[Axis]]:
    def rule(*args: Any, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
        """Images and channels, if there are any; all but the last dims, which are the plane's."""
        rank = len(out[0].shape)
        yield from alike(tensors_in(args, named), out, range(rank - dims, rank))

    return rule


flows(
    aten.avg_pool1d.default,
    aten.max_pool1d.default,
    aten.adaptive_avg_pool1d.default,
    aten.reflection_pad1d.default,
    aten.replication_pad1d.default,
    aten.upsample_nearest1d.default,
    aten.upsample_nearest1d.vec,
    aten.upsample_linear1d.default,
    aten.upsample_linear1d.vec,
)(_planes(1))

flows(
    aten.avg_pool2d.default,
    aten.avg_pool2d_backward.default,
    aten.max_pool2d.default,
    aten.max_pool2d_with_indices.default,
    aten.max_pool2d_with_indices_backward.default,
    aten.adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool2d_backward.default,
    aten.adaptive_max_pool2d.default,
    aten.reflection_pad2d.default,
    aten.replication_pad2d.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest2d.vec,
    aten._upsample_nearest_exact2d.default,
    aten._upsample_nearest_exact2d.vec,
    aten.upsample_bilinear2d.default,
    aten.upsample_bilinear2d.vec,
    aten._upsample_bilinear2d_aa.default,
    aten._upsample_bilinear2d_aa.vec,
    aten.upsample_bicubic2d.default,
    aten.upsample_bicubic2d.vec,
)(_planes(2))

flows(
    aten.avg_pool3d.default,
    aten.max_pool3d_with_indices.default,
    aten._adaptive_avg_pool3d.default,
    aten.upsample_nearest3d.default,
    aten.upsample_nearest3d.vec,
    aten.upsample_trilinear3d.default,
    aten.upsample_trilinear3d.vec,
)(_planes(3))


@flows(
    aten.upsample_nearest2d_backward.default,
    aten._upsample_nearest_exact2d_backward.default,
    aten.upsample_bilinear2d_backward.default,
    aten.upsample_bicubic2d_backward.default,
)
def upsample_backward(grad: Spec, output_size: Any, input_size: Any, *rest: Any, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Images and channels; the result's shape is an argument."""
    for dim in (0, 1):
        yield Axis((Flow(dim),), (Flow(dim),), sizes=((2, dim),))


@flows(aten.pixel_shuffle.default)
def pixel_shuffle(x: Spec, factor: int, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Blocks of channels become one, a position of the plane becomes a block."""
    for dim, wide, narrow in _shuffled(len(x.shape), factor):
        yield Axis((Flow(dim, wide),), (Flow(dim, narrow),))


@flows(aten.pixel_unshuffle.default)
def pixel_unshuffle(x: Spec, factor: int, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """The other way round."""
    for dim, wide, narrow in _shuffled(len(x.shape), factor):
        yield Axis((Flow(dim, narrow),), (Flow(dim, wide),))


def _shuffled(rank: int, factor: int) -> Iterator[tuple[int, int, int]]:
    """Each dim, with how many of its positions in the deep image are how many in the large one."""
    for dim in range(rank):
        yield dim, factor**2 if dim == rank - 3 else 1, factor if dim >= rank - 2 else 1


@flows(aten.grid_sampler_2d.default)
def sample(x: Spec, grid: Spec, *rest: Any, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Images with their grids, channels, and rows and columns of the grid."""
    yield Axis((Flow(0), Flow(0)), (Flow(0),))
    yield Axis((Flow(1), None), (Flow(1),))
    yield Axis((None, Flow(1)), (Flow(2),))
    yield Axis((None, Flow(2)), (Flow(3),))
