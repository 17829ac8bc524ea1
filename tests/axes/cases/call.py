"""A call on real tensors, with the axes that the table yields for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from neaptide.accounting import as_specs
from neaptide.axes import RULES, Axis, axes
from neaptide.workspaces import Spec

_generator = torch.Generator().manual_seed(0)


@dataclass(frozen=True, eq=False)
class Case:
    """A call on real tensors."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        name = self.op.name().split("::")[-1]
        return f"{name}({', '.join(_shown(a) for a in (*self.args, *self.kwargs.values()))})"

    @cached_property
    def whole(self) -> list[Any]:
        return as_list(self.op(*self.args, **self.kwargs))

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        args, kwargs = as_specs(self.args, self.kwargs)
        return axes(self.op, args, kwargs, specs_of(self.whole))

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)]

    @property
    def origin(self) -> str:
        """The module that the op's rule is in."""
        rule = RULES.get(self.op) or RULES.get(self.op.name()) or RULES["pointwise"]
        return rule.__module__.rpartition(".")[-1]


def as_list(results: Any) -> list[Any]:
    """The results of an op, one after the other."""
    return list(results) if isinstance(results, (tuple, list)) else [results]


def specs_of(results: Sequence[Any]) -> list[Spec | None]:
    return list(as_specs(results, {})[0])


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "x".join(map(str, value.shape)) or "0-d"
    if isinstance(value, (list, tuple)):
        return f"[{' '.join(map(_shown, value))}]"
    return str(value)


def r(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_generator)


def n(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=_generator)


def b(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=_generator) > 0.4


def call(op: Any, *args: Any, **kwargs: Any) -> Case:
    return Case(op, args, kwargs)
