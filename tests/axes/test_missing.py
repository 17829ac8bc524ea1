"""What probing finds and the table does not have: each such cut is listed here, with why it is left out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from neaptide.axes import Flow
from tests.axes.cases import CASES, Case, as_list

aten = torch.ops.aten
Cut = tuple[int | None, ...]
FEATURES = "the scores would be made again for each part of the values' features"
PLANE = "parts of a plane flow only where windows do not overlap"
IDEMPOTENT = "a coincidence of the op's own: what is written twice is written once"
LEFT_OUT: dict[Any, dict[Cut, str]] = {
    aten.bucketize.Tensor: {(None, 0): "counts could be added over parts of the boundaries, which are few"},
    aten.isin.Tensor_Tensor: {(None, 0): "parts of the set could be combined, which is small"},
    aten.repeat_interleave.self_int: {(0,): "without a dim it flattens"},
    aten.convolution.default: {(2, None, None): PLANE, (3, None, None): PLANE, (2, None): PLANE, (3, None): PLANE},
    aten.conv2d.default: {(0, 1): "images without a batch are rare", (None, 0): "images without a batch are rare"},
    aten.upsample_nearest1d.vec: {(2,): PLANE},
    aten.upsample_nearest2d.vec: {(2,): PLANE, (3,): PLANE},
    aten._upsample_nearest_exact2d.vec: {(2,): PLANE, (3,): PLANE},
    aten.upsample_nearest3d.vec: {(2,): PLANE, (3,): PLANE, (4,): PLANE},
    aten.scaled_dot_product_attention.default: {(None, None, 2): FEATURES, (None, None, 3): FEATURES},
    aten._scaled_dot_product_attention_math.default: {(None, None, 3): FEATURES},
    aten.any.dims: {(0,): "an empty list of dims reduces none", (1,): "an empty list of dims reduces none"},
    aten.scatter.value: {(None, 0): IDEMPOTENT},
    aten.scatter_reduce.two: {(None, 1, 1): IDEMPOTENT},
    aten.index.Tensor: {(1, None): "sizes depend on what a mask holds", (0, 0): "sizes depend on what a mask holds"},
}


def is_robust(case: Case) -> bool:
    """Whether a kernel checks its arguments: others crash on tensors that do not belong together."""
    return not any(part in str(case.op) for part in ("backward", "flash", "native", "_batch_norm", "empty"))


def candidates(case: Case) -> Iterator[tuple[Cut, int]]:
    """Dims of one size, at most one of each tensor, and that size."""
    choices = [(None, *range(tensor.dim())) for tensor in case.tensors]
    if math.prod(map(len, choices)) > 130:
        return
    for cut in itertools.product(*choices):
        sizes = {tensor.shape[dim] for tensor, dim in zip(case.tensors, cut, strict=True) if dim is not None}
        if len(sizes) == 1 and (size := sizes.pop()) > 1:
            yield cut, size


def run(case: Case, cut: Cut, first: int, last: int) -> list[Any]:
    dims = iter(cut)

    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        dim = next(dims)
        return tensor if dim is None else tensor.narrow(dim, first, last - first)

    args, kwargs = tree_map_only(torch.Tensor, narrow, (case.args, case.kwargs))
    return as_list(case.op(*args, **kwargs))


def is_close(one: Any, other: Any) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)


def combines(pieces: list[Any], whole: Any) -> bool | None:
    """Whether some way of joining pieces gives the whole; None where each of them is the whole."""
    if whole is None or all(is_close(piece, whole) for piece in pieces):
        return None
    joined = (torch.cat(pieces, dim) for dim in range(whole.dim()) if _fit(pieces, whole, dim))
    if any(is_close(one, whole) for one in joined):
        return True
    a, b = pieces
    if a.shape != b.shape or a.shape != whole.shape or a.is_complex():
        return False
    return any(is_close(combine(a, b), whole) for combine in (torch.add, torch.maximum, torch.minimum))


def _fit(pieces: list[Any], whole: Any, dim: int) -> bool:
    if any(piece.dim() != whole.dim() for piece in pieces):
        return False
    return all(
        sum(piece.shape[d] for piece in pieces) == whole.shape[d]
        if d == dim
        else all(p.shape[d] == whole.shape[d] for p in pieces)
        for d in range(whole.dim())
    )


def commutes(case: Case, cut: Cut, size: int) -> bool:
    for middle in {1, size // 2}:
        try:
            first, second = run(case, cut, 0, middle), run(case, cut, middle, size)
        except (RuntimeError, IndexError, ValueError, TypeError):
            return False
        if not len(first) == len(second) == len(case.whole):
            return False
        found = [combines(list(pieces), whole) for *pieces, whole in zip(first, second, case.whole, strict=True)]
        if False in found or True not in found:
            return False
    return True


def listed(case: Case) -> set[Cut]:
    return {tuple(flow.dim if isinstance(flow, Flow) else None for flow in axis.inputs) for axis in case.axes}


def test_what_probing_finds_is_in_the_table_or_left_out_for_a_reason() -> None:
    missing: dict[Any, set[Cut]] = {}
    for case in filter(is_robust, CASES):
        known = listed(case)
        found = {cut for cut, size in candidates(case) if cut not in known and commutes(case, cut, size)}
        if found:
            missing.setdefault(case.op, set()).update(found)
    assert missing == {op: set(cuts) for op, cuts in LEFT_OUT.items()}
