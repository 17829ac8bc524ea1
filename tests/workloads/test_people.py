"""What people really run, under a budget: adapters on frozen and on int8 weights, generation with a static cache, a denoising
loop, plain functions. The same answers as without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import neaptide


def llama(**settings: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    size: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 200}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**size, **heads, max_position_embeddings=512, **settings))


def adapted(quantised: bool) -> nn.Module:
    peft = pytest.importorskip("peft")
    model = llama(use_cache=False).requires_grad_(False)
    if quantised:
        quantization = pytest.importorskip("torchao.quantization", reason="pip install -c constraints.txt -e .[int8]")
        quantization.quantize_(model.model, quantization.Int8WeightOnlyConfig())
    config = peft.LoraConfig(r=4, lora_dropout=0.0 if quantised else 0.1, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(model, config).train()


def gradients(model: nn.Module, ids: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(3)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("quantised", [False, True])
def test_adapters_train_to_the_same_bits(quantised: bool) -> None:
    ids = torch.randint(0, 200, (2, 64))
    expected = gradients(adapted(quantised), ids)
    model = adapted(quantised)
    handle = neaptide.compile(model, budget="min", exact=True)
    for _ in range(2):
        found = gradients(model, ids)
    assert handle.stats.captures == 1
    assert len(found) == len(expected) > 1
    assert all(map(torch.equal, found, expected))


def test_generation_with_a_static_cache() -> None:
    model, ids = llama().eval(), torch.randint(0, 200, (8, 100))
    how: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    expected = model.generate(ids, **how)
    handle = neaptide.compile(model, budget="min")
    assert torch.equal(model.generate(ids, **how), expected)
    assert handle.stats.captures == 2  # a prompt, and one token
    cache = 2 * 2 * 8 * 105 * 64 * 4
    assert handle.plan.graphs[-1].peak < cache  # it is written to, not copied


@pytest.mark.slow
def test_a_denoising_loop() -> None:
    from diffusers import DDIMScheduler, UNet2DConditionModel

    torch.manual_seed(0)
    down, up = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
    size: dict[str, Any] = {"sample_size": 16, "block_out_channels": (32, 32), "layers_per_block": 1, "cross_attention_dim": 16}
    unet = UNet2DConditionModel(**size, attention_head_dim=8, down_block_types=down, up_block_types=up).eval()
    scheduler = DDIMScheduler()
    scheduler.set_timesteps(4)

    def denoised(call: Callable[..., Any]) -> torch.Tensor:
        torch.manual_seed(1)
        noise, text = torch.randn(1, 4, 16, 16), torch.randn(1, 8, 16)
        with torch.no_grad():
            for time in scheduler.timesteps:
                noise = scheduler.step(call(noise, time, text).sample, time, noise).prev_sample
        return noise

    expected = denoised(unet)
    handle = neaptide.compile(unet, budget="min")
    torch.testing.assert_close(denoised(unet), expected, rtol=1e-4, atol=1e-4)
    assert handle.stats.captures == 1
    assert handle.stats.plans == 1


def test_a_plain_function() -> None:
    weight = torch.randn(64, 64)

    def attend(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ weight, -1) @ y

    x, y = torch.randn(4000, 64), torch.randn(64, 32)
    with torch.no_grad():
        whole = neaptide.compile(attend)
        expected = whole(x, y)
        handle = neaptide.compile(attend, budget="min")
        torch.testing.assert_close(handle(x, y), expected)
    assert handle.plan.peak < whole.plan.peak
