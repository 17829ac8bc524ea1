"""Every op that PyTorch tags as pointwise is so, along every dim."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from neaptide.axes import Flow, is_listed
from neaptide.axes.parts import join, run_part
from tests.axes.cases import Case, as_list

NUMBERS = {"number": 2, "int": 2, "float": 0.5, "bool": False}
SHAPES = ([(3, 5), (5,), (3, 1)], [(3, 5)] * 3)
DTYPES = (torch.float32, torch.int64, torch.bool)


def tagged() -> Iterator[Any]:
    """The pointwise ops that the table takes on their tag's word."""
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if name.startswith("aten::") and hasattr(torch.ops.aten, packet):
            op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
            if op is not None and torch.Tag.pointwise in op.tags and is_listed(op):
                yield op


def calls(op: Any) -> Iterator[Case]:
    """Calls of some types, with operands that are broadcast to each other and with equal ones: those that the op takes."""
    for dtype, shapes in itertools.product(DTYPES, SHAPES):
        case = call_with(op, [(4 * torch.rand(shape)).to(dtype) for shape in shapes])
        try:
            case.whole  # noqa: B018
        except (RuntimeError, NotImplementedError):
            continue
        yield case


def call_with(op: Any, tensors: list[torch.Tensor]) -> Case:
    args, kwargs, given = [], {}, iter(tensors)
    for declared in op._schema.arguments:
        kind = str(declared.type).removeprefix("Optional[").removesuffix("]")
        if declared.has_default_value() and kind not in ("Tensor", "number"):
            continue
        value = next(given) if kind == "Tensor" else NUMBERS.get(kind, "floor")
        if declared.kwarg_only:
            kwargs[declared.name] = value
        else:
            args.append(value)
    return Case(op, tuple(args), kwargs)


@pytest.mark.filterwarnings("ignore")
def test_every_tagged_op_is_pointwise() -> None:
    for op in tagged():
        tried = list(calls(op))
        assert tried, op
        for case in tried:
            if not isinstance(case.whole[0], torch.Tensor):
                assert case.axes == ()
                continue
            assert [axis.outputs[0] for axis in case.axes] == [Flow(dim) for dim in range(case.whole[0].dim())], case
            for axis, size in zip(case.axes, case.whole[0].shape, strict=True):
                parts = [as_list(run_part(op, case.args, case.kwargs, axis, i, i + 1)) for i in range(size)]
                for one, other in zip(join(axis, parts), case.whole, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True, msg=str(case))
