"""Tensors made from a shape or a position: the part's size, or where it begins, goes into the arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from neaptide.axes.rules import Axis, Flow, flows
from neaptide.workspaces import Spec

aten = torch.ops.aten


@flows(aten.full.default, aten.zeros.default, aten.ones.default, aten.empty.memory_format)
def fill(size: Any, *rest: Any, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """Every dim of the shape, which is the first argument."""
    for dim in _dims(size, out):
        yield Axis((), (Flow(dim),), sizes=((0, dim),))


@flows(aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.new_empty.default)
def fill_like(x: Spec, size: Any, *rest: Any, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """Every dim of the shape; the tensor that lends its type is not read."""
    for dim in _dims(size, out):
        yield Axis((None,), (Flow(dim),), sizes=((1, dim),))


def _dims(size: Any, out: tuple[Spec, ...]) -> range:
    """The dims of a result whose shape was given as a list."""
    rank = len(out[0].shape)
    return range(rank if isinstance(size, (list, tuple)) and len(size) == rank else 0)


@flows(aten.scalar_tensor.default)
def single_number(*args: Any, out: tuple[Spec, ...], **named: Any) -> tuple[Axis, ...]:
    """Known, and nothing to cut."""
    return ()


def _arange_part(first: Any, last: Any, *args: Any, dtype: torch.dtype | None = None, **named: Any) -> torch.Tensor:
    """The numbers from position `first` up to `last`; fractions are cut out of the whole, to be rounded as they are there."""
    start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    if all(isinstance(number, int) for number in (start, end, step)) and dtype in (None, torch.int64):
        return aten.arange.start_step(start + first * step, start + last * step, step, dtype=dtype, **named)
    return aten.arange.start_step(start, end, step, dtype=dtype, **named)[first:last]


@flows(aten.arange.default, aten.arange.start, aten.arange.start_step)
def count(*args: Any, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """A part begins where its position says."""
    yield Axis((), (Flow(0),), instead=_arange_part)


def _iota_part(first: Any, last: Any, length: Any, *, start: Any, step: Any, **named: Any) -> torch.Tensor:
    return torch.ops.prims.iota.default(last - first, start=start + first * step, step=step, **named)


@flows("prims::iota")
def count_from(length: Any, *, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """As `arange`, with the length given."""
    yield Axis((), (Flow(0),), instead=_iota_part)


def _lower_rows(first: Any, last: Any, x: torch.Tensor, diagonal: Any = 0) -> torch.Tensor:
    return aten.tril.default(x, diagonal + first)


def _lower_columns(first: Any, last: Any, x: torch.Tensor, diagonal: Any = 0) -> torch.Tensor:
    return aten.tril.default(x, diagonal - first)


def _upper_rows(first: Any, last: Any, x: torch.Tensor, diagonal: Any = 0) -> torch.Tensor:
    return aten.triu.default(x, diagonal + first)


def _upper_columns(first: Any, last: Any, x: torch.Tensor, diagonal: Any = 0) -> torch.Tensor:
    return aten.triu.default(x, diagonal - first)


@flows(aten.tril.default)
def lower_triangle(x: Spec, diagonal: Any = 0, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Matrices by themselves; rows and columns with the diagonal moved to where the part begins."""
    yield from _triangle(x, _lower_rows, _lower_columns)


@flows(aten.triu.default)
def upper_triangle(x: Spec, diagonal: Any = 0, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """As the lower one."""
    yield from _triangle(x, _upper_rows, _upper_columns)


def _triangle(x: Spec, rows: Any, columns: Any) -> Iterator[Axis]:
    rank = len(x.shape)
    for dim in range(rank):
        yield Axis((Flow(dim),), (Flow(dim),), instead=(rows if dim == rank - 2 else columns if dim == rank - 1 else None))
