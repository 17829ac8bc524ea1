"""One model in training, plain and inside the smallest budget: whether its gradients and statistics are the same.

In: the name of an entry. Out: a row, as a dict of plain figures. The loss is the mean square of all that comes out; dropout
is on, with the same random numbers each time.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from benchmarks.zoo import ZOO, Entry
from benchmarks.zoo.trial import apart, beyond_lent, planned, reported, tensors
from torch import nn

import neaptide
from neaptide.budget import Budget

ROUNDED = 1e-4
"""Gradients smaller than this share of the largest are told apart on its scale."""


def try_training(name: str) -> dict[str, Any]:
    """A row about the training of one model; `failed` says what went wrong, and where."""
    return reported(name, _row)


def _row(name: str, row: dict[str, Any]) -> None:
    entry = ZOO[name]
    model = entry.model().train()
    start = copy.deepcopy(model.state_dict())
    expected = [gradients(entry, model, start, size) for size in entry.sizes]
    row["step"] = "min"
    handle = neaptide.compile(model, budget="min")
    row["apart"] = []
    plan = None
    for size, plain in zip(entry.sizes, expected, strict=True):
        row["apart"].append(differs(gradients(entry, model, start, size), plain))
        plan = plan or handle.plan
    assert plan is not None
    row |= {"least": _beyond(plan), **planned(handle, plan), "step": "no budget"}
    handle._session.replan(Budget())
    row["whole_apart"] = differs(gradients(entry, model, start, entry.sizes[0]), expected[0])
    row["whole"] = _beyond(handle.plan)
    row["saved"] = 1 - row["least"] / max(row["whole"], 1)


def differs(made: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """How far gradients are apart, where some of them are zero but for rounding (those of a key's bias)."""
    scales = [t.abs().max().item() for t in expected if t.is_floating_point() and t.numel()]
    return apart(made, expected, max(ROUNDED * max(scales, default=0.0), 1e-30))


def _beyond(plan: neaptide.Plan) -> int:
    """The peak of a plan less what the caller lends and the gradients."""
    return beyond_lent(plan) - plan.parts.get("gradient", 0)


def gradients(entry: Entry, model: nn.Module, start: dict[str, Any], size: Any) -> list[torch.Tensor]:
    """The gradients of a step, and the statistics after it."""
    model.load_state_dict(start)
    model.zero_grad(set_to_none=True)
    given = entry.given(size)
    torch.manual_seed(1)
    np.random.seed(1)  # which some models mask their inputs by
    made = [t for t in tensors(model(**given)) if t.is_floating_point() and t.requires_grad]
    loss = sum((t.float().square().mean() for t in made), torch.zeros(()))
    loss.backward()
    found = [p.grad if p.grad is not None else torch.zeros(0) for p in model.parameters()]
    return [*found, *(b.clone() for b in model.buffers())]
