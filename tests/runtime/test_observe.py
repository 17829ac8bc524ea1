"""Steps that take more than was planned are noticed, and what is missing is left free from then on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import neaptide
from neaptide.runtime import observe
from neaptide.runtime.observe import Observation

MB = 1 << 20


class Net(nn.Module):
    """Wide enough that a step takes tens of megabytes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def test_what_is_within_noise_is_as_planned() -> None:
    assert Observation((1,), 100 * MB, 110 * MB).excess == 0
    assert Observation((1,), 1000 * MB, 1019 * MB).excess == 0
    assert Observation((1,), 1000 * MB, 1040 * MB).excess == 40 * MB
    assert Observation((1,), 1000 * MB, 700 * MB).excess == 0


def test_new_sizes_are_compared_and_the_plan_is_about_right() -> None:
    model = Net()
    handle = neaptide.compile(model, budget="4GiB")
    for rows in (50_000, 200_000, 200_000, 400_000):
        model(torch.randn(rows, 64)).backward()
        model.zero_grad()
    model(torch.randn(8, 64)).backward()
    seen = [o for o in handle.stats.observed if o.dims == (400_000,)]
    assert len(seen) == 1
    assert seen[0].measured == pytest.approx(seen[0].planned, rel=0.05)
    handle.release()


def test_what_turns_out_to_be_missing_is_left_free(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Net(), torch.randn(100_000, 64)
    handle = neaptide.compile(model, budget="2GiB")
    for _ in range(3):
        model(x).backward()
        model.zero_grad()
    plenty = handle.plan.peak
    handle.budget = int(1.02 * plenty)
    real = observe.Watch.look

    def look(self: observe.Watch) -> None:
        real(self)
        self._taken = plenty + 64 * MB

    monkeypatch.setattr(observe.Watch, "look", look)
    for _ in range(3):
        model(x).backward()
        model.zero_grad()
    assert handle.stats.observed[-1].excess > 32 * MB
    assert handle.plan.peak <= 1.02 * plenty - 32 * MB
    handle.release()


def test_nothing_is_watched_where_the_mark_would_not_be_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "_can_be_watched", lambda device: False)
    model = Net()
    handle = neaptide.compile(model, budget="4GiB")
    for _ in range(2):
        model(torch.randn(100_000, 64)).backward()
    assert handle.stats.observed == []
    handle.release()
