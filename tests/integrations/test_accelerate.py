"""A plain loop over what accelerate prepared runs under `adapt`, before or after: the same weights, and nothing left behind."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

import neaptide
from tests.eager.models import Stack


def trained(first: Stack, precision: str, adapted: str) -> tuple[list[torch.Tensor], Stack, neaptide.Handle | None]:
    torch.manual_seed(0)
    AcceleratorState._reset_state(reset_partial_state=True)
    model = copy.deepcopy(first)
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    handle = neaptide.adapt(model, budget="min", optimizer=optimizer) if adapted == "before" else None
    model, optimizer = accelerator.prepare(model, optimizer)
    if adapted == "after":
        handle = neaptide.adapt(model, budget="min", optimizer=optimizer)
    for length in (16, 24, 16, 32):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.randint(0, 50, (2, length)))["loss"])
            optimizer.step()
            optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()], model, handle


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("adapted", ["before", "after"])
def test_a_loop_of_accelerate_ends_with_the_weights_of_a_plain_one(adapted: str, precision: str) -> None:
    first = Stack()
    expected, _, _ = trained(first, precision, "never")
    got, model, handle = trained(first, precision, adapted)
    assert handle is not None
    assert handle.stats.plans >= 1
    assert any(block.way != "keep" for block in handle.plan.blocks)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    handle.release()
    calls = handle.stats.calls
    model(torch.randint(0, 50, (2, 16)))["loss"].backward()
    assert handle.stats.calls == calls
