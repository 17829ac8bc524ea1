"""Matrix products: operands that BLAS cannot read as they lie, and sums of half precision in single."""

from __future__ import annotations

from typing import Any

import torch

from neaptide.workspaces.rules import Spec, merges, of, product

aten = torch.ops.aten


def _operand(matrix: Spec) -> Any:
    """What BLAS cannot read is copied, one matrix at a time."""
    return matrix.shape[-2] * matrix.shape[-1] * matrix.dtype.itemsize if matrix.is_scattered else 0


def _accumulator(rows: Any, columns: Any, dtype: torch.dtype) -> Any:
    """Half-precision products are summed in single precision beside the result; one row needs no such thing."""
    return 0 if dtype.itemsize != 2 or rows == 1 else rows * columns * 4


@of(aten.mm.default)
def _mm(a: Spec, b: Spec, *, threads: int, **named: Any) -> Any:
    return _operand(a) + _operand(b) + _accumulator(a.shape[0], b.shape[1], a.dtype)


@of(aten.addmm.default)
def _addmm(bias: Spec, a: Spec, b: Spec, *, threads: int, **named: Any) -> Any:
    depth, width = a.shape[1], b.shape[1]
    again = a.dtype.itemsize == 2 and isinstance(depth, int) and isinstance(width, int) and depth >= width
    return _mm(a, b, threads=threads) + (a.shape[0] * b.shape[1] * 2 if again else 0)


@of(aten.linear.default)
def _linear(x: Spec, weight: Spec, bias: Spec | None = None, *, threads: int) -> Any:
    matrix = Spec(weight.shape[::-1], weight.stride[::-1], weight.dtype)
    if bias is None or not x.is_contiguous:
        return _rows_by_matrix(x, matrix, threads)
    return _addmm(bias, _flat(x), matrix, threads=threads)


def _rows_by_matrix(x: Spec, matrix: Spec, threads: int) -> Any:
    """One product of all rows where they lie one after the other; else one for each batch of them."""
    if len(x.shape) < 3 or merges(x, len(x.shape) - 1):
        return _mm(_flat(x), matrix, threads=threads)
    batch = product(x.shape[:-2])
    repeated = Spec((batch, *matrix.shape), (0, *matrix.stride), matrix.dtype)
    sums = threads * _accumulator(x.shape[-2], matrix.shape[1], x.dtype)
    return _as_one_batch(x) + _batch_operand(repeated) + sums


def _flat(x: Spec) -> Spec:
    """All rows as one matrix."""
    step = next((x.stride[dim] for dim in reversed(range(len(x.shape) - 1)) if x.shape[dim] != 1), x.shape[-1])
    return Spec((product(x.shape[:-1]), x.shape[-1]), (step, x.stride[-1]), x.dtype)


def _batch_operand(matrix: Spec) -> Any:
    """Half precision: the batch must be dense as well, either way round."""
    if matrix.dtype.itemsize != 2:
        return _operand(matrix)
    turned = Spec(
        (matrix.shape[0], matrix.shape[2], matrix.shape[1]),
        (matrix.stride[0], matrix.stride[2], matrix.stride[1]),
        matrix.dtype,
    )
    return 0 if matrix.is_contiguous or turned.is_contiguous else matrix.nbytes


@of(aten.bmm.default)
def _bmm(a: Spec, b: Spec, *, threads: int, **named: Any) -> Any:
    sums = threads * _accumulator(a.shape[1], b.shape[2], a.dtype)
    return _batch_operand(a) + _batch_operand(b) + sums


@of(aten.baddbmm.default)
def _baddbmm(x: Spec, a: Spec, b: Spec, *, threads: int, **named: Any) -> Any:
    return _bmm(a, b, threads=threads)


@of(aten.matmul.default)
def _matmul(a: Spec, b: Spec, *, threads: int) -> Any:
    if len(b.shape) == 2:
        return _rows_by_matrix(a, b, threads)
    if len(b.shape) < 3 or len(a.shape) < 3:
        return 0
    sums = threads * _accumulator(a.shape[-2], b.shape[-1], a.dtype)
    return sum(_as_one_batch(spec) for spec in (a, b) if len(spec.shape) > 3) + sums


def _as_one_batch(matrix: Spec) -> Any:
    """Several batch dims are made one: a copy, where they do not lie in one row."""
    lead = len(matrix.shape) - 2
    if not merges(matrix, lead):
        return matrix.nbytes
    step = next((matrix.stride[dim] for dim in reversed(range(lead)) if matrix.shape[dim] != 1), 0)
    batch = product(matrix.shape[:lead])
    return _batch_operand(Spec((batch, *matrix.shape[lead:]), (step, *matrix.stride[lead:]), matrix.dtype))
