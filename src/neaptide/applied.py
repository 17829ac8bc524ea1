"""A method turned on for good, behind the same `Handle` as `compile` and `adapt`.

In: a model, a method, what was predicted of it. Out: what a `Handle` drives, until it is released.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from neaptide.budget import Budget
from neaptide.errors import InputError
from neaptide.methods import Method
from neaptide.plans import Plan
from neaptide.timeline import Timeline


@dataclass(slots=True)
class AppliedStats:
    """How often the model was called."""

    calls: int = 0


class Applied:
    """The engine behind the handle of a method."""

    def __init__(
        self, model: nn.Module, method: Method, optimizer: torch.optim.Optimizer | None, budget: Budget, line: Timeline | None
    ) -> None:
        self.model, self.budget, self._method, self._line = model, budget, method, line or Timeline((), ())
        self.stats = AppliedStats()
        self._stack = ExitStack()
        self._stack.enter_context(method.around([model], optimizer))

    @property
    def session(self) -> Applied:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.stats.calls += 1
        return self.model(*args, **kwargs)

    def __repr__(self) -> str:
        return self._method.name

    def plan(self) -> Plan:
        """What the step was predicted to take."""
        return Plan(self.budget.limit, (), self._line, (f"{self._method.name}: {self._method.note}",))

    def begin_step(self) -> None:
        """Every step is like the last."""

    def tighten(self) -> bool:
        """There is nothing tighter: a method is on or off."""
        return False

    def replan(self, budget: Budget) -> None:
        """A method knows no budget."""
        if budget != self.budget:
            raise InputError(f"{self._method.name} is on or off: release it and advise anew for another budget")

    def wait(self, seconds: float | None) -> bool:
        """Nothing is compiled."""
        return True

    def release(self) -> None:
        """Turn it off."""
        self._stack.close()
