"""What `compile` hands out: a handle on a model that is otherwise as it was."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import neaptide

pytestmark = pytest.mark.usefixtures("fresh_captures")


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))


def test_the_model_and_the_handle_both_run_compiled() -> None:
    model = small()
    handle = neaptide.compile(model)
    x = torch.randn(4, 8)
    assert torch.equal(model(x), handle(x))
    assert handle.stats.captures == 1
    assert handle.stats.calls == 2


def test_state_and_tree_are_the_same_while_it_works_and_after_release() -> None:
    model = small()
    before = (repr(model), list(model.state_dict()), dict(model.__dict__).keys())
    handle = neaptide.compile(model)
    model(torch.randn(4, 8))
    assert (repr(model), list(model.state_dict())) == before[:2]
    handle.release()
    handle.release()
    assert model.__dict__.keys() == before[2]
    calls = handle.stats.calls
    model(torch.randn(4, 8))
    assert handle.stats.calls == calls


def test_a_copy_of_a_compiled_model_is_a_plain_model() -> None:
    model = small()
    handle = neaptide.compile(model)
    x = torch.randn(4, 8)
    expected = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        calls = handle.stats.calls
        assert torch.equal(other(x), expected)
        assert handle.stats.calls == calls


def test_a_model_cannot_be_compiled_twice_at_once() -> None:
    model = small()
    handle = neaptide.compile(model)
    with pytest.raises(neaptide.InputError, match=r"call release\(\) on its handle first"):
        neaptide.compile(model)
    handle.release()
    neaptide.compile(model).release()


def test_a_budget_that_cannot_be_met_is_refused_with_the_figures() -> None:
    model = small()
    neaptide.compile(model, budget="4KB")
    with pytest.raises(neaptide.BudgetError, match=r"needs .*, budget .*smallest reachable.*held by.*Try budget=") as refused:
        model(torch.randn(64, 8))
    assert refused.value.limit == 4000 < refused.value.need == refused.value.smallest


def test_a_budget_that_is_just_enough_is_met() -> None:
    model = small()
    x = torch.randn(64, 8)
    need = neaptide.plan(model, x, train=True).peak
    handle = neaptide.compile(model, budget=need)
    handle.step(lambda: model(x).sum().backward())
    assert handle.plan.budget == need


@pytest.mark.parametrize(("argument", "said"), [(3, "not int"), ("model", "not str")])
def test_what_is_no_model_is_refused_in_one_line(argument: object, said: str) -> None:
    with pytest.raises(neaptide.InputError, match=said):
        neaptide.compile(argument)  # type: ignore[arg-type]


def test_a_model_that_free_sizes_break_is_captured_per_size_and_says_so() -> None:
    class Fussy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.repeat_interleave(torch.tensor([1] * int(x.shape[0])), dim=0)

    model = Fussy()
    handle = neaptide.compile(model)
    with torch.no_grad():
        for rows in (3, 4):
            x = torch.randn(rows, 2)
            assert torch.equal(model(x), x)
    assert handle.stats.captures >= 1


def test_another_budget_is_another_plan_of_the_same_capture() -> None:
    model, x = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8))), torch.randn(4096, 64)
    handle = neaptide.compile(model, budget="1GiB", offload=False)

    def peak() -> int:
        model.zero_grad()
        model(x).square().mean().backward()
        return handle.plan.graphs[0].peak

    loose = peak()
    handle.budget = "min"
    tight = peak()
    assert tight < loose
    handle.budget = "1GiB"
    assert peak() == loose
    assert handle.stats.captures == 1
    with pytest.raises(neaptide.InputError, match="6GiB"):
        handle.budget = "much"


def test_no_budget_cannot_become_one() -> None:
    handle = neaptide.compile(small())
    handle.budget = None
    with pytest.raises(neaptide.InputError, match="without a budget"):
        handle.budget = "1GiB"


class Loose(nn.Module):
    """Breaks in a loop, and around modules of torch's own: Dynamo captures nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            torch._dynamo.graph_break()
            x = layer(x)
        return x


def test_a_budget_that_does_not_bind_is_said_so_once() -> None:
    model = Loose()
    neaptide.compile(model, budget="1GiB")
    with pytest.warns(UserWarning, match="its budget does not bind"):
        model(torch.randn(3, 8))
    model(torch.randn(3, 8))  # a second warning would be an error
    neaptide.compile(Loose())(torch.randn(3, 8))
