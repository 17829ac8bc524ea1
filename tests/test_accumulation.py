"""Gradients that are added to those of an earlier backward: not there twice, and the same bits, whoever looks on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neaptide

WIDE = 512


def model(wide: int = 32, layers: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(wide, wide), nn.Tanh(), nn.Dropout(0.1)) for _ in range(layers)))


def batches(wide: int = 32) -> list[Tensor]:
    return [torch.randn(n, wide, generator=torch.Generator().manual_seed(n)) for n in (7, 7, 5, 7)]


def each_alone(model: nn.Module) -> None:
    for x in batches():
        model(x).square().mean().backward()


def two_before_one_backward(model: nn.Module) -> None:
    each_alone(model)
    first, second, *_ = batches()
    (model(first).square().mean() + model(second).sum()).backward()


def kept_for_a_second_backward(model: nn.Module) -> None:
    each_alone(model)
    loss = model(batches()[0]).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()


def only_some(model: nn.Module) -> None:
    each_alone(model)
    model(batches()[0]).square().mean().backward(inputs=[next(model.parameters())])


def asked_for(model: nn.Module) -> None:
    """Gradients that are handed out are added to nothing."""
    each_alone(model)
    first = next(model.parameters())
    (gradient,) = torch.autograd.grad(model(batches()[0]).square().mean(), [first])
    assert first.grad is not None
    first.grad += 2 * gradient


def one_has_none(model: nn.Module) -> None:
    each_alone(model)
    next(reversed(list(model.parameters()))).grad = None
    each_alone(model)


def clipped(model: nn.Module) -> None:
    """A hook sees each gradient before it is added."""
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    each_alone(model)


def counted(model: nn.Module) -> None:
    """A hook is called after each gradient was added."""
    seen: list[Tensor] = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))  # type: ignore[union-attr]
    each_alone(model)
    assert len(seen) == 4 * len(list(model.parameters()))


CASES = [each_alone, two_before_one_backward, kept_for_a_second_backward, only_some, asked_for, one_has_none, clipped, counted]


def gradients_after(run: Callable[[nn.Module], None], **options: Any) -> list[Tensor]:
    own = model()
    handle = neaptide.compile(own, **options) if options else None
    torch.manual_seed(1)
    run(own)
    if handle is not None:
        assert handle._session.ledger.saved == 0
        handle.release()
    return [p.grad for p in own.parameters() if p.grad is not None]


@pytest.mark.parametrize("run", CASES)
def test_the_same_bits_whoever_looks_on(run: Callable[[nn.Module], None]) -> None:
    expected = gradients_after(run)
    for budget in ("min", "1GB"):
        got = gradients_after(run, budget=budget)
        assert len(got) == len(expected)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("exact", [False, True])
def test_they_are_not_there_twice(exact: bool) -> None:
    own = model(WIDE, layers=8)
    handle = neaptide.compile(own, budget="min", exact=exact)
    x = batches(WIDE)[0]
    for _ in range(3):
        own(x).square().mean().backward()
    before = neaptide.measure(lambda: None).peak
    taken = neaptide.measure(lambda: own(x).square().mean().backward()).peak - before
    gradients = sum(p.nbytes for p in own.parameters())
    assert taken > 0.9 * gradients if exact else taken < 0.4 * gradients
    plan = handle.plan
    beyond = plan.peak - plan.parts["parameter"] - gradients - plan.parts["input"]
    assert abs(beyond - taken) < 0.1 * gradients
    handle.release()
