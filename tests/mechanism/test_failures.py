"""Forwards and backwards that fail leave nothing behind, and what cannot be supported is refused."""

from contextlib import contextmanager

import pytest
import torch
from tests.mechanism.oracle import POINTS, assert_nothing_saved, assert_same, total, train
from torch import nn

import neaptide
from neaptide.errors import CaptureError

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # compiled autograd's own


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Tanh())


class Trouble(Exception):
    """What the op below raises when it is told to."""


TROUBLE = {"forward": False, "backward": False}


@torch.library.custom_op("neaptide_tests::fragile", mutates_args=())
def fragile(x: torch.Tensor) -> torch.Tensor:
    if TROUBLE["forward"]:
        raise Trouble("forward")
    return x.clone()


@torch.library.custom_op("neaptide_tests::fragile_back", mutates_args=())
def fragile_back(x: torch.Tensor) -> torch.Tensor:
    if TROUBLE["backward"]:
        raise Trouble("backward")
    return x.clone()


fragile.register_fake(torch.empty_like)
fragile_back.register_fake(torch.empty_like)
fragile.register_autograd(lambda ctx, grad: fragile_back(grad))


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = block(), nn.BatchNorm1d(8), block()

    def forward(self, x):
        return self.last(fragile(self.norm(self.first(x))))


@contextmanager
def trouble(where):
    TROUBLE[where] = True
    try:
        with pytest.raises(Trouble, match=where):
            yield
    finally:
        TROUBLE[where] = False


def pair():
    torch.manual_seed(0)
    plain, model = Fragile(), Fragile()
    model.load_state_dict(plain.state_dict())
    return plain, model, neaptide.compile(model)


def state_of(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()], [b.clone() for b in model.buffers()]


def test_a_forward_that_fails_changes_nothing_and_can_be_tried_again(forced):
    plain, model, handle = pair()
    x = torch.randn(3, 8)
    for name in (*POINTS, *POINTS):
        forced.take(name, handle)
        before, random = state_of(model), torch.get_rng_state()
        with trouble("forward"):
            model(x)
        assert_same(state_of(model), before)
        assert_nothing_saved(handle)
        seen = []
        for call in (plain, model):
            torch.set_rng_state(random)
            seen.append((train(call, x), torch.get_rng_state(), state_of(call)))
        assert_same(seen[1], seen[0])
    handle.release()


def test_a_backward_that_fails_leaves_gradients_alone_and_the_step_can_be_done_again(forced):
    plain, model, handle = pair()
    x = torch.randn(3, 8)
    for name in (*POINTS, *POINTS):
        forced.take(name, handle)
        plain.zero_grad()
        model.zero_grad()
        (gradients, buffers), random = state_of(model), torch.get_rng_state()
        loss = total(model(x))
        during = torch.get_rng_state()
        with trouble("backward"):
            loss.backward()
        assert_same(state_of(model)[0], gradients)
        assert_same(torch.get_rng_state(), during)
        del loss
        assert_nothing_saved(handle)
        for buffer, old in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(old)
        seen = []
        for call in (plain, model):
            torch.set_rng_state(random)
            seen.append((train(call, x), torch.get_rng_state(), state_of(call)))
        assert_same(seen[1], seen[0])
    handle.release()


def test_compiled_autograd_is_refused():
    model = block()
    handle = neaptide.compile(model)
    with torch._dynamo.config.patch(compiled_autograd=True), pytest.raises(CaptureError, match="compiled autograd"):
        model(torch.randn(3, 8))
    handle.release()


def test_compiled_autograd_that_is_turned_on_after_the_capture_is_refused(rung):
    plain, model = block(), block()
    model.load_state_dict(plain.state_dict())
    handle = neaptide.compile(model)
    x = torch.randn(3, 8)
    for call in (plain, model):
        torch.manual_seed(1)
        train(call, x)
    loss = total(model(x))
    compiler = torch.compile(backend="eager")
    with torch._dynamo.compiled_autograd._enable(compiler), pytest.raises(CaptureError, match="compiled autograd"):
        loss.backward()
    assert_same([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
    handle.release()
