"""What an argument of compiled code looks like, with sizes as Python source over the free ones, so that it can be sent.

In: a fake tensor or a size. Out: a `Look`; and back, a fake with sizes of whoever asks, numbers or symbols.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from neaptide.graph import expression
from neaptide.sizes import print_expression


@dataclass(frozen=True, slots=True)
class Look:
    """A tensor by its shape and strides, or a number, which is its `shape`."""

    shape: tuple[str, ...]
    stride: tuple[str, ...] = ()
    dtype: torch.dtype | None = None
    device: str = ""

    def fake(self, known: Mapping[str, Any], home: torch.Tensor | None = None) -> Any:
        """A number, or a tensor, of these sizes; in memory of its own, or from the beginning of `home`."""
        shape = numbers(self.shape, known)
        if self.dtype is None:
            return shape[0]
        stride = numbers(self.stride, known)
        if home is None:
            return torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device)
        return home.view(self.dtype).as_strided(shape, stride, 0)


def look(fake: Any, names: Mapping[Any, sympy.Symbol] | None = None) -> Look:
    """What stands for a value, its symbols under other `names`."""

    def source(size: Any) -> str:
        found = expression(size)
        if isinstance(found, int):
            return str(found)
        return print_expression(found.xreplace(names) if names else found)

    if not isinstance(fake, torch.Tensor):
        return Look((source(fake),))
    return Look(tuple(map(source, fake.shape)), tuple(map(source, fake.stride())), fake.dtype, str(fake.device))


def numbers(sources: tuple[str, ...], known: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sizes that were printed from expressions, by this process or by the one that it works for."""
    return tuple(eval(source, {"__builtins__": {}, "math": math, "min": min, "max": max}, dict(known)) for source in sources)
