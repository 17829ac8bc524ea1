"""The form of the table: what a rule sees of a tensor, how it is registered, and the arithmetic it may use.

Sizes are ints or sympy expressions alike, so that a rule adds, multiplies and takes the largest, and never compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import sympy
import torch

from neaptide.sizes import equal

aten = torch.ops.aten
Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor's shape as numbers or symbolic expressions, its strides, dtype and device type.

    >>> Spec((8, 4), (4, 1), torch.float32).nbytes
    128
    """

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype
    device: str = "cpu"

    @property
    def nbytes(self) -> Any:
        return product(self.shape) * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        return _is_dense(self, range(len(self.shape)))

    @property
    def is_channels_last(self) -> bool:
        dims = len(self.shape)
        return dims in (4, 5) and not self.is_contiguous and _is_dense(self, (0, *range(2, dims), 1))

    @property
    def is_scattered(self) -> bool:
        """Whether BLAS cannot read the matrices: neither rows nor columns are dense and apart from each other.

        >>> Spec((16, 8, 8), (1, 128, 16), torch.float32).is_scattered, Spec((16, 8, 8), (64, 1, 8), torch.float32).is_scattered
        (True, False)
        """
        rows, columns = self.stride[-2:]
        return 1 not in self.shape[-2:] and not ((rows == 1 and columns != 0) or (columns == 1 and rows != 0))


def workspace(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], threads: int) -> Any:
    """Bytes that `target` allocates and frees inside itself, beside its outputs; 0 for an op that nobody listed.

    >>> turned = Spec((512, 1024), (1, 512), torch.float32)
    >>> workspace(aten._softmax.default, (turned, -1, False), {}, threads=2)
    2097152
    """
    rule = RULES.get(target)
    if rule is None or not all(spec.device == "cpu" for spec in _specs_in((*args, *kwargs.values()))):
        return 0
    return rule(*args, **kwargs, threads=threads)


def is_listed(target: Any) -> bool:
    """Whether there is a rule for an op, so that specs need not be made for the others.

    >>> is_listed(aten.convolution.default), is_listed(aten.relu.default)
    (True, False)
    """
    return target in RULES


def most(*values: Any) -> Any:
    """The largest of some numbers or expressions.

    >>> most(3, 5), most(sympy.Symbol("n"), 5)
    (5, Max(5, n))
    """
    if all(isinstance(value, int) for value in values):
        return max(values)
    return reduce(lambda a, b: a if a == b else sympy.Max(a, b, evaluate=False), map(sympy.sympify, values))


def product(values: Sequence[Any]) -> Any:
    """The product of numbers or expressions; 1 for none."""
    return reduce(lambda a, b: a * b, values, 1)


def of(*targets: Any) -> Callable[[Rule], Rule]:
    """Register a rule for some ops. It gets the op's own arguments and `threads`."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, rule))
        return rule

    return register


def _specs_in(values: Sequence[Any]) -> list[Spec]:
    nested = [item for value in values if isinstance(value, (list, tuple)) for item in value]
    return [value for value in (*values, *nested) if isinstance(value, Spec)]


def _is_dense(spec: Spec, order: Sequence[int]) -> bool:
    expected: Any = 1
    for dim in reversed(order):
        if spec.shape[dim] == 1:
            continue
        if not equal(spec.stride[dim], expected):
            return False
        expected = expected * spec.shape[dim]
    return True


def merges(spec: Spec, dims: int) -> bool:
    """Whether the first `dims` dims can be made one without a copy.

    >>> merges(Spec((2, 3, 4, 5), (60, 20, 1, 4), torch.float32), 2), merges(Spec((2, 3, 4), (4, 8, 1), torch.float32), 2)
    (True, False)
    """
    kept = [dim for dim in range(dims) if spec.shape[dim] != 1]
    return all(equal(spec.stride[a], spec.stride[b] * spec.shape[b]) for a, b in pairwise(kept))


def copy_bytes(spec: Spec | None) -> Any:
    """What making a tensor contiguous takes."""
    return 0 if spec is None or spec.is_contiguous else spec.nbytes
