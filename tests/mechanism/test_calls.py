"""Calls and captures: several under way, on different plans, backwards twice, and how often a model is captured."""

import pytest
import torch
from tests.mechanism.oracle import POINTS, assert_nothing_saved, assert_same, total, train
from torch import nn

import neaptide


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 8), nn.Tanh())


def test_interleaved_calls_each_keep_the_plan_they_began_with(both, forced):
    sizes = range(3, 3 + len(POINTS))
    forced.by_size = dict(zip(sizes, POINTS, strict=True))

    def scenario(model):
        seen = []
        for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 2, 0)):
            inputs = [torch.randn(n, 8, requires_grad=True) for n in sizes]
            losses = [total(model(x)) for x in inputs]
            for i in order:
                losses[i].backward()
            seen.append((losses, [x.grad for x in inputs]))
        return seen

    both(block, scenario)


def test_a_plan_that_changes_while_a_call_of_the_same_sizes_is_under_way(forced):
    torch.manual_seed(0)
    plain, model = block(), block()
    model.load_state_dict(plain.state_dict())
    handle = neaptide.compile(model)
    x = torch.randn(3, 8)
    for first, second in zip(POINTS, (*POINTS[1:], POINTS[0]), strict=True):
        losses = []
        for call in (plain, model):
            torch.manual_seed(2)
            forced.take(first, handle)
            early = total(call(x))
            forced.take(second, handle)
            late = total(call(x))
            early.backward()
            late.backward()
            losses.append((early.detach(), late.detach(), torch.get_rng_state()))
        assert_same(losses[1], losses[0])
    assert_same([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
    handle.release()


def test_backward_twice_through_a_retained_graph(both):
    def scenario(model):
        x = torch.randn(3, 8, requires_grad=True)
        loss = total(model(x))
        loss.backward(retain_graph=True)
        once = x.grad.clone()
        loss.backward(retain_graph=True)
        loss.backward()
        return once, x.grad

    both(block, scenario)


def test_a_graph_that_was_not_retained_is_spent_as_in_eager(rung):
    model = block()
    handle = neaptide.compile(model)
    loss = total(model(torch.randn(3, 8)))
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert_nothing_saved(handle)
    handle.release()


def test_double_backward_passes_on_the_error_of_aot_autograd(rung):
    model = block()
    handle = neaptide.compile(model)
    x = torch.randn(3, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(total(model(x)), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()
    handle.release()


def test_gradients_accumulate_over_micro_batches(both):
    def scenario(model):
        optimizer, seen = torch.optim.SGD(model.parameters(), 0.1), []
        for _ in range(2):
            for size in (3, 5, 4):
                total(model(torch.randn(size, 8))).backward()
            seen += [p.grad.clone() for p in model.parameters()]
            optimizer.step()
            optimizer.zero_grad()
            seen += [p.detach().clone() for p in model.parameters()]
        return seen

    both(block, scenario)


def test_gradients_of_some_parameters_only(both):
    def scenario(model):
        x = torch.randn(3, 8, requires_grad=True)
        out = model(x)
        return torch.autograd.grad(total(out), [x, model[0].weight])

    both(block, scenario)


def test_sizes_zero_and_one_add_one_capture_each(both):
    def scenario(model):
        return [train(model, torch.randn(n, 8, requires_grad=True)) for n in (4, 7, 1, 5, 0, 1, 3, 0)]

    both(lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh()), scenario, captures=3)


def test_two_sizes_that_happen_to_be_equal_do_not_add_a_capture(both):
    def attend(q, k):
        return (q @ k.transpose(1, 2)).softmax(-1) @ k

    def scenario(call):
        sizes = [(4, 4, 4), (4, 5, 4), (3, 4, 6), (5, 5, 3), (6, 3, 3)]
        return [
            train(call, torch.randn(b, t, 8, requires_grad=True), torch.randn(b, s, 8, requires_grad=True)) for b, t, s in sizes
        ]

    both(lambda: attend, scenario)


def test_training_and_evaluation_are_captured_apart_and_alternate(both):
    def scenario(model):
        seen = []
        for size in (3, 4, 5):
            seen.append(train(model.train(), torch.randn(size, 8, requires_grad=True)))
            with torch.no_grad():
                seen.append(model.eval()(torch.randn(size, 8)))
        return seen

    both(block, scenario, captures=2)


def test_several_outputs_are_used_in_turn_while_calls_are_under_way(both):
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.heads = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 2) for _ in range(3))

        def forward(self, x):
            h = self.body(x).tanh()
            return [head(h).sin() for head in self.heads]

    def scenario(model):
        first, second = model(torch.randn(3, 8)), model(torch.randn(4, 8))
        total(second[1]).backward()
        third = model(torch.randn(3, 8))
        total(first[:2]).backward()
        total([third[2], third[0]]).backward()
        return first, second, third

    both(Heads, scenario)
