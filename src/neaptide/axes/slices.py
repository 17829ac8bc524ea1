"""Pieces of tensors, taken out, put in and joined: all dims but the one it happens along."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from neaptide.axes.rules import Axis, Flow, alike, equal, flows
from neaptide.axes.views import relabel
from neaptide.workspaces import Spec

aten = torch.ops.aten


@flows(aten.slice.Tensor)
def take_slice(
    x: Spec, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1, *, out: tuple[Spec, ...]
) -> Iterator[Axis]:
    """All but its dim; that one too where all of it is taken, since ends beyond a part are cut off."""
    dim %= len(x.shape)
    whole = step == 1 and equal(x.shape[dim], out[0].shape[dim])
    yield from alike((x,), out, () if whole else (dim,))


@flows(aten.narrow.default)
def narrow(x: Spec, dim: int, *rest: Any, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """All but its dim: lengths beyond a part are no slices of it."""
    yield from alike((x,), out, (dim % len(x.shape),))


@flows(aten.select.int, aten.unbind.int)
def select(x: Spec, dim: int = 0, index: Any = None, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Dims behind the one that goes move up, in every result."""
    dim %= len(x.shape)
    for own in range(len(x.shape)):
        if own != dim:
            yield Axis((Flow(own),), (Flow(own - (own > dim)),) * len(out))


@flows(
    aten.split.Tensor,
    aten.split.sizes,
    aten.split_with_sizes.default,
    aten.chunk.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
    aten.unsafe_chunk.default,
    aten.tensor_split.sections,
)
def split(x: Spec, sizes: Any, dim: int = 0, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """All but its dim, in every piece."""
    yield from alike((x,), out, (dim % len(x.shape),))


@flows(aten.cat.default, aten.concat.default)
def cat(tensors: Sequence[Spec], dim: int = 0, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """All but its dim, in every piece; that one too where there is only one piece, beside those that are empty.

    A tensor of shape (0,) is passed over whatever the others' rank, as caches that begin empty are.
    """
    rank = len(out[0].shape)
    pieces = [spec for spec in tensors if tuple(spec.shape) != (0,)]
    for axis in alike(pieces, out, (dim % rank,) if len(pieces) > 1 else ()):
        entries = iter(axis.inputs)
        yield Axis(tuple(next(entries) if spec in pieces else None for spec in tensors), axis.outputs)


@flows(aten.stack.default)
def stack(tensors: Sequence[Spec], dim: int = 0, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Dims behind the new one move back."""
    dim %= len(out[0].shape)
    for own in range(len(out[0].shape) - 1):
        yield Axis((Flow(own),) * len(tensors), (Flow(own + (own >= dim)),))


@flows(aten.flip.default)
def flip(x: Spec, dims: Any, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """All but those that are turned round."""
    yield from alike((x,), out, _listed(dims, len(x.shape)))


@flows(aten.roll.default)
def roll(x: Spec, shifts: Any, dims: Any = (), *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """All but those that are rolled; none where no dim is named, and all elements are rolled as one row."""
    if moved := _listed(dims, len(x.shape)):
        yield from alike((x,), out, moved)


def _listed(dims: Any, rank: int) -> list[int]:
    return [dim % rank for dim in ([dims] if isinstance(dims, int) else dims)] if rank else []


@flows(aten.repeat.default)
def repeat(x: Spec, repeats: Any, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Dims that are there once; and those that are new or were of size 1, whose number of repeats is the part's size."""
    rank = len(out[0].shape)
    if not isinstance(repeats, (list, tuple)) or len(repeats) != rank:
        return
    for dim in range(rank):
        own = dim - rank + len(x.shape)
        if own < 0 or x.shape[own] == 1:
            yield Axis((None,), (Flow(dim),), sizes=((1, dim),))
        elif repeats[dim] == 1:
            yield Axis((Flow(own),), (Flow(dim),))


@flows(aten.repeat_interleave.self_int)
def repeat_each(
    x: Spec, repeats: Any, dim: int | None = None, *, out: tuple[Spec, ...], output_size: Any = None
) -> Iterator[Axis]:
    """All dims; along its own, each position becomes as many as there are repeats."""
    if dim is None or output_size is not None:
        return
    dim %= len(x.shape)
    yield from alike((x,), out, (dim,))
    yield Axis((Flow(dim),), (Flow(dim, repeats),))


@flows(aten.unfold.default)
def unfold(x: Spec, dimension: int, size: Any, step: Any, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """All but its dim; the windows' own comes last."""
    rank = len(x.shape)
    yield from relabel((dim, dim) for dim in range(rank) if dim != dimension % rank)


@flows(aten.constant_pad_nd.default)
def pad(x: Spec, pad: Sequence[Any], value: Any = 0, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Dims that nothing is added to; the padding is listed in pairs from the last dim on."""
    rank = len(x.shape)
    padded = [rank - 1 - i // 2 for i, width in enumerate(pad) if width != 0]
    yield from alike((x,), out, padded)


@flows(aten.slice_scatter.default)
def put_slice(x: Spec, piece: Spec, dim: int = 0, *rest: Any, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """All but its dim."""
    yield from alike((x, piece), out, (dim % len(x.shape),))


@flows(aten.select_scatter.default)
def put_position(x: Spec, piece: Spec, dim: int, index: Any, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """All but its dim, which the piece does not have."""
    dim %= len(x.shape)
    for own in range(len(x.shape)):
        if own != dim:
            yield Axis((Flow(own), Flow(own - (own > dim))), (Flow(own),))


@flows(aten.slice_backward.default)
def slice_backward(grad: Spec, sizes: Any, dim: int, *rest: Any, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """All but its dim; the shape is an argument."""
    for own in range(len(out[0].shape)):
        if own != dim % len(out[0].shape):
            yield Axis((Flow(own),), (Flow(own),), sizes=((1, own),))


@flows(aten.select_backward.default)
def select_backward(grad: Spec, sizes: Any, dim: int, index: Any, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """All but its dim, which the gradient does not have."""
    dim %= len(out[0].shape)
    for own in range(len(out[0].shape)):
        if own != dim:
            yield Axis((Flow(own - (own > dim)),), (Flow(own),), sizes=((1, own),))
