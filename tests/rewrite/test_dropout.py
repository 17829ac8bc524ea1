"""Dropout in its parts: the same bits and the same numbers drawn, and masks are drawn once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import neaptide
from neaptide.steps import Rerun


class Net(nn.Module):
    """Dropout in two shapes. (Of what is not dense in memory, as after a transpose, PyTorch's own `aot_eager` fails.)"""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.up, self.down, self.chance = nn.Linear(32, 128), nn.Linear(128, 32), chance

    def forward(self, x: Tensor) -> Tensor:
        wide = F.dropout(F.gelu(self.up(x)), self.chance)
        return F.dropout(self.down(wide.flatten(0, 1)), self.chance).square().mean()


def trained(model: nn.Module, x: Tensor) -> tuple[list[Tensor], Tensor]:
    model.zero_grad()
    torch.manual_seed(3)
    model(x).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None], torch.get_rng_state()


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("given", [{}, {"budget": "min", "exact": True, "offload": False}])
def test_the_same_bits_and_the_same_numbers(chance: float, given: dict[str, Any], fresh_captures: None) -> None:
    torch.manual_seed(0)
    model, x = Net(chance), torch.randn(6, 10, 32)
    plain = copy.deepcopy(model)
    handle = neaptide.compile(model, **given)
    for _ in range(2):
        (ours, left), (theirs, expected) = trained(model, x), trained(plain, x)
        assert all(map(torch.equal, ours, theirs))
        assert torch.equal(left, expected)
    drawn = [op.label for op in handle._session.units[0].graph.ops if op.random]
    assert [label.split(" ")[0] for label in drawn] == (["bernoulli.p"] * 2 if 0 < chance < 1 else [])


def test_inside_a_budget_what_went_through_is_made_again_and_no_mask_is(fresh_captures: None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Dropout(0.1)) for _ in range(4)))
    x = torch.randn(4096, 64)
    handle = neaptide.compile(model, budget=1 << 40, offload=False)
    model(x).sum().backward()
    most = handle.plan.peak
    handle.budget = int(0.85 * most)
    for _ in range(2):
        model.zero_grad()
        model(x).sum().backward()
    (unit,) = handle._session.units
    steps = unit._ran[unit.last].usual.steps
    again = [unit.graph.ops[step.op] for step in steps if isinstance(step, Rerun)]
    assert again
    assert not any(op.random for op in again)
