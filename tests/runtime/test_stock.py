"""Programs made ahead: a new size runs one at once, and gets its own if it keeps coming."""

from __future__ import annotations

import copy

import pytest
import torch

import neaptide
from neaptide.runtime import choosing, stock
from tests.test_training_budget import Stack, X, ends


def test_a_size_that_keeps_coming_gets_a_program_of_its_own(monkeypatch: pytest.MonkeyPatch, fresh_captures: None) -> None:
    monkeypatch.setattr(choosing, "LARGE", 0)
    monkeypatch.setattr(stock, "AS_FAST", 0.5)  # whatever was made ahead is fast enough, and little was
    torch.manual_seed(0)
    model = Stack()
    plain = copy.deepcopy(model)
    top, bottom = ends()
    handle = neaptide.compile(model, budget=int(bottom + 0.3 * (top - bottom)))

    def step(length: int) -> int:
        """A step, after which gradients are those of the plain model; the number of the rung that it ran on."""
        part = X[:, :length].clone()
        for each in (plain, model):
            each.zero_grad()
            torch.manual_seed(length)
            each(part).backward()
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]
        model.zero_grad()
        (call,) = handle._session.steps.calls
        assert handle.plan.peak <= (handle.budget.limit or 0)
        return call.rung.number

    for _ in range(3):
        step(192)
    rungs = [step(180) for _ in range(stock.PATIENT)]
    plans = handle.stats.plans
    own = [step(180) for _ in range(3)]
    assert len(set(rungs)) == len(set(own)) == 1
    assert rungs[0] != own[0]
    assert handle.stats.plans == plans + 1
    assert handle.stats.captures == 1
    handle.release()
