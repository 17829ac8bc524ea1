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
        most = (1.06 if name == "unet" else 1.03) * true + SOME
        assert 0.995 * true - SOME <= choice.level <= most, (share, choice.level, true, choice.counts)


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
