"""Every axis that the table yields, tried out: parts that are run and joined give what the whole op gives."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch.utils._pytree import tree_map_only

from neaptide.axes import RULES, Axis, Flow
from neaptide.axes.parts import join, run_part
from tests.axes.cases import CASES, Case, as_list

aten = torch.ops.aten
COPIES = {"factories", "views", "slices", "indexing"}  # elements are moved, not computed


def extent(case: Case, axis: Axis) -> int:
    """How many units an axis has."""
    pairs = zip((*case.tensors, *case.whole), (*axis.inputs, *axis.outputs), strict=True)
    return next(tensor.shape[flow.dim] // flow.block for tensor, flow in pairs if isinstance(flow, Flow))


def partitions(units: int) -> Iterator[list[tuple[int, int]]]:
    """Unit by unit, and in two parts that are not alike."""
    yield list(itertools.pairwise(range(units + 1)))
    middle = units // 2 if units % 2 else units // 2 + 1
    if middle < units:
        yield [(0, middle), (middle, units)]


def assert_same(found: list[Any], whole: list[Any], exact: bool) -> None:
    for one, other in zip(found, whole, strict=True):
        if other is None:
            assert one is None
        elif exact:
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, check_stride=False)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parts_along_an_axis_make_the_whole(case: Case) -> None:
    for axis in case.axes:
        for parts in partitions(extent(case, axis)):
            results = [as_list(run_part(case.op, case.args, case.kwargs, axis, first, last)) for first, last in parts]
            joined = join(axis, results)
            if "empty" in str(case.op):
                assert [x.shape for x in joined] == [x.shape for x in case.whole]
            else:
                exact = case.origin in COPIES and all(isinstance(entry, Flow) for entry in axis.outputs)
                assert_same(joined, case.whole, exact)


def test_a_scaled_axis_is_cut_in_larger_units() -> None:
    for case in CASES:
        for axis in case.axes:
            if (units := extent(case, axis)) % 2 == 0:
                halves = [(0, units // 4), (units // 4, units // 2)] if units > 2 else [(0, 1)]
                wide = axis.scaled(2)
                results = [
                    as_list(run_part(case.op, case.args, case.kwargs, wide, *part)) for part in halves if part[0] < part[1]
                ]
                if "empty" not in str(case.op):
                    assert_same(join(wide, results), case.whole, exact=False)


def test_what_is_run_instead_can_be_called_from_a_graph() -> None:
    for part in {axis.instead for case in CASES for axis in case.axes if axis.instead is not None}:
        graph = fx.Graph()
        called = graph.call_function(part, (0, 1, graph.placeholder("x")))
        graph.output(called)
        graph.lint()
        assert called.target is part
        assert part.__name__ in fx.GraphModule({}, graph).code


def test_every_rule_is_tried() -> None:
    tried = {case.op for case in CASES} | {case.op.name() for case in CASES}
    assert set(RULES) - tried <= {"pointwise"}


def test_every_rule_yields_an_axis_in_some_case() -> None:
    yields = {key for case in CASES if case.axes for key in (case.op, case.op.name())}
    assert {key for key in RULES if key not in yields} == {"pointwise", aten.scalar_tensor.default}


def test_every_rule_takes_the_arguments_of_its_ops() -> None:
    for op in {case.op for case in CASES}:
        rule = RULES.get(op) or RULES.get(op.name()) or RULES["pointwise"]
        declared = op._schema.arguments
        for given in {len(declared), sum(not argument.has_default_value() for argument in declared)}:
            placed = [argument for argument in declared[:given] if not argument.kwarg_only]
            named = {argument.name: None for argument in declared if argument.kwarg_only}
            inspect.signature(rule).bind(*placed, **named, out=())


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor with its last dim outermost in memory."""
    order = list(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def test_parts_of_tensors_that_lie_otherwise_in_memory_make_the_whole_too() -> None:
    for case in CASES:
        other = Case(case.op, *tree_map_only(torch.Tensor, turned, (case.args, case.kwargs)))
        if "empty" in str(case.op) or not gives(other, case.whole):
            continue
        for axis in other.axes:
            parts = list(partitions(extent(other, axis)))[-1]
            results = [as_list(run_part(other.op, other.args, other.kwargs, axis, *part)) for part in parts]
            assert_same(join(axis, results), case.whole, exact=False)


def gives(case: Case, whole: list[Any]) -> bool:
    """Whether an op can be called on tensors that lie so: some views cannot, and some kernels read other elements."""
    try:
        assert_same(case.whole, whole, exact=False)
    except (AssertionError, RuntimeError):
        return False
    return True
