"""Look-ups and writes by index: dims that are not indexed, and those of the indices themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from neaptide.axes.rules import Axis, Flow, alike, broadcast, flows
from neaptide.workspaces import Spec

aten = torch.ops.aten
WHOLE_NUMBERS = (torch.int64, torch.int32)


@flows(aten.embedding.default)
def embed(weight: Spec, indices: Spec, *rest: Any, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Each index by itself, and features."""
    for dim in range(len(indices.shape)):
        yield Axis((None, Flow(dim)), (Flow(dim),))
    yield Axis((Flow(1), None), (Flow(len(indices.shape)),))


@flows(aten.embedding_dense_backward.default)
def embedding_backward(
    grad: Spec, indices: Spec, rows: Any, padding: Any, by_frequency: bool, *, out: tuple[Spec, ...]
) -> Iterator[Axis]:
    """Each index adds to the table, unless it counts how often it occurs; features by themselves."""
    rank = len(indices.shape)
    if len(grad.shape) != rank + 1:
        return
    if not by_frequency:
        for dim in range(rank):
            yield Axis((Flow(dim), Flow(dim)), ("sum",))
    yield Axis((Flow(rank), None), (Flow(1),))


@flows(aten.gather.default)
def gather(x: Spec, dim: int, index: Spec, *, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """Along its dim the indices by themselves; along the others both tensors, where the indices go all the way."""
    rank = len(out[0].shape)
    if rank and len(x.shape) == len(index.shape) == rank:
        yield from alike((x, index), out, (dim % rank,))
        yield Axis((None, Flow(dim % rank)), (Flow(dim % rank),))


@flows(
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter.reduce,
    aten.scatter.value_reduce,
    aten.scatter_add.default,
    aten.scatter_reduce.two,
)
def scatter(x: Spec, dim: int, index: Spec, source: Any, *rest: Any, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """All but its dim, where the indices go all the way."""
    if x.shape:
        tensors = [spec for spec in (x, index, source) if isinstance(spec, Spec)]
        yield from alike(tensors, out, (dim % len(x.shape),))


@flows(aten.index_select.default)
def index_select(x: Spec, dim: int, index: Spec, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Along its dim the indices, along the others the tensor."""
    for own in range(len(x.shape)):
        yield Axis((None, Flow(0)) if own == dim % len(x.shape) else (Flow(own), None), (Flow(own),))


@flows(aten.index_add.default, aten.index_copy.default)
def put_at(x: Spec, dim: int, index: Spec, source: Spec, *, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """All but its dim."""
    for own in range(len(x.shape)):
        if own != dim % len(x.shape) and len(source.shape) == len(x.shape):
            yield Axis((Flow(own), None, Flow(own)), (Flow(own),))


@flows(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(x: Spec, indices: Sequence[Spec | None], *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Dims that are not indexed; and dims of the indices, which are broadcast to each other."""
    found = [spec for spec in indices if spec is not None]
    if not _are_positions(found):
        return
    rank, first, kept = _layout(len(x.shape), indices)
    for dim, place in kept.items():
        yield Axis((Flow(dim), *(None for _ in found)), (Flow(place),))
    for dim in range(rank):
        yield Axis((None, *(broadcast(spec, rank, dim) for spec in found)), (Flow(first + dim),))


@flows(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    x: Spec, indices: Sequence[Spec | None], values: Spec, accumulate: bool = False, *, out: tuple[Spec, ...]
) -> Iterator[Axis]:
    """Dims that are not indexed; the values are broadcast to what indexing would give."""
    found = [spec for spec in indices if spec is not None]
    if not _are_positions(found):
        return
    rank, _, kept = _layout(len(x.shape), indices)
    for dim, place in kept.items():
        yield Axis((Flow(dim), *(None for _ in found), broadcast(values, rank + len(kept), place)), (Flow(dim),))


def _are_positions(found: Sequence[Spec]) -> bool:
    """Whether all indices are numbers; with masks, sizes would depend on what they hold."""
    return bool(found) and all(spec.dtype in WHOLE_NUMBERS for spec in found)


def _layout(rank: int, indices: Sequence[Spec | None]) -> tuple[int, int, dict[int, int]]:
    """How many dims the indices have together, where the first of them lies in the result, and where the other dims do.

    The indices' dims take the place of the dims that are indexed if these are neighbours, else they come first.
    """
    indexed = [dim for dim, spec in enumerate(indices) if spec is not None]
    added = max(len(spec.shape) for spec in indices if spec is not None)
    neighbours = indexed[-1] - indexed[0] == len(indexed) - 1
    first = indexed[0] if neighbours else 0
    others = [dim for dim in range(rank) if dim not in indexed]
    return added, first, {dim: place + (place >= first) * added for place, dim in enumerate(others)}
