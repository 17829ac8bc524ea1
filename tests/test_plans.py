"""A plan says what will be done and taken, before it is done, and survives a trip through JSON."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import neaptide
from neaptide.dryrun import run_step
from neaptide.timeline import Timeline
from tests.workloads.models import make

pytestmark = pytest.mark.usefixtures("fresh_captures")


class Broken(nn.Module):
    """Three graphs: two breaks, and a sum between graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.parts[0](x).relu()
        torch._dynamo.graph_break()
        x = x + self.parts[1](x).relu()
        torch._dynamo.graph_break()
        return x + self.parts[2](x).relu()


def storages_only(plan: neaptide.Plan) -> int:
    """The peak without what ops allocate inside themselves: attention's blocks depend on sizes in ways no formula covers."""
    lives = tuple(life for life in plan.timeline.lives if life.kind != "workspace")
    return Timeline(plan.timeline.steps, lives).peak


def test_nothing_is_executed_and_nothing_changes() -> None:
    model, inputs = make("resnet", 0, train=True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    neaptide.plan(model, inputs, train=True, optimizer=torch.optim.AdamW(model.parameters()))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert "_compiled_call_impl" not in model.__dict__


@pytest.mark.parametrize("train", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_watched_plan_and_the_judge_of_programs_agree_to_the_byte(train: bool) -> None:
    model, inputs = make("bert", 1, train=train)
    planned = neaptide.plan(model, inputs, train=train)
    handle = neaptide.compile(model)
    for _ in range(2):
        run_step(model, inputs, train)
        model.zero_grad()
    run_step(model, inputs, train)
    model.zero_grad()
    assert storages_only(planned) == pytest.approx(storages_only(handle.plan), rel=2e-3)


def test_a_step_of_several_graphs_is_on_one_timeline() -> None:
    model, x = Broken(), torch.randn(512, 64)
    planned = neaptide.plan(model, x, train=True)
    assert len(planned.graphs) == 3
    size = x.nbytes
    plain = neaptide.estimate(model, x)
    assert planned.peak <= plain.peak + 2 * size
    handle = neaptide.compile(model)
    for _ in range(3):
        run_step(model, x)
        model.zero_grad()
    assert handle._session.ledger.saved == 0
    assert handle.plan.peak == pytest.approx(planned.peak, rel=0.15)


def test_a_plan_goes_to_json_and_back() -> None:
    planned = neaptide.plan(Broken(), torch.randn(16, 64))
    text = json.dumps(planned.to_json())
    assert neaptide.Plan.from_json(json.loads(text)) == planned


def test_a_plan_explains_itself() -> None:
    model, inputs = make("llama", 0, train=True)
    text = neaptide.plan(model, inputs, train=True).explain()
    assert "input_ids.shape[1]=16" in text
    assert "the peak is at" in text
    assert "parameter" in text


def test_a_budget_below_the_need_is_refused_before_anything_runs() -> None:
    with pytest.raises(neaptide.BudgetError, match="smallest reachable"):
        neaptide.plan(Broken(), torch.randn(512, 64), budget="100KB", train=True)


def test_an_unused_output_takes_no_gradient() -> None:
    """Logits beside a loss: nothing flows back from them, so nothing as large as they are is made for that."""
    model, inputs = make("gpt2", 2, train=True)
    planned = neaptide.plan(model, inputs, train=True)
    logits = inputs["input_ids"].numel() * model.config.vocab_size * 4  # type: ignore[union-attr, operator]
    tangents = [life for life in planned.timeline.lives if life.kind == "gradient" and life.bytes >= logits and not life.path]
    assert all("tangent" not in life.name for life in tangents)


def test_the_optimizers_own_step_is_in_the_plan() -> None:
    model, x = Broken(), torch.randn(8, 64)
    with_it = neaptide.plan(model, x, train=True, optimizer=torch.optim.AdamW(model.parameters()))
    without = neaptide.plan(model, x, train=True)
    weights = sum(p.nbytes for p in model.parameters())
    assert with_it.peak >= without.peak + 2 * weights


def test_a_model_that_cannot_be_captured_still_gets_a_plan_that_says_so() -> None:
    class Opaque(nn.Module):
        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu()

    planned = neaptide.plan(Opaque(), torch.randn(64, 64))
    assert planned.graphs == ()
    assert planned.peak > 0
    assert any("nothing could be captured" in note for note in planned.notes)
