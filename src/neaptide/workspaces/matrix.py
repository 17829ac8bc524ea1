"""Matrix products: operands that BLAS cannot read as they lie, and sums of half precision in single."""

from __future__ import annotations

from typing import Any

import torch

from neaptide.workspaces.rules import Spec, copy_bytes, of, product

aten = torch.ops.aten


def _operand(matrix: Spec) -> Any:
    """BLAS reads rows or columns that are dense and apart; anything else is copied, one matrix at a time."""
    rows, columns = matrix.stride[-2:]
    if (rows == 1 and columns != 0) or (columns == 1 and rows != 0) or matrix.shape[-1] == 1 or matrix.shape[-2] == 1:
        return 0
    return matrix.shape[-2] * matrix.shape[-1] * matrix.dtype.itemsize


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
    return copy_bytes(x) + _accumulator(product(x.shape[:-1]), weight.shape[0], x.dtype)


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
        return copy_bytes(a) + _accumulator(product(a.shape[:-1]), b.shape[1], a.dtype)
    if len(b.shape) < 3 or len(a.shape) < 3:
        return 0
    sums = threads * _accumulator(a.shape[-2], b.shape[-1], a.dtype)
    return sum(copy_bytes(spec) for spec in (a, b) if len(spec.shape) > 3) + sums
