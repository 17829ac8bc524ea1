"""What a block widens, in parts in the backward: less memory, the same gradients, at every size and in every way to call it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

import neaptide
from neaptide.emit import emit_backward
from neaptide.runtime.training import Training
from neaptide.runtime.version import Crossing

WIDTH, WORDS = 64, 300


class Block(nn.Module):
    """Attention written out and an MLP, both with dropout inside."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        x = x + F.dropout((q @ k.transpose(-1, -2) / 8).softmax(-1), self.drop, self.training) @ v
        return x + self.down(F.dropout(F.gelu(self.up(x)), self.drop, self.training))


class Stack(nn.Module):
    """Blocks; a loss, and the last state where it is asked for."""

    def __init__(self, drop: float = 0.1, blocks: int = 2, with_state: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.with_state = nn.ModuleList(Block(drop) for _ in range(blocks)), with_state

    def forward(self, x: Tensor) -> Any:
        for block in self.blocks:
            x = block(x)
        return (x.square().mean(), x) if self.with_state else x.square().mean()


def gradients(model: nn.Module, backward: Callable[[], None]) -> Tensor:
    """All of them, in one row."""
    model.zero_grad()
    torch.manual_seed(1)
    backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_close(got: Tensor, expected: Tensor) -> None:
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("drop", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_wide_places_are_never_whole_in_the_backward_and_gradients_the_same(drop: float) -> None:
    model = Stack(drop)
    plain = copy.deepcopy(model)
    x = torch.randn(3, 1536, WIDTH)
    whole = neaptide.plan(model, x, budget="min", train=True, offload=False, exact=True)
    handle = neaptide.compile(model, budget="min", offload=False)
    for part in (x, x[:2, :701].contiguous(), x):
        assert_close(*(gradients(each, lambda each=each, part=part: each(part).backward()) for each in (model, plain)))
    graph = handle.plan.graphs[0]
    assert len(graph.regions) == 2 * len(model.blocks)  # the attention and the MLP of each
    assert any("wide places" in rewrite for rewrite in graph.rewrites)
    assert handle.plan.peak < 0.8 * whole.peak
    assert handle.stats.captures == 1
    model.zero_grad()
    before = neaptide.measure(lambda: None).peak
    taken = neaptide.measure(lambda: model(x).backward()).peak - before
    assert taken <= 1.05 * (handle.plan.peak - handle.plan.parts["parameter"] - handle.plan.parts["input"])


def test_a_state_that_something_flows_back_from_too() -> None:
    x = torch.randn(2, 1024, WIDTH)
    model = Stack(with_state=True)
    plain = copy.deepcopy(model)
    handle = neaptide.compile(model, budget="min", offload=False)

    def of_loss(each: nn.Module) -> None:
        each(x)[0].backward()

    def of_both(each: nn.Module) -> None:
        loss, state = each(x)
        (loss + state.sum()).backward()

    for backward in (of_loss, of_loss, of_both, of_loss, of_both):
        assert_close(*(gradients(each, lambda each=each, backward=backward: backward(each)) for each in (model, plain)))
    handle.release()


class Reader(nn.Module):
    """Blocks that read another input too: that it has as many rows is only said by the products of both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(0.0) for _ in range(2))
        self.ask, self.tell = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        for block in self.blocks:
            q, k = _heads(self.ask(x)), _heads(self.tell(other))
            read = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), k)
            x = block(x + read.unflatten(0, (-1, 4)).transpose(1, 2).flatten(2))
        return x.square().mean()


def _heads(x: Tensor) -> Tensor:
    batch, rows, _ = x.shape
    return x.view(batch, rows, 4, -1).transpose(1, 2).reshape(batch * 4, rows, -1)


def test_a_size_that_comes_in_twice_is_known_to_every_backward() -> None:
    model = Reader()
    plain = copy.deepcopy(model)
    handle = neaptide.compile(model, budget="min", offload=False)
    for rows in (3, 2):
        given = torch.randn(rows, 1536, WIDTH), torch.randn(rows, 77, WIDTH)
        assert_close(*(gradients(each, lambda each=each, given=given: each(*given).backward()) for each in (model, plain)))
    assert handle.stats.captures == 1
    (unit,) = handle._session.units
    assert isinstance(unit, Training)
    assert len(unit.graph.free_inputs) > len(unit.graph.sizes.symbols)
    assert len(unit._versions) == 2
    for version in unit._versions:  # also where all is made again, with whatever sizes that takes
        program = version.program(Crossing(version, frozenset()), unit.graph.mutated, unit._absent)
        assert program is not None
        assert emit_backward(program, replace(version.slots(unit.slots), sizes=())).source


def test_a_choice_that_the_slots_have_no_place_for_is_refused() -> None:
    x = torch.randn(2, 1024, WIDTH)
    model = Stack()
    handle = neaptide.compile(model, budget="min", offload=False)
    model(x).backward()
    (unit,) = handle._session.units
    assert isinstance(unit, Training)
    wide = unit._versions[-1]
    choice = Crossing(wide, frozenset(v for v in wide.own(unit._keeps["nothing"]) if v not in wide.again))
    assert unit._letting(choice) is not None
    unit._tight.clear()
    kept = wide.theirs(choice.keep)
    unit.slots = replace(unit.slots, tensors=tuple(None if v in kept else v for v in unit.slots.tensors))
    assert unit._letting(choice) is None


def test_exact_forbids_it_and_gives_the_same_bits() -> None:
    x = torch.randn(2, 1024, WIDTH)
    model = Stack()
    plain = copy.deepcopy(model)
    handle = neaptide.compile(model, budget="min", exact=True)
    mine, theirs = (gradients(each, lambda each=each: each(x).backward()) for each in (model, plain))
    assert torch.equal(mine, theirs)
    assert not handle.plan.graphs[0].regions


def language(kind: str) -> nn.Module:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": WORDS}
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape, intermediate_size=688, num_key_value_heads=2, use_cache=False)).train()
    return BertForMaskedLM(BertConfig(**shape, intermediate_size=512, max_position_embeddings=2048)).train()


@pytest.mark.parametrize("kind", ["llama", pytest.param("bert", marks=pytest.mark.slow)])
def test_models_nobody_here_wrote_with_labels_of_their_own(kind: str) -> None:
    """Labels are another tensor than the words: only the loss says that there are as many."""
    model = language(kind)
    plain = copy.deepcopy(model)
    handle = neaptide.compile(model, budget="min", offload=False)
    for shape in ((4, 1024), (3, 333)):
        ids = torch.randint(WORDS, shape)
        given = {"input_ids": ids, "labels": ids.clone()}
        both = (gradients(each, lambda each=each, given=given: each(**given).loss.backward()) for each in (model, plain))
        assert_close(*both)
        if shape == (4, 1024):
            regions = handle.plan.graphs[0].regions
            assert len(regions) >= 4  # the loss, forward and backward, and the MLP of each layer
    assert handle.stats.captures == 1
