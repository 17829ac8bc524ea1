"""Under every budget the gradients, buffers and random numbers are those of the plain model, bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import neaptide
from neaptide.dryrun import loss_of
from neaptide.eager.strengths import AWAY, FULL, KEEP, SELECTIVE, Way
from tests.eager.models import Block, Expert, Odd, Pictures, Rows, Stack


def ids(rows: int, length: int) -> Tensor:
    return torch.randint(0, 50, (rows, length))


CASES: dict[str, tuple[Any, Any]] = {
    "stack": (lambda: Stack(), lambda: (ids(3, 40),)),
    "masked": (lambda: Stack(), lambda: (ids(3, 40), torch.arange(40).expand(3, 40) < 30)),
    "shared": (lambda: Stack(shared=True), lambda: (ids(3, 40),)),
    "pictures": (lambda: Pictures(), lambda: (torch.randn(2, 3, 16, 16),)),
    "experts": (lambda: Rows(Expert), lambda: (torch.randn(64, 32),)),
    "odd": (lambda: Rows(Odd), lambda: (torch.randn(64, 32),)),
}


def trained(model: nn.Module, batches: list[Any]) -> list[Tensor]:
    torch.manual_seed(7)
    for batch in batches:
        loss_of(model(*batch)).backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return [*found, *model.buffers(), torch.get_rng_state()]


@pytest.mark.parametrize("budget", ["min", "1GiB"])
@pytest.mark.parametrize("case", CASES)
def test_a_budget_changes_no_bit(case: str, budget: str) -> None:
    make, batch = CASES[case]
    model, batches = make(), [batch() for _ in range(3)]
    plain = copy.deepcopy(model)
    expected = trained(plain, batches)
    handle = neaptide.adapt(model, budget=budget)
    got = trained(model, batches)
    assert all(map(torch.equal, got, expected))
    assert handle.stats.calls == 3
    handle.release()


@pytest.mark.parametrize("way", [KEEP, FULL, SELECTIVE, AWAY, Way("parts", ("attention",)), Way("parts", ("attention", "mlp"))])
def test_every_strength_changes_no_bit(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neaptide.away.SMALL", 1)
    model, batches = Stack(), [(ids(3, 40),) for _ in range(2)]
    expected = trained(copy.deepcopy(model), batches)
    handle = neaptide.adapt(model, budget="1GiB")
    chosen = handle._session.planner._chosen

    def forced(*given: Any) -> Any:
        choice = chosen(*given)
        return replace(choice, ways=(way,) * len(choice.ways))

    monkeypatch.setattr(handle._session.planner, "_chosen", forced)
    assert all(map(torch.equal, trained(model, batches), expected))


def test_autocast_is_replayed() -> None:
    model = Stack()
    plain = copy.deepcopy(model)
    handle = neaptide.adapt(model, budget="min")
    results = []
    for one in (plain, model):
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16):
            loss = one(torch.arange(40).view(1, 40) % 50)["loss"]
        loss.backward()
        results.append([p.grad for p in one.parameters()])
    assert all(map(torch.equal, *results))
    assert any(block.way != "keep" for block in handle.plan.blocks)


def test_evaluation_and_no_grad_run_plain() -> None:
    model = Stack()
    handle = neaptide.adapt(model, budget="min")
    batch = ids(2, 8)
    with torch.no_grad():
        model(batch)
    model.eval()
    model(batch)["loss"].backward()
    assert handle.stats.calls == 0


def test_a_checkpoint_of_the_users_around_a_block_goes_on_working() -> None:
    class Outer(Stack):
        def forward(self, given: Tensor, mask: Tensor | None = None) -> Any:
            x = self.words(given)
            for block in self.blocks:
                x = checkpoint(lambda y, b=block: b(y)["x"], x, use_reentrant=False)
            return self.head(x).square().mean()

    model = Outer()
    plain = copy.deepcopy(model)
    neaptide.adapt(model, budget="min")
    batches = [(ids(3, 24),) for _ in range(2)]
    assert all(map(torch.equal, trained(model, batches), trained(plain, batches)))


def test_hooks_of_others_are_run_once_a_call() -> None:
    model = Stack()
    calls: list[str] = []
    model.blocks[1].register_forward_hook(lambda *_: calls.append("hook"))
    neaptide.adapt(model, budget="min", loss=lambda out: out["loss"])
    model(ids(2, 8))["loss"].backward()
    calls.clear()
    model(ids(2, 8))["loss"].backward()
    assert calls == ["hook"]


def test_blocks_can_be_named_or_typed() -> None:
    model = Stack()
    handle = neaptide.adapt(model, budget="min", blocks=["blocks.1"])
    model(ids(2, 8))["loss"].backward()
    assert [block.name for block in handle.plan.blocks] == ["blocks.1"]
    handle.release()
    handle = neaptide.adapt(model, budget="min", blocks=[Block])
    model(ids(2, 8))["loss"].backward()
    assert len(handle.plan.blocks) == 4
    handle.release()
    with pytest.raises(neaptide.InputError, match="no blocks"):
        neaptide.adapt(nn.Linear(2, 2), budget="min")


def test_selective_checkpointing_leaves_statistics_alone() -> None:
    model, batches = Pictures(), [(torch.randn(2, 3, 16, 16),) for _ in range(2)]
    expected = trained(copy.deepcopy(model), batches)
    handle = neaptide.adapt(model, budget="1GiB", selective=True)
    chosen = handle._session.planner._chosen
    handle._session.planner._chosen = lambda *given: replace(chosen(*given), ways=(SELECTIVE,) * 4)
    assert all(map(torch.equal, trained(model, batches), expected))
