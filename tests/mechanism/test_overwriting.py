"""Inputs and buffers that change between forward and backward: recomputation must not read them as they are then."""

import pytest
import torch
from tests.mechanism.oracle import assert_same, total, train
from torch import nn

import neaptide

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo's, at graph breaks


class Shifted(nn.Module):
    """Eager saves `x + 1` and not `x`, so that a user may overwrite `x` after the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x + 1).tanh().exp()


def overwriting(model):
    x, seen = torch.randn(3, 8), []
    for _ in range(4):
        out = model(x)
        x.normal_()
        total(out).backward()
        seen.append(out)
    return seen


def test_an_input_that_the_user_overwrites_after_each_forward(both):
    both(Shifted, overwriting, fresh=True)


def test_an_input_that_is_a_part_of_something_larger_that_the_user_overwrites(both):
    def scenario(model):
        held, seen = torch.randn(9, 12), []
        for size in (3, 4, 5):
            out = model(held[:size, 2:10])
            held.normal_()
            total(out).backward()
            seen.append(out)
        return seen

    both(Shifted, scenario, fresh=True)


def change_input(model, x):
    x.normal_()


def change_bias(model, x):
    with torch.no_grad():
        model.inner.bias.add_(1)


@pytest.mark.parametrize("change", [change_input, change_bias])
def test_a_change_that_was_not_foreseen_is_told_and_never_wrong(rung, change):
    plain, model = Shifted(), Shifted()
    model.load_state_dict(plain.state_dict())
    handle = neaptide.compile(model)
    x = torch.randn(3, 8)
    assert_same(train(model, x), train(plain, x))
    for _ in range(3):
        given = x.clone(), x
        losses = [total(call(held)) for call, held in zip((plain, model), given, strict=True)]
        torch.manual_seed(1)
        change(plain, given[0])
        torch.manual_seed(1)
        change(model, given[1])
        losses[0].backward()
        told = ""
        try:
            losses[1].backward()
        except RuntimeError as error:
            told = str(error)
            for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                ours.grad = theirs.grad.clone()
        assert not told or "modified by an inplace operation" in told
        assert not told or rung != "nothing"
    assert_same([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
    handle.release()


def test_what_eager_refuses_is_refused(rung):
    def squared(x, w):
        return (x * w).exp()

    handle = neaptide.compile(squared)
    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    for call in (squared, handle):
        out = call(x, w)
        x.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
    handle.release()


def test_an_input_that_a_later_graph_overwrites(both):
    def two(x, state):
        h = torch.sin(x + state).exp()
        torch._dynamo.graph_break()
        state.mul_(0.5)
        return h.cos() * 2

    def scenario(call):
        state = torch.ones(3, 4)
        return [(train(call, torch.randn(3, 4, requires_grad=True), state), state.clone()) for _ in range(3)]

    both(lambda: two, scenario, captures=None, fresh=True)


def test_a_buffer_that_a_later_graph_overwrites(both):
    class Later(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.ones(8))

        def forward(self, x):
            h = torch.sin(x + self.state).exp()
            torch._dynamo.graph_break()
            self.state.mul_(0.5)
            return h.cos() * 2

    def scenario(model):
        return [train(model, torch.randn(3, 8, requires_grad=True)) for _ in range(3)]

    both(Later, scenario, captures=None, fresh=True)


def test_calls_under_way_while_their_inputs_change(both):
    def scenario(model):
        x, y = torch.randn(3, 8), torch.randn(3, 8)
        first, second = model(x), model(y)
        x.zero_()
        total(first).backward()
        third = model(x)
        y.zero_()
        total(second).backward()
        x.fill_(1)
        total(third).backward()
        return first, second, third

    both(Shifted, scenario, fresh=True)
