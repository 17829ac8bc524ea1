"""Ops that nobody listed stay whole; one that somebody lists does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from neaptide.accounting import as_specs
from neaptide.axes import RULES, Axis, Flow, along_input, along_output, axes, flows, is_listed
from neaptide.axes.parts import join, run_part
from neaptide.workspaces import Spec

aten = torch.ops.aten
MATRIX = Spec((4, 6), (6, 1), torch.float32)


@pytest.fixture
def scale_rows() -> Iterator[object]:
    @torch.library.custom_op("neaptide_tests::scale_rows", mutates_args=())
    def scale_rows(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return x * weights[:, None]

    yield torch.ops.neaptide_tests.scale_rows.default
    RULES.pop("neaptide_tests::scale_rows", None)


@pytest.mark.parametrize("op", [aten.nonzero.default, aten._fft_r2c.default, aten.linalg_inv_ex.default, "anything", len])
def test_an_op_that_nobody_listed_has_no_axes(op: object) -> None:
    assert not is_listed(op)
    assert axes(op, (MATRIX,), {}, [MATRIX]) == ()


def test_a_listed_op_has_those_that_its_rule_yields(scale_rows: object) -> None:
    x, weights = torch.rand(4, 6), torch.rand(4)
    args, _ = as_specs((x, weights), {})
    assert not is_listed(scale_rows)

    @flows("neaptide_tests::scale_rows")
    def rule(x: Spec, weights: Spec, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
        yield Axis((Flow(0), Flow(0)), (Flow(0),))
        yield Axis((Flow(1), None), (Flow(1),))

    assert is_listed(scale_rows)
    rows, columns = axes(scale_rows, args, {}, [MATRIX])
    for axis, middle, end in ((rows, 1, 4), (columns, 4, 6)):
        parts = [[run_part(scale_rows, (x, weights), {}, axis, *part)] for part in ((0, middle), (middle, end))]
        assert torch.equal(join(axis, parts)[0], x * weights[:, None])


def test_an_axis_along_which_tensors_disagree_is_left_out(scale_rows: object) -> None:
    @flows("neaptide_tests::scale_rows")
    def rule(x: Spec, weights: Spec, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
        yield Axis((Flow(1), Flow(0)), (Flow(1),))
        yield Axis((Flow(0), Flow(0)), (Flow(0),))

    (rows,) = axes(scale_rows, (MATRIX, Spec((4,), (1,), torch.float32)), {}, [MATRIX])
    assert rows.outputs == (Flow(0),)


@pytest.mark.parametrize("op", [aten.add_.Tensor, aten.add.out, aten.rrelu.default, aten.bernoulli.default])
def test_ops_that_write_or_draw_numbers_stay_whole(op: object) -> None:
    assert not is_listed(op)


def test_tensors_without_strides_stay_whole() -> None:
    sparse = Spec((4, 6), (), torch.float32)
    assert axes(aten.relu.default, (sparse,), {}, [sparse]) == ()


def test_keywords_are_matched_to_the_order_they_were_passed_in() -> None:
    x, row, column = MATRIX, Spec((6,), (1,), torch.float32), Spec((4, 1), (1, 1), torch.float32)
    plain = axes(aten.addcmul.default, (x, row, column), {}, [MATRIX])
    turned = axes(aten.addcmul.default, (x,), {"tensor2": column, "tensor1": row}, [MATRIX])
    assert [axis.inputs for axis in plain] == [(Flow(0), None, Flow(0)), (Flow(1), Flow(0), None)]
    assert [axis.inputs for axis in turned] == [(Flow(0), Flow(0), None), (Flow(1), None, Flow(0))]


def test_a_size_that_is_passed_by_name_cannot_be_put_in() -> None:
    assert len(axes(aten.full.default, ([4, 6], 1.0), {}, [MATRIX])) == 2
    assert axes(aten.full.default, (), {"size": [4, 6], "fill_value": 1.0}, [MATRIX]) == ()


def test_an_axis_is_found_from_one_of_its_tensors_in_its_units() -> None:
    merged = Spec((24,), (1,), torch.float32)
    found = axes(aten.view.default, (MATRIX, [24]), {}, [merged])
    assert along_input(found, 0, Flow(0)) == Axis((Flow(0),), (Flow(0, 6),), sizes=((1, 0),))
    assert along_output(found, 0, Flow(0, 12)) == Axis((Flow(0, 2),), (Flow(0, 12),), sizes=((1, 0),))
    assert along_output(found, 0, Flow(0)) is None
    assert along_input(found, 0, Flow(1)) is None
