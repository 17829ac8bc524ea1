"""Convolutions, as oneDNN runs them: channels in blocks of 16.

Plain (contiguous) operands are copied into blocks and the result out of them; channels-last ones copy only weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from neaptide._torch import FloorDiv
from neaptide.workspaces.rules import Spec, copy_bytes, most, of, product

aten = torch.ops.aten
BLOCK = 16


def _blocks(channels: Any) -> Any:
    return -(-channels // BLOCK) * BLOCK if isinstance(channels, int) else channels


def _blocked(spec: Spec, always: bool = False) -> Any:
    """A plain activation in blocks of channels; inputs of up to three channels are read as they are."""
    channels = spec.shape[1]
    if isinstance(channels, int) and channels <= 3 and not always:
        return 0
    return spec.shape[0] * _blocks(channels) * product(spec.shape[2:]) * spec.dtype.itemsize


def _blocked_weight(weight: Spec, groups: Any, padded: bool = False) -> Any:
    """Weights in blocks; those for up to three channels are not filled up, except for the input's gradient."""
    first, second = weight.shape[:2]
    small = isinstance(second, int) and second <= 3 and not padded
    inner = second if groups != 1 or small else _blocks(second)
    return _blocks(first) * inner * product(weight.shape[2:]) * weight.dtype.itemsize


def _output_side(side: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    span = side + 2 * padding - dilation * (kernel - 1) - 1
    if stride == 1:
        return span + 1
    steps: Any = span // stride if isinstance(span, int) else FloorDiv(span, stride)
    return steps + 1


def _each(values: Any, dims: int) -> list[Any]:
    return [values[0]] * dims if len(values) == 1 else list(values)


def _convolved(
    x: Spec, weight: Spec, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: Any
) -> Spec:
    dims = len(x.shape) - 2
    stride, padding, dilation, extra = (_each(values, dims) for values in (stride, padding, dilation, extra))
    kernel = weight.shape[2:]
    if transposed:
        sides = tuple(
            (x.shape[i + 2] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + extra[i] + 1
            for i in range(dims)
        )
        return Spec((x.shape[0], weight.shape[1] * groups, *sides), (), x.dtype)
    sides = tuple(_output_side(x.shape[i + 2], kernel[i], stride[i], padding[i], dilation[i]) for i in range(dims))
    return Spec((x.shape[0], weight.shape[0], *sides), (), x.dtype)


def _is_pointwise(weight: Spec) -> bool:
    return all(side == 1 for side in weight.shape[2:])


def _layout_copies(x: Spec, weight: Spec) -> Any:
    """Channels-last: the input if it is not, the weights twice (once into the layout, once into blocks)."""
    copies = 1 if _is_pointwise(weight) or weight.is_channels_last else 2
    return (0 if x.is_channels_last else x.nbytes) + copies * weight.nbytes


@of(aten.convolution.default)
def _convolution(
    x: Spec,
    weight: Spec,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    extra: Any,
    groups: Any,
    *,
    threads: int,
) -> Any:
    """Input and weights in blocks, then the result in blocks beside the plain one."""
    if x.is_channels_last or weight.is_channels_last:
        return _layout_copies(x, weight)
    y = _convolved(x, weight, stride, padding, dilation, transposed, extra, groups)
    outside = y.shape[0] * _blocks(y.shape[1]) * product(y.shape[2:]) * y.dtype.itemsize
    inside = copy_bytes(x) + _blocked(x) + _blocked_weight(weight, groups)
    if transposed:
        return most(outside + y.nbytes, inside + outside - y.nbytes)
    strided = _is_pointwise(weight) and any(step != 1 for step in stride)
    gathered = threads * x.shape[1] * product(y.shape[2:]) * x.dtype.itemsize if strided else 0
    return most(outside, inside + gathered + outside - y.nbytes)


@of(aten.convolution_backward.default)
def _convolution_backward(
    grad: Spec, x: Spec, weight: Spec, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    extra: Any, groups: Any, wanted: Sequence[bool], *, threads: int,
) -> Any:  # fmt: skip
    """The input's gradient first, then the weights': each in blocks, and copied out of them."""
    copied = copy_bytes(grad) + copy_bytes(x)
    if x.is_channels_last or weight.is_channels_last or grad.is_channels_last:
        moved = sum(0 if spec.is_channels_last else spec.nbytes for spec in (grad, x))
        filled = _blocked_weight(weight, groups, padded=True)
        return moved + most((2 if _is_pointwise(weight) else 3) * weight.nbytes, filled)
    outer, inner = _blocked(grad, always=True), _blocked(x)
    parts: list[Any] = []
    if wanted[0]:
        strided = any(step != 1 for step in stride) and not transposed
        filled = _blocked_weight(weight, groups, padded=True)
        plain = x.nbytes if inner != 0 else 0
        result = most((2 if strided else 1) * inner, outer + filled + inner - plain)
        parts.append(copied + result - (weight.nbytes if wanted[1] else 0))
    if wanted[1]:
        parts.append(copied + outer + inner + _blocked_weight(weight, groups) - weight.nbytes)
    return most(0, *parts) if parts else 0
