"""Matrix products: rows of the left operand, columns of the right one, and what they are summed over.

A sum over parts is right only where nothing else is added to it, which would be added once for each part. PyTorch multiplies a
batch of matrices that are dense in neither direction one by one, with a copy of each; parts of it are made dense first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from neaptide.axes.rules import Axis, Flow, broadcast, cuts, flows
from neaptide.workspaces import Spec

aten = torch.ops.aten


def add_products(onto: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Add the products of two batches of matrices, of which scattered ones are copied all at once.

    >>> pairs = torch.ones(8, 4, 16)
    >>> add_products(torch.zeros(16, 8, 8), pairs.permute(2, 0, 1), pairs.permute(2, 1, 0)).mean()
    tensor(4.)
    """
    return onto.baddbmm_(_dense(a), _dense(b))


def _dense(matrices: torch.Tensor) -> torch.Tensor:
    scattered = Spec(tuple(matrices.shape), matrices.stride(), matrices.dtype).is_scattered
    return matrices.contiguous() if scattered else matrices


def _dense_bytes(a: Spec, b: Spec) -> Any:
    """What those copies take, beside what the product itself hides: one matrix of each, or in half precision all of them."""
    copied = [matrices for matrices in (a, b) if matrices.is_scattered and matrices.dtype.itemsize != 2]
    return sum(matrices.nbytes // matrices.shape[0] * (matrices.shape[0] - 1) for matrices in copied)


@flows(aten.bmm.default)
def multiply_batches(a: Spec, b: Spec, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """As any product; its sum over parts is made by `add_products`."""
    for axis in _product(a, b, None, True, out[0]):
        yield replace(axis, beside=_dense_bytes) if axis.outputs == ("sum",) else axis


@flows(aten.mm.default, aten.matmul.default, aten.dot.default, aten.vdot.default, aten.mv.default)
def multiply(a: Spec, b: Spec, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Vectors, matrices, and batches of either that are broadcast to each other."""
    yield from _product(a, b, None, True, out[0])


@flows(aten.addmm.default, aten.baddbmm.default, aten.addmv.default)
def multiply_and_add(x: Spec, a: Spec, b: Spec, *, out: tuple[Spec, ...], beta: Any = 1, **named: Any) -> Iterator[Axis]:
    """As the product, with a tensor that is broadcast to it; `beta = 0` leaves that one out."""
    for axis in _product(a, b, x, beta == 0, out[0]):
        yield Axis((axis.inputs[-1], *axis.inputs[:-1]), axis.outputs)


def _product(a: Spec, b: Spec, added: Spec | None, plain: bool, out: Spec) -> Iterator[Axis]:
    """The axes of `a @ b`, with what is added (its entry comes last); the inner one only where it is `plain`."""
    left, right, rank = len(a.shape), len(b.shape), len(out.shape)
    if left == 0 or right == 0:
        return
    batch = max(left, right, 2) - 2
    for dim in range(batch):
        # As if the operands were matrices alone: their own batch dims are matched from the last.
        first, second = (broadcast(Spec(spec.shape[:-2], (), spec.dtype), batch, dim) for spec in (a, b))
        yield Axis(cuts((a, first), (b, second), (added, broadcast(added, rank, dim))), (Flow(dim),))
    if left > 1:
        yield Axis(cuts((a, left - 2), (b, None), (added, broadcast(added, rank, batch))), (Flow(batch),))
    if right > 1:
        yield Axis(cuts((a, None), (b, right - 1), (added, broadcast(added, rank, rank - 1))), (Flow(rank - 1),))
    if plain:
        yield Axis(cuts((a, left - 1), (b, max(right - 2, 0)), (added, None)), ("sum",))


@flows(aten.linear.default)
def linear(x: Spec, weight: Spec, bias: Spec | None = None, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Leading dims, output features, and input features where no bias is added."""
    rank = len(out[0].shape)
    if len(weight.shape) != 2 or len(x.shape) != rank:
        return
    for dim in range(rank - 1):
        yield Axis(cuts((x, dim), (weight, None), (bias, broadcast(bias, rank, dim))), (Flow(dim),))
    yield Axis(cuts((x, None), (weight, 0), (bias, broadcast(bias, rank, rank - 1))), (Flow(rank - 1),))
    if bias is None:
        yield Axis((Flow(rank - 1), Flow(1)), ("sum",))
