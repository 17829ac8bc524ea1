"""Losses over classes: rows by themselves, and sums over them. A mean stays whole: it is a sum, divided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from neaptide.axes.rules import Axis, Flow, cuts, flows
from neaptide.workspaces import Spec

aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2


@flows(aten.nll_loss_forward.default)
def likelihood(
    x: Spec, target: Spec, weight: Spec | None, reduction: int, ignored: Any, *, out: tuple[Spec, ...]
) -> Iterator[Axis]:
    """Rows that are summed, and the weights of all; where nothing is reduced the kernel says no weight."""
    if reduction == SUM and len(x.shape) == 2:
        yield Axis(cuts((x, 0), (target, 0), (weight, None)), ("sum", "sum"))


@flows(aten.nll_loss_backward.default)
def likelihood_backward(
    grad: Spec, x: Spec, target: Spec, weight: Spec | None, reduction: int, ignored: Any, total: Spec, *, out: tuple[Spec, ...]
) -> Iterator[Axis]:
    """Rows, each with its part of one gradient and of the weights of all."""
    if len(x.shape) == 2:
        own = 0 if reduction == NONE else None
        yield Axis(cuts((grad, own), (x, 0), (target, 0), (weight, None), (total, None)), (Flow(0),))
