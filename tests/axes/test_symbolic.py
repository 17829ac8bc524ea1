"""A rule gives the same axes in symbols as in numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch

from neaptide._torch import FloorDiv
from neaptide.axes import Axis, Flow, axes, quotient
from neaptide.workspaces import Spec

aten = torch.ops.aten
b, s, t = sympy.symbols("b s t", positive=True, integer=True)
SIZES = {b: 3, s: 10, t: 7}


def dense(*shape: Any, dtype: torch.dtype = torch.float32) -> Spec:
    stride, step = [], 1
    for side in reversed(shape):
        stride.insert(0, step)
        step = step * side
    return Spec(shape, tuple(stride), dtype)


def ints(*shape: Any) -> Spec:
    return dense(*shape, dtype=torch.int64)


def at(value: Any) -> Any:
    """A call or an axis at the sizes above."""
    if isinstance(value, Spec):
        return Spec(at(value.shape), at(value.stride), value.dtype)
    if isinstance(value, Axis):
        return replace(value, inputs=at(value.inputs), outputs=at(value.outputs))
    if isinstance(value, Flow):
        return Flow(value.dim, at(value.block))
    if isinstance(value, (tuple, list)):
        return type(value)(at(item) for item in value)
    return int(value.subs(SIZES)) if isinstance(value, sympy.Expr) else value


heads, conv = dense(b, 4, s, 16), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
CALLS: list[tuple[Any, tuple[Any, ...], list[Any]]] = [
    (aten.view.default, (dense(b, s, 768), [b, s, 12, 64]), [dense(b, s, 12, 64)]),
    (aten.view.default, (dense(b, s, 768), [b * s, 768]), [dense(b * s, 768)]),
    (aten.view.default, (dense(b * s, 768), [b, s, 768]), [dense(b, s, 768)]),
    (aten.view.default, (dense(b, s, 768), [-1, 768]), [dense(b * s, 768)]),
    (aten.view.default, (dense(b * 12, s, 64), [b, 12, s, 64]), [dense(b, 12, s, 64)]),
    (aten.view.default, (dense(b, 12, s, 64), [12 * b, s, 64]), [dense(12 * b, s, 64)]),
    (aten.view.default, (dense(b, 1, s, 64), [b, s, 1, 8, 8]), [dense(b, s, 1, 8, 8)]),
    (aten.view.default, (dense(b, s, 12, 64), [b, s, 768]), [dense(b, s, 768)]),
    (aten.view.default, (dense(b, s, 12, 64), [b * s * 768]), [dense(b * s * 768)]),
    (aten.view.default, (dense(b * s * t), [b, s * t]), [dense(b, s * t)]),
    (aten.view.default, (dense(b, s * t), [b * s, t]), [dense(b * s, t)]),
    (aten.view.default, (dense(b, 2 * s), [2 * b, s]), [dense(2 * b, s)]),
    (aten.view.default, (dense(s * (t + 1), 8), [s, t + 1, 8]), [dense(s, t + 1, 8)]),
    (aten.view.default, (dense(s * t + s, 8), [s, t + 1, 8]), [dense(s, t + 1, 8)]),
    (aten.reshape.default, (dense(b, s, 4), [s, b, 4]), [dense(s, b, 4)]),
    (aten._unsafe_view.default, (dense(b * s, 64), [b, s, 64]), [dense(b, s, 64)]),
    (aten.expand.default, (dense(b, 1, s), [b, 4, s]), [dense(b, 4, s)]),
    (aten.expand.default, (dense(1, s), [b, s]), [dense(b, s)]),
    (aten.permute.default, (dense(b, s, 12, 64), [0, 2, 1, 3]), [dense(b, 12, s, 64)]),
    (aten.squeeze.dim, (dense(b, 1, s), 1), [dense(b, s)]),
    (aten.slice.Tensor, (dense(b, s, 8), 1, 0, 9223372036854775807), [dense(b, s, 8)]),
    (aten.slice.Tensor, (dense(b, s, 8), 1, 0, s - 1), [dense(b, s - 1, 8)]),
    (aten.cat.default, ([dense(b, s, 8), dense(b, t, 8)], 1), [dense(b, s + t, 8)]),
    (aten.repeat_interleave.self_int, (dense(b, 4, s), 3, 1), [dense(b, 12, s)]),
    (aten.full.default, ([b, s], 0.0), [dense(b, s)]),
    (aten.arange.start_step, (0, s, 1), [ints(s)]),
    (aten.tril.default, (dense(s, s),), [dense(s, s)]),
    (aten.add.Tensor, (dense(b, 1, s, 8), dense(t, 1, 8)), [dense(b, t, s, 8)]),
    (aten.mm.default, (dense(b * s, 64), dense(64, 32)), [dense(b * s, 32)]),
    (aten.addmm.default, (dense(32), dense(b * s, 64), dense(64, 32)), [dense(b * s, 32)]),
    (aten.linear.default, (dense(b, s, 64), dense(32, 64), dense(32)), [dense(b, s, 32)]),
    (aten.matmul.default, (dense(b, 4, s, 8), dense(b, 4, 8, t)), [dense(b, 4, s, t)]),
    (aten.convolution.default, (dense(b, 8, s, s), dense(16, 8, 3, 3), None, *conv), [dense(b, 16, s, s)]),
    (aten.scaled_dot_product_attention.default, (heads, heads, heads), [heads]),
    (aten.scaled_dot_product_attention.default, (heads, heads, heads, dense(b, 1, s, s)), [heads]),
    (aten._softmax.default, (dense(b, 4, s, t), -1, False), [dense(b, 4, s, t)]),
    (aten.native_layer_norm.default, (dense(b, s, 8), [8], dense(8), None, 1e-5), [dense(b, s, 8), *[dense(b, s, 1)] * 2]),
    (aten.native_group_norm.default, (dense(b, 6, s), None, None, b, 6, s, 2, 1e-5), [dense(b, 6, s), *[dense(b, 2)] * 2]),
    (aten.sum.dim_IntList, (dense(b, s, 8), [1]), [dense(b, 8)]),
    (aten.embedding.default, (dense(100, 8), ints(b, s)), [dense(b, s, 8)]),
    (aten.index.Tensor, (dense(b, s, 8), [None, ints(t)]), [dense(b, t, 8)]),
    (aten.gather.default, (dense(b, s), 1, ints(b, t)), [dense(b, t)]),
]


@pytest.mark.parametrize(("op", "args", "out"), CALLS, ids=lambda value: str(value)[:60] if not isinstance(value, list) else "")
def test_axes_in_symbols_are_those_in_numbers(op: Any, args: tuple[Any, ...], out: list[Spec]) -> None:
    symbolic = axes(op, args, {}, out)
    assert symbolic
    assert [at(axis) for axis in symbolic] == list(axes(op, at(args), {}, at(out)))


def test_merged_dims_flow_in_blocks_of_the_inner_ones() -> None:
    rows, features = axes(aten.view.default, (dense(b, s, 768), [b * s, 768]), {}, [dense(b * s, 768)])
    assert rows == Axis((Flow(0),), (Flow(0, s),), sizes=((1, 0),))
    assert features == Axis((Flow(2),), (Flow(1),), sizes=((1, 1),))
    batch, *_ = axes(aten.view.default, (dense(b * 12, s, 64), [b, 12, s, 64]), {}, [dense(b, 12, s, 64)])
    assert batch == Axis((Flow(0, 12),), (Flow(0),), sizes=((1, 0),))


def test_sizes_that_need_not_be_equal_are_not_taken_to_be() -> None:
    assert axes(aten.add.Tensor, (dense(s), dense(t)), {}, [dense(s)]) == ()


def test_a_quotient_is_whole_at_every_size_or_none() -> None:
    half: Any = FloorDiv(s, 2)
    assert quotient(64 * half, 64) == half
    assert quotient(s * s + s, s) == s + 1
    assert quotient(s * (s + 1), 2) is None
    assert quotient(s, t) is None
