"""Saved activations in few bits: how many bytes, how near, and what is never packed."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

import neaptide
from neaptide.measurement import live_tensor_bytes
from neaptide.packing import gradient_error, pack, packing, unpack


@pytest.mark.parametrize(("bits", "times", "near"), [(8, 3.5, 1 / 255), (4, 6.0, 1 / 15)])
@pytest.mark.parametrize("shape", [(1000,), (7, 300, 11), (3, 64, 33)])
def test_few_bytes_and_values_within_one_step(bits: int, times: float, near: float, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    packed = pack(x, bits)
    assert packed is not None
    assert x.nbytes / packed.nbytes > times * (0.9 if x.numel() < 4096 else 1)
    back = unpack(packed)
    assert back.shape == x.shape
    assert float((back - x).abs().max()) <= near * float(x.max() - x.min()) * 1.01


def test_layouts_and_dtypes_are_as_they_were() -> None:
    for x in (
        torch.randn(4, 8, 6, 6).to(memory_format=torch.channels_last),
        torch.randn(64, 32).t(),
        torch.randn(99).bfloat16(),
    ):
        packed = pack(x)
        assert packed is not None
        back = unpack(packed)
        assert (back.stride(), back.dtype) == (x.stride(), x.dtype)


def test_rounding_is_right_on_average() -> None:
    x = torch.full((1 << 16,), 0.3)
    x[::256], x[1::256] = 0.0, 1.0
    packed = pack(x, 4)
    assert packed is not None
    assert abs(float(unpack(packed).mean() - x.mean())) < 2e-3


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_is_left_alone(value: float) -> None:
    x = torch.zeros(1000)
    x[3] = value
    assert pack(x) is None


def test_bits_that_there_are_not_are_refused() -> None:
    with pytest.raises(neaptide.InputError, match="4 or 8"):
        pack(torch.ones(3), 3)


class Masked(nn.Module):
    """Attention with a mask of infinities, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(x).chunk(3, -1)
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        return nn.functional.gelu(self.last((q @ k.transpose(1, 2) / 8 + mask).softmax(-1) @ v))


def test_gradients_are_near_and_a_mask_of_infinities_does_no_harm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Masked(), Masked())
    twin = copy.deepcopy(model)
    x = torch.randn(4, 256, 64)
    model(x).square().mean().backward()
    state = torch.get_rng_state()
    with packing(twin, 8):
        result = twin(x)
    result.square().mean().backward()
    assert torch.equal(torch.get_rng_state(), state)
    ours, theirs = (torch.cat([p.grad.flatten() for p in each.parameters() if p.grad is not None]) for each in (twin, model))
    assert bool(ours.isfinite().all())
    assert 0 < float((ours - theirs).norm() / theirs.norm()) < 0.01


def test_what_is_saved_takes_less() -> None:
    gc.collect()
    others = live_tensor_bytes()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(6)))
    x = torch.randn(2048, 64)

    def peak(bits: int | None) -> int:
        def step() -> None:
            if bits is None:
                result = model(x)
            else:
                with packing(model, bits):
                    result = model(x)
            result.sum().backward()

        step()
        model.zero_grad()
        taken = neaptide.measure(step).peak - others
        model.zero_grad()
        return taken

    plain, eight, four = peak(None), peak(8), peak(4)
    assert eight < 0.6 * plain
    assert four < eight


def test_the_error_of_a_gradient_is_measured_and_nothing_is_left_changed() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64))
    x = torch.randn(1024, 64)
    model(x).square().mean().backward()
    before = copy.deepcopy(model.state_dict())
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    state = torch.get_rng_state()
    (eight, mean), (four, _) = (gradient_error(model, x, bits, lambda y: y.square().mean()) for bits in (8, 4))
    assert mean < eight < 0.01 < four
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True) if p.grad is not None)


def test_a_small_gpt_trains_to_the_same_loss() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    def trained(bits: int | None, seed: int) -> float:
        torch.manual_seed(seed)
        config = GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=64, n_positions=48, bos_token_id=0, eos_token_id=0)
        model = GPT2LMHeadModel(config).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        last = []
        for number in range(60):
            starts = torch.randint(0, 64, (8, 1))
            ids = (starts + torch.arange(48) * (1 + starts % 3)) % 64  # a rule that can be learnt
            if bits is None:
                loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            else:
                with packing(model, bits, number):
                    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            last.append(float(loss.detach()))
        return sum(last[-10:]) / 10

    plain = [trained(None, seed) for seed in (0, 1, 2)]
    noise = max(plain) - min(plain)
    assert plain[0] < 2.0  # it learns: chance is ln 64
    assert abs(trained(8, 0) - plain[0]) <= max(noise, 0.05)
