"""Figures of one sheltered step tell the peak of every other choice, on real models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neaptide.budget import Budget
from neaptide.eager.adapt import Adapter
from neaptide.eager.choose import Rates, Weighed
from neaptide.eager.figures import Figures, figures_of
from neaptide.eager.probe import probe
from neaptide.eager.strengths import FULL, KEEP, Way
from neaptide.twins import split_inputs
from tests.eager.models import Stack
from tests.eager.truth import true_level
from tests.workloads.models import make

SOME = 32 << 10
"""States of random numbers, which are much beside such small models."""


def deeper(name: str) -> tuple[torch.nn.Module, Any]:
    """A model with enough layers that choices differ."""
    if name == "stack":
        return Stack(64, 6), (torch.randint(0, 50, (4, 96)),)
    model, inputs = make(name, 2)
    if name in ("gpt2", "t5", "llama"):
        inputs = {**inputs, "use_cache": False}
    return model, inputs


@pytest.mark.parametrize("name", ["stack", "gpt2", "bert", "t5", "llama", "resnet", "unet", "vit"])
def test_predicted_peaks_are_those_of_the_step(name: str) -> None:
    model, inputs = deeper(name)
    args, kwargs = split_inputs(inputs)
    adapter = Adapter(model, Budget(smallest=True))
    figures = figures_of(probe(adapter, (args, kwargs), None))
    weighed = Weighed(figures, Rates())
    low, high = weighed.lowest().level, weighed.fastest(1 << 60)
    assert high is not None
    assert low <= high.level
    for share in (0.0, 0.3, 0.6, 1.0):
        choice = weighed.fastest(int(low + share * (high.level - low)))
        assert choice is not None
        true = true_level(adapter, args, kwargs, choice, figures)
        assert 0.995 * true - SOME <= choice.level <= 1.03 * true + SOME, (share, choice.level, true, choice.counts)


def with_probabilities() -> tuple[torch.nn.Module, dict[str, Any]]:
    """Attention is a part that gives its probabilities back, which it saves itself, and its caller lets go of."""
    from transformers import BertConfig, BertForMaskedLM

    width: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = BertForMaskedLM(BertConfig(**width, vocab_size=101, attn_implementation="eager")).train()
    ids = torch.randint(0, 101, (4, 96))
    return model, {"input_ids": ids, "labels": ids}


def test_parts_do_without_what_only_they_save() -> None:
    model, inputs = with_probabilities()
    adapter = Adapter(model, Budget(smallest=True))
    figures = figures_of(probe(adapter, ((), inputs), None))
    blocks = [call for call in figures.calls if call.is_block]
    every = {one.parts for call in blocks for one in call.parts}
    assert ("attention",) in every
    weighed = Weighed(figures, Rates())
    for parts in every:
        choice = weighed.told([Way("parts", parts)] * len(blocks))
        true = true_level(adapter, (), inputs, choice, figures)
        assert 0.995 * true - SOME <= choice.level <= 1.02 * true + SOME, (parts, choice.level, true)


def test_arguments_that_only_a_checkpoint_holds_are_gone_where_there_is_none() -> None:
    model, inputs = deeper("unet")  # its upper blocks are given what the lower ones left, and join it at once
    args, kwargs = split_inputs(inputs)
    adapter = Adapter(model, Budget(smallest=True))
    figures = figures_of(probe(adapter, (args, kwargs), None))
    blocks = [call for call in figures.calls if call.is_block]
    assert sum(call.given for call in blocks) > 0
    for ways in ([KEEP] * len(blocks), [FULL] * len(blocks)):
        choice = Weighed(figures, Rates()).told(ways)
        true = true_level(adapter, args, kwargs, choice, figures)
        assert 0.995 * true - SOME <= choice.level <= 1.03 * true + SOME, (choice.level, true, choice.counts)


def test_stand_ins_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = deeper("stack")
    adapter = Adapter(model, Budget(smallest=True))
    short = figures_of(probe(adapter, (inputs, {}), None))
    monkeypatch.setattr("neaptide.eager.observe._form", lambda *_: object())
    assert figures_of(probe(adapter, (inputs, {}), None)) == short


def test_figures_survive_json() -> None:
    model, inputs = deeper("stack")
    figures = figures_of(probe(Adapter(model, Budget(smallest=True)), (inputs, {}), None))
    assert Figures.from_json(figures.to_json()) == figures


def test_gradients_that_are_there_are_added_to() -> None:
    model, inputs = deeper("stack")
    record = probe(Adapter(model, Budget(smallest=True)), (inputs, {}), None)
    fresh, added = figures_of(record), figures_of(record, accumulates=True)
    assert added.sheltered <= fresh.sheltered
