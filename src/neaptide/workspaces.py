"""Hidden allocations: what an op takes beside its outputs while it runs.

In: an op and the specs of its arguments (ints or sympy expressions alike). Out: bytes, in the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor's shape as numbers or symbolic expressions, its strides, dtype and device type."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype
    device: str = "cpu"


def workspace(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], threads: int) -> Any:
    """Bytes that `target` allocates and frees inside itself, beside its outputs."""
    return 0


def is_listed(target: Any) -> bool:
    return False
