"""The loss over classes in parts: never whole, the same numbers, and every way to call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

import neaptide

CLASSES, WIDTH = 4000, 32
IDS = torch.randint(CLASSES, (3, 97), generator=torch.Generator().manual_seed(0))


def mean(scores: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), ids.flatten())


def some_ignored(scores: Tensor, ids: Tensor) -> Tensor:
    labels = F.pad(ids, (0, 1), value=-100)[:, 1:]
    return F.cross_entropy(scores.view(-1, CLASSES), labels.reshape(-1), ignore_index=-100)


def weighted(scores: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), ids.flatten(), weight=torch.arange(1.0, CLASSES + 1) / CLASSES)


def summed(scores: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), ids.flatten(), reduction="sum") / 100


def shifted(scores: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def row_by_row(scores: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), ids.flatten(), reduction="none").square().mean()


class Language(nn.Module):
    """Words to scores and a loss; the words' table and the head are one."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor], with_scores: bool = False, layers: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(CLASSES, WIDTH)
        self.inner = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1)) for _ in range(layers)))
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.head.weight = self.words.weight
        self.loss, self.with_scores = loss, with_scores

    def forward(self, ids: Tensor) -> Any:
        scores = self.head(self.inner(self.words(ids)))
        loss = self.loss(scores, ids)
        return (loss, scores) if self.with_scores else loss


def gradients(model: nn.Module, ids: Tensor, end: Callable[[Any], Tensor] = lambda loss: loss) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(1)
    end(model(ids)).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_close(got: list[Tensor], expected: list[Tensor], tolerance: float = 1e-5) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine - theirs).abs().max() <= tolerance * theirs.abs().max()


@pytest.mark.parametrize(
    "loss", [mean, some_ignored, *(pytest.param(loss, marks=pytest.mark.slow) for loss in (weighted, summed))]
)
def test_scores_are_never_whole_and_gradients_the_same(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    plain, model = Language(loss), Language(loss)
    handle = neaptide.compile(model, budget="min", offload=False)
    for ids in (IDS, IDS[:, :50].contiguous(), IDS[:1]) if loss is mean else (IDS,):
        assert_close(gradients(model, ids), gradients(plain, ids))
    ids = IDS.repeat(8, 4)
    assert_close(gradients(model, ids), gradients(plain, ids))
    plan = handle.plan
    assert len(plan.graphs[0].regions) == 2
    assert plan.graphs[0].peak < ids.numel() * CLASSES * 4
    assert any("in parts" in rewrite for rewrite in plan.graphs[0].rewrites)
    assert handle.stats.captures <= 2  # a batch of one may be captured apart
    model.zero_grad()
    before = neaptide.measure(lambda: None).peak  # what is alive already, here and in other tests
    taken = neaptide.measure(lambda: model(ids).backward()).peak - before
    model.zero_grad()
    assert taken <= 1.05 * (plan.peak - plan.parts["parameter"] - plan.parts["input"])


def test_what_is_before_it_is_sent_away() -> None:
    ids = IDS.repeat(8, 4)
    model, plain = Language(mean, layers=24), Language(mean, layers=24)
    handle = neaptide.compile(model, budget="min")
    assert_close(gradients(model, ids), gradients(plain, ids))
    graph = handle.plan.graphs[0]
    assert len(graph.regions) == 2
    assert graph.sent > 0


def test_exact_forbids_it() -> None:
    ids = IDS.repeat(8, 4)
    whole = neaptide.plan(Language(mean), ids, budget="min", train=True, exact=True, offload=False)
    parts = neaptide.plan(Language(mean), ids, budget="min", train=True, offload=False)
    assert not whole.graphs[0].regions
    assert whole.graphs[0].peak > ids.numel() * CLASSES * 4
    assert parts.peak < 0.5 * whole.peak


def test_scores_that_are_handed_out_are_whole_but_nothing_else_of_their_size() -> None:
    ids = IDS.repeat(8, 4)
    model, plain = Language(mean, with_scores=True), Language(mean, with_scores=True)
    handle = neaptide.compile(model, budget="min", offload=False)
    assert_close(gradients(model, ids, lambda out: out[0]), gradients(plain, ids, lambda out: out[0]))
    assert handle.plan.graphs[0].peak < 1.5 * ids.numel() * CLASSES * 4


def test_what_flows_back_otherwise_than_usual_is_right_too() -> None:
    model, plain = Language(mean, with_scores=True), Language(mean, with_scores=True)
    neaptide.compile(model, budget="min")
    ends: list[Callable[[Any], Tensor]] = [
        lambda out: out[0],
        lambda out: out[0] + out[1].square().mean(),
        lambda out: out[1].square().mean(),
        lambda out: out[0],
    ]
    for end in ends:
        assert_close(gradients(model, IDS, end), gradients(plain, IDS, end))


def test_a_cache_that_is_handed_out_has_no_gradient() -> None:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=WIDTH, vocab_size=CLASSES, bos_token_id=0, eos_token_id=0, use_cache=True)
    ids = IDS.repeat(4, 4)
    found = []
    for budget in (None, "min"):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config)
        handle = neaptide.compile(model, budget=budget, offload=False) if budget else None
        torch.manual_seed(1)
        for _ in range(2):
            out = model(input_ids=ids, labels=ids)
            out.loss.backward()
        assert out.past_key_values is not None
        assert handle is None or len(handle.plan.graphs[0].regions) >= 2
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    assert_close(*found)


@pytest.mark.parametrize("loss", [shifted, row_by_row])
def test_losses_that_are_not_made_in_parts_run_as_well(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    model, plain = Language(loss), Language(loss)
    handle = neaptide.compile(model, budget="min")
    assert_close(gradients(model, IDS), gradients(plain, IDS))
    assert handle.stats.captures == 1


def test_half_precision_runs_as_well() -> None:
    model, plain = Language(mean), Language(mean)
    neaptide.compile(model, budget="min")
    with torch.autocast("cpu", torch.bfloat16):
        got, expected = gradients(model, IDS), gradients(plain, IDS)
    assert_close(got, expected, 0.05)


def test_a_backward_twice_and_two_calls_under_way() -> None:
    model, plain = Language(mean), Language(mean)
    neaptide.compile(model, budget="min")
    for under_test in (plain, model):
        torch.manual_seed(3)
        under_test(IDS).backward()
        first, second = under_test(IDS), under_test(IDS[:, :60])
        first.backward(retain_graph=True)
        second.backward()
        first.backward()
    assert_close(
        [p.grad for p in model.parameters() if p.grad is not None], [p.grad for p in plain.parameters() if p.grad is not None]
    )
