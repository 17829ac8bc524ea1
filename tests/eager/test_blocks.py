"""Blocks are found in any model, and a switch leaves nothing behind."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

import neaptide
from neaptide.eager.blocks import find_blocks
from tests.eager.models import Stack
from tests.workloads.models import FACTORIES, make

EXPECTED = {
    "gpt2": ("transformer.h.0", ["attn", "mlp"]),
    "llama": ("model.layers.0", ["self_attn", "mlp"]),
    "bert": ("bert.encoder.layer.0", ["attention", "intermediate", "output"]),
    "t5": ("encoder.block.0", ["layer.0", "layer.1"]),
    "resnet": ("blocks.0", ["narrow", "across", "widen", "shortcut"]),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_blocks_of_real_models_are_found(name: str) -> None:
    model, _ = make(name)
    units = find_blocks(model)
    assert units
    if name in EXPECTED:
        assert (units[0].name, [part.name for part in units[0].parts]) == EXPECTED[name]


def test_the_middle_of_a_unet_is_among_its_blocks() -> None:
    model, _ = make("unet")
    names = [unit.name for unit in find_blocks(model)]
    assert {name.split(".")[0] for name in names} == {"down_blocks", "mid_block", "up_blocks"}


def test_alike_blocks_are_known_as_such() -> None:
    units = find_blocks(Stack())
    assert len({unit.alike for unit in units}) == 1


def test_nothing_is_left_behind() -> None:
    model = Stack()
    model.register_forward_hook(lambda *_: None)
    before = (repr(model), list(model.state_dict()), [dict(vars(m)) for m in model.modules()])
    signature = inspect.signature(model.forward)
    handle = neaptide.adapt(model, budget="min")
    model(torch.zeros(2, 8, dtype=torch.int64))["loss"].backward()
    assert (repr(model), list(model.state_dict())) == before[:2]
    assert inspect.signature(model.forward) == signature
    handle.release()
    handle.release()
    assert [dict(vars(m)).keys() for m in model.modules()] == [held.keys() for held in before[2]]
    assert (repr(model), list(model.state_dict())) == before[:2]


def test_copies_are_plain_models() -> None:
    model = Stack().eval()
    handle = neaptide.adapt(model, budget="min")
    given = torch.zeros(2, 8, dtype=torch.int64)
    expected = model(given)["loss"]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(given)["loss"], expected)
        other.train()
        other(given)["loss"].backward()
        assert handle.stats.calls == 0
        assert other.forward.__self__ is other


def test_a_model_cannot_be_adapted_twice_at_once() -> None:
    model = Stack()
    handle = neaptide.adapt(model, budget="min")
    with pytest.raises(neaptide.InputError, match=r"call release\(\)"):
        neaptide.adapt(model, budget="min")
    handle.release()
    neaptide.adapt(model, budget="min").release()


def test_blocks_that_were_compiled_by_themselves_stay_so() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
    for block in model:
        block.compile(backend="eager")
    plain = copy.deepcopy(model)
    neaptide.adapt(model, budget="min")
    x = torch.randn(16, 8)
    for one in (model, plain):
        one(x).square().mean().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    torch._dynamo.reset()
