"""Real models under `compile`: close to eager at every size, bit for bit `aot_eager` at the largest, captured once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import neaptide
from neaptide.dryrun import loss_of
from neaptide.twins import split_inputs
from tests.workloads.models import FACTORIES, make

pytestmark = pytest.mark.usefixtures("fresh_captures")

QUICK = ("gpt2", "resnet")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in sorted(FACTORIES)]
APART = (False, False, True)
"""Which of the three sizes `aot_eager`, which captures each apart, is asked for: the largest."""


def sized(name: str, train: bool) -> tuple[nn.Module, list[Any]]:
    """One model and inputs of three sizes."""
    return make(name, 0, train=train)[0], [make(name, size, train=train)[1] for size in range(3)]


def outputs(call: Callable[..., Any], inputs: Any) -> list[torch.Tensor]:
    args, kwargs = split_inputs(inputs)
    torch.manual_seed(5)
    with torch.no_grad():
        return [t for t in tree_leaves(_plain(call(*args, **kwargs))) if isinstance(t, torch.Tensor)]


def step(model: nn.Module, call: Callable[..., Any], inputs: Any) -> dict[str, torch.Tensor]:
    """Gradients and buffers after one step from the same start, with dropout on."""
    args, kwargs = split_inputs(inputs)
    model.zero_grad()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    torch.manual_seed(5)
    output = call(*args, **kwargs)
    loss_of(output).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    found |= {name: buffer.clone() for name, buffer in model.named_buffers()}
    found["loss"] = loss_of(output).detach()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
    return found


def captures(sizes: list[Any]) -> int:
    """One, and one more where a size of 1 is among them, which PyTorch always captures apart."""
    shapes = [t.shape for inputs in sizes for t in tree_leaves(split_inputs(inputs)) if isinstance(t, torch.Tensor)]
    return 1 + any(1 in shape for shape in shapes)


def _plain(output: Any) -> Any:
    return dict(output) if isinstance(output, dict) else output


@pytest.mark.parametrize("name", NAMES)
def test_inference_is_that_of_eager_at_three_sizes_with_one_capture_and_of_aot_eager_to_the_bit(name: str) -> None:
    model, sizes = sized(name, train=False)
    reference = torch.compile(model, backend="aot_eager", dynamic=False)
    expected = [
        (outputs(reference, inputs) if apart else None, outputs(model, inputs))
        for inputs, apart in zip(sizes, APART, strict=True)
    ]
    keys, printed = list(model.state_dict()), repr(model)
    handle = neaptide.compile(model)
    for inputs, (same, close) in zip(sizes, expected, strict=True):
        got = outputs(model, inputs)
        assert same is None or all(torch.equal(a, b) for a, b in zip(got, same, strict=True))
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(got, close, strict=True))
    assert handle.stats.captures == captures(sizes)
    assert (list(model.state_dict()), repr(model)) == (keys, printed)
    handle.release()
    assert "_compiled_call_impl" not in model.__dict__


@pytest.mark.parametrize("name", NAMES)
def test_training_is_that_of_eager_at_three_sizes_with_one_capture_and_of_aot_eager_to_the_bit(name: str) -> None:
    model, sizes = sized(name, train=True)
    reference = torch.compile(model, backend="aot_eager", dynamic=False)
    expected = [
        (step(model, reference, inputs) if apart else {}, step(model, model, inputs))
        for inputs, apart in zip(sizes, APART, strict=True)
    ]
    keys, printed = list(model.state_dict()), repr(model)
    handle = neaptide.compile(model)
    for _ in range(2):  # the second time round every input is known to stay as it is
        for inputs, (same, close) in zip(sizes, expected, strict=True):
            got = step(model, model, inputs)
            assert got.keys() >= close.keys()
            assert [n for n in same if not torch.equal(got[n], same[n])] == []
            assert [n for n in close if not torch.allclose(got[n], close[n], rtol=1e-3, atol=1e-4)] == []
    assert handle.stats.captures == captures(sizes)
    assert (list(model.state_dict()), repr(model)) == (keys, printed)
    handle.release()
