"""Regions that were found in another layer and moved are those that would have been found there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import neaptide
from neaptide.axes import Axis
from neaptide.search.chunk import forms, stretches
from neaptide.search.chunk.forms import Form, Forms
from neaptide.search.chunk.regions import Region, grow
from neaptide.search.chunk.stretches import Moved, Stretches
from tests.chunk.modules import Stack

pytestmark = pytest.mark.usefixtures("fresh_captures")


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[Region]:
    """Every region that is moved while a model is planned, each held against the one that grows there, and its form."""
    found: list[Region] = []
    move, form = Stretches.grow, forms.Forms._moved

    def both(self: Stretches, seed: int, axis: Axis, start: int, stop: int) -> Region | None:
        region = move(self, seed, axis, start, stop)
        assert region == grow(self.net, seed, axis, start, stop, self.again)
        return region

    def looked_at(self: Forms, region: Region, origin: Form, here: Moved) -> Form:
        one, other = form(self, region, origin, here), self._form(region)
        for name in ("before", "standing", "body", "fetched", "again", "copied", "added", "missing"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        found.append(region)
        return one

    monkeypatch.setattr(stretches.Stretches, "grow", both)
    monkeypatch.setattr(forms.Forms, "_moved", looked_at)
    return found


def planned(model: nn.Module, *inputs: Any, **named: Any) -> neaptide.Handle:
    handle = neaptide.compile(model.eval(), budget="min", rewrite=False)
    with torch.no_grad():
        handle(*inputs, **named)
    return handle


@pytest.mark.parametrize("batch", [1, 3])
def test_layers_of_a_stack(moved: list[Region], batch: int) -> None:
    planned(Stack(4), torch.randn(batch, 384, 32))
    assert len({region.start for region in moved}) > 3


def test_layers_that_share_a_mask_and_tables_of_positions(moved: list[Region]) -> None:
    from transformers import LlamaConfig, LlamaModel

    width: dict[str, Any] = {"hidden_size": 48, "intermediate_size": 96, "num_attention_heads": 3, "vocab_size": 64}
    config = LlamaConfig(num_hidden_layers=3, use_cache=False, attn_implementation="eager", **width)
    planned(LlamaModel(config), torch.randint(64, (1, 256)))
    assert moved


def test_layers_that_are_not_alike_share_nothing_that_is_wrong(moved: list[Region]) -> None:
    layers = [nn.Sequential(nn.Linear(32, wide), nn.GELU(), nn.Linear(wide, 32)) for wide in (512, 512, 768, 512)]
    planned(nn.Sequential(*layers), torch.randn(640, 32))
