"""Which ops give the same bits in parts: those that treat the cut rows one by one, if enough of them come together.

Kernels add in an order that depends on how a call is shaped. Rows of a matrix product come out the same from 16 of them up;
columns need not, nor what is summed across the cut.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from neaptide.axes import Flow
from neaptide.search.chunk.net import Net
from neaptide.steps import Part

FIRST_OPERAND = {"mm": 0, "bmm": 0, "linear": 0, "matmul": 0, "addmm": 1, "baddbmm": 1, "convolution": 0}
SUMS = frozenset(["sum", "mean", "var", "var_mean", "std", "prod", "logsumexp", "cumsum", "norm", "linalg_vector_norm"])


def is_row_by_row(net: Net, part: Part) -> bool:
    """Whether a part of an op has the bits that the whole has there."""
    name, first = _name(net, part), FIRST_OPERAND.get(_name(net, part))
    if first is not None:
        operand, *others = part.axis.inputs[first:]
        return isinstance(operand, Flow) and (_is_batch(net, part) or not any(others) or name in ("bmm", "baddbmm"))
    if "scaled_dot_product" in name:
        return _is_batch(net, part)
    if name in SUMS:
        return _is_outside(net, part)
    return True


ENOUGH_ROWS = 16
"""With fewer rows a matrix product's kernel adds in another order."""


def rows_cut(net: Net, part: Part) -> Any:
    """How many rows of a matrix product are one unit of what is cut; None where its rows are not cut."""
    name = _name(net, part)
    first = FIRST_OPERAND.get(name)
    if name == "convolution" or (first is None and "scaled_dot_product" not in name):
        return None
    flow = part.axis.inputs[first or 0]
    return None if flow is None or _is_batch(net, part) else flow.block


def _name(net: Net, part: Part) -> str:
    return _named(net.graph.ops[part.op].target)


@cache
def _named(target: object) -> str:
    return target._schema.name.split("::")[-1] if isinstance(target, torch._ops.OpOverload) else ""


def _is_batch(net: Net, part: Part) -> bool:
    """Whether what is cut is a batch of products, each of which stays as it is."""
    first = FIRST_OPERAND.get(_name(net, part), 0)
    flow = part.axis.inputs[first]
    rank = len(net.graph.values[net.operands[part.op][first]].fake.shape)
    return flow is not None and flow.dim < (1 if _name(net, part) == "convolution" else rank - 2)


def _is_outside(net: Net, part: Part) -> bool:
    """Whether a sum runs over dims behind the cut one, so that each row has its own."""
    flow, result = part.axis.inputs[0], part.axis.outputs[0]
    return isinstance(flow, Flow) and isinstance(result, Flow) and flow.dim == 0 == result.dim
