"""Along a dim: softmaxes, sums, extremes, sorting. The other dims are axes; along one that is reduced, parts combine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from neaptide.axes.rules import Axis, Flow, Reduced, alike, flows
from neaptide.workspaces import Spec

aten = torch.ops.aten


def _dims(dim: Any, rank: int) -> list[int]:
    """The dims that are reduced: all of them where none is named."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(rank))
    return [d % rank for d in ([dim] if isinstance(dim, int) else dim)] if rank else []


@flows(
    aten._softmax.default,
    aten._log_softmax.default,
    aten._safe_softmax.default,
    aten.softmax.int,
    aten.log_softmax.int,
    aten.cumsum.default,
    aten.cumprod.default,
    aten.cummax.default,
    aten.cummin.default,
    aten.logcumsumexp.default,
)
def along_dim(x: Spec, dim: int, *rest: Any, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """All dims but the one it runs along."""
    yield from alike((x,), out, _dims(dim, len(x.shape)))


@flows(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default, aten.glu_backward.default)
def along_dim_backward(grad: Spec, x: Spec, dim: int, *rest: Any, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """The same of two tensors."""
    yield from alike((grad, x), out, _dims(dim, len(x.shape)))


@flows(aten.glu.default, aten.sort.default)
def along_last_dim(x: Spec, dim: int = -1, *rest: Any, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """All dims but the one it runs along, the last if none is named."""
    yield from alike((x,), out, _dims(dim, len(x.shape)))


@flows(aten.sort.stable)
def sort_stable(x: Spec, *, out: tuple[Spec, ...], dim: int = -1, **named: Any) -> Iterator[Axis]:
    """As sorting."""
    yield from alike((x,), out, _dims(dim, len(x.shape)))


@flows(aten.topk.default)
def topk(x: Spec, k: Any, dim: int = -1, *rest: Any, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """As sorting."""
    yield from alike((x,), out, _dims(dim, len(x.shape)))


def _reduced(x: Spec, dim: Any, keepdim: bool, out: tuple[Spec, ...], combine: Reduced | None = None) -> Iterator[Axis]:
    """Dims that stay, and, where parts can be combined, those that do not."""
    rank = len(x.shape)
    gone = _dims(dim, rank)
    if any(len(spec.shape) != (rank if keepdim else rank - len(gone)) for spec in out):
        return
    if keepdim and any(spec.shape[own] != 1 for spec in out for own in gone):
        return
    place = 0
    for own in range(rank):
        if own not in gone:
            yield Axis((Flow(own),), (Flow(own if keepdim else place),) * len(out))
            place += 1
        elif combine is not None:
            yield Axis((Flow(own),), (combine,) * len(out))


@flows(aten.sum.dim_IntList, aten.nansum.default)
def add_up(x: Spec, dim: Any = None, keepdim: bool = False, *, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """Sums of parts are added."""
    yield from _reduced(x, dim, keepdim, out, "sum")


@flows(aten.sum.default)
def add_all_up(x: Spec, *, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """Sums of parts are added."""
    yield from _reduced(x, None, False, out, "sum")


@flows(aten.amax.default, aten.any.dim, aten.any.dims, aten.any.default, aten.max.default)
def find_largest(x: Spec, dim: Any = None, keepdim: bool = False, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """The largest of the parts' results; "any" is the largest truth value."""
    yield from _reduced(x, dim, keepdim, out, "max")


@flows(aten.amin.default, aten.all.dim, aten.all.dims, aten.all.default, aten.min.default)
def find_smallest(x: Spec, dim: Any = None, keepdim: bool = False, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """The smallest of the parts' results; "all" is the smallest truth value."""
    yield from _reduced(x, dim, keepdim, out, "min")


@flows(
    aten.mean.dim,
    aten.max.dim,
    aten.min.dim,
    aten.median.dim,
    aten.argmax.default,
    aten.argmin.default,
    aten.logsumexp.default,
    aten.prod.dim_int,
)
def reduce(x: Spec, dim: Any = None, keepdim: bool = False, *, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """Dims that stay."""
    yield from _reduced(x, dim, keepdim, out)


@flows(aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction)
def spread(x: Spec, dim: Any = None, *, out: tuple[Spec, ...], keepdim: bool = False, **named: Any) -> Iterator[Axis]:
    """Dims that stay."""
    yield from _reduced(x, dim, keepdim, out)


@flows(aten.var.dim, aten.std.dim, aten.var_mean.dim, aten.std_mean.dim)
def unbiased_spread(
    x: Spec, dim: Any, unbiased: bool = True, keepdim: bool = False, *, out: tuple[Spec, ...]
) -> Iterator[Axis]:
    """Dims that stay."""
    yield from _reduced(x, dim, keepdim, out)


@flows(aten.linalg_vector_norm.default)
def norm(
    x: Spec, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, out: tuple[Spec, ...], **named: Any
) -> Iterator[Axis]:
    """Dims that stay."""
    yield from _reduced(x, dim, keepdim, out)
