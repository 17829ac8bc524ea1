"""Attention that is written out becomes one call with the same meaning; whatever else a softmax is for stays as it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tests.rewrite.traced import Traced, all_rewrites, counts

pytestmark = pytest.mark.usefixtures("fresh_captures")

INF = float("inf")
LOW = torch.finfo(torch.float32).min
FLASH = "_scaled_dot_product_flash_attention_for_cpu.default"


def pinned(*heads: Tensor) -> list[Tensor]:
    """Heads of eight features, which a model knows by its weights."""
    return [x.view(*x.shape[:-1], 8) for x in heads]


def attend(q: Tensor, k: Tensor, v: Tensor, change: Callable[[Tensor], Tensor] = lambda s: s) -> Tensor:
    q, k, v = pinned(q, k, v)
    return change(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def heads(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Queries, keys and values as a model has them: the heads were split off the features, then moved forward."""
    *lead, count, rows, width = shape
    made = (torch.randn(*lead, rows, count, width, dtype=dtype) for _ in range(3))
    return [x.transpose(-2, -3) for x in made]


def fused(model: Callable[..., Any], *inputs: Tensor, calls: int = 1, close: float = 1e-5) -> Traced:
    """Asserts that a model is fused and computes what it did, for NaN too."""
    expected = model(*inputs)
    traced = Traced(model, all_rewrites)
    got = traced(*inputs)
    for a, b in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        assert torch.allclose(a, b, rtol=close, atol=close, equal_nan=True)
        assert a.stride() == b.stride()
    found = counts(traced.changed)
    assert found.get(FLASH, 0) == calls == len(traced.done)
    assert any("softmax" in name for name in found) != bool(calls)
    return traced


def left(model: Callable[..., Any], *inputs: Tensor) -> None:
    fused(model, *inputs, calls=0)


def test_plain_attention_needs_no_copies() -> None:
    traced = fused(lambda q, k, v: attend(q, k, v).transpose(1, 2).flatten(2), *heads(2, 4, 9, 8))
    assert traced.before["clone.default"] == 4
    assert "clone.default" not in counts(traced.changed)


@pytest.mark.parametrize("shape", [(3, 9, 8), (2, 3, 4, 9, 8), pytest.param((1, 3, 4, 9, 8), marks=pytest.mark.slow)])
def test_with_three_dims_or_five(shape: tuple[int, ...]) -> None:
    def model(*given: Tensor) -> list[Tensor]:
        return [attend(*given[:3]), attend(*given[3:])]

    fused(model, *(torch.randn(shape) for _ in range(3)), *heads(*shape), calls=2)


def test_without_a_batch() -> None:
    fused(lambda q, k, v: attend(q, k, v).relu(), *(torch.randn(9, 8) for _ in range(3)))


def test_in_half_precision_with_scores_in_single() -> None:
    def model(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k, v = pinned(q, k, v)
        return (q @ k.mT * 0.3 + mask).softmax(-1, dtype=torch.float32).to(q.dtype) @ v

    mask = torch.zeros(2, 1, 9, 9).masked_fill(torch.rand(2, 1, 9, 9) > 0.7, torch.finfo(torch.bfloat16).min)
    for dtype in (torch.float32, torch.bfloat16):
        fused(model, *heads(2, 4, 9, 8, dtype=torch.bfloat16), mask.to(dtype), close=3e-2)


def test_in_double_precision_with_masks_in_another() -> None:
    def model(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, keep: Tensor) -> list[Tensor]:
        ways: list[Callable[[Tensor], Tensor]] = [lambda s: s + mask, lambda s: s.masked_fill(keep, -INF)]
        return [attend(q, k, v, way) for way in ways]

    fused(model, *heads(2, 4, 9, 8, dtype=torch.float64), torch.randn(9, 9), torch.ones(9, 9).triu(1) > 0, calls=2)


@pytest.mark.parametrize("equation", [("bhqd,bhkd->bhqk", "bhqk,bhkd->bhqd"), ("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd")])
def test_written_as_einsum(equation: tuple[str, str]) -> None:
    def model(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = pinned(q, k, v)
        return torch.einsum(equation[1], torch.einsum(equation[0], q, k).softmax(-1), v) + 1

    fused(model, torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8))


def test_other_keys_than_queries() -> None:
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)
    fused(attend, q, k, v)


def test_heads_that_share_keys_are_not_repeated() -> None:
    def model(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x[:, :, None].expand(-1, -1, 3, -1, -1).reshape(x.shape[0], 6, *x.shape[2:]) for x in (k, v))
        return attend(q, k, v) + 1

    traced = fused(model, torch.randn(2, 6, 9, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8))
    assert "clone.default" not in counts(traced.changed)


def test_one_head_of_keys_for_all() -> None:
    fused(attend, torch.randn(2, 6, 9, 8), torch.randn(2, 1, 7, 8), torch.randn(2, 1, 7, 8))


def test_with_masks_that_are_broadcast() -> None:
    def model(q: Tensor, k: Tensor, v: Tensor, *masks: Tensor) -> list[Tensor]:
        return [attend(q, k, v, lambda s, mask=mask: mask + s) for mask in masks]

    shapes = [(9, 7), (1, 7), (9, 1), (2, 1, 1, 7), (1, 4, 9, 7), (4, 9, 7), (7,), (2, 4, 9, 7)]
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)
    fused(model, q, k, v, *map(torch.randn, shapes), calls=len(shapes))


def test_with_a_bias_that_lies_the_other_way_round_and_a_mask() -> None:
    def model(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> list[Tensor]:
        turned = bias.permute(2, 0, 1)[None]
        return [attend(q, k, v, lambda s: s + turned + mask), attend(q, k, v, lambda s: s + turned)]

    mask = torch.zeros(2, 1, 1, 7)
    mask[1, ..., 3:] = LOW
    traced = fused(model, *heads(2, 4, 7, 8), torch.randn(7, 7, 4), mask, calls=2)
    copied = [n for n in traced.changed.graph.nodes if n.target is torch.ops.aten.clone.default]
    assert sum(n.args[0].target is torch.ops.aten.unsqueeze.default for n in copied) == 1  # by both


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_triangle_attention_with_a_mask_and_a_bias_between_pairs(batch: int) -> None:
    def model(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, pairs: Tensor) -> list[Tensor]:
        both, one = attend(q, k, v, lambda s: s + mask + pairs), attend(q, k, v, lambda s: s + pairs)
        return [both.transpose(-2, -3).flatten(-2), one]

    mask = torch.where(torch.rand(batch, 5, 1, 1, 7) > 0.2, 0.0, -1e9)
    fused(model, *heads(batch, 5, 4, 7, 8), mask, torch.randn(batch, 1, 4, 7, 7), calls=2, close=3e-5)


@pytest.mark.parametrize("low", [-INF, LOW])
def test_scores_that_are_taken_out_and_a_row_in_which_all_are(low: float) -> None:
    def model(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> list[Tensor]:
        ways: list[Callable[[Tensor], Tensor]] = [
            lambda s: s.masked_fill(~keep, low),
            lambda s: torch.where(keep, s, low),
            lambda s: torch.where(~keep, torch.full([], low), s),
        ]
        return [attend(q, k, v, way) for way in ways]

    keep = torch.rand(2, 1, 40, 40) > 0.5
    keep[:, :, 3] = False
    fused(model, *heads(2, 4, 40, 8), keep, calls=3)


def test_scores_that_are_taken_out_after_something_was_added() -> None:
    def model(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, keep: Tensor) -> Tensor:
        return attend(q, k, v, lambda s: (s + bias).masked_fill(keep.logical_not(), LOW))

    bias, keep = torch.randn(4, 9, 9).masked_fill(torch.rand(4, 9, 9) > 0.8, LOW), torch.rand(2, 1, 9, 9) > 0.5
    keep[:, :, 3] = False
    fused(model, *heads(2, 4, 9, 8), bias, keep)


def test_a_causal_mask_in_a_buffer() -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keep", torch.ones(1, 1, 16, 16).tril())

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keep = self.keep[:, :, : q.shape[2], : q.shape[2]]
            return attend(q, k, v, lambda s: s.masked_fill(keep == 0, -INF)).transpose(1, 2).contiguous()

    fused(Causal(), *heads(2, 4, 9, 8))


def test_a_bias_for_each_batch_and_head_before_the_heads_are_apart() -> None:
    def model(x: Tensor, slopes: Tensor, mask: Tensor) -> Tensor:
        b, rows = x.shape[:2]
        q, k, v = (x.view(b, rows, 3, 4, 8)[:, :, i].transpose(1, 2).reshape(b * 4, rows, 8) for i in range(3))
        scores = torch.baddbmm(slopes, q, k.mT, beta=1.0, alpha=0.3)
        weights = (scores.view(b, 4, rows, rows) + mask).softmax(-1)
        return torch.bmm(weights.view(b * 4, rows, rows), v).view(b, 4, rows, 8) + 1

    mask = torch.zeros(2, 1, 9, 9).masked_fill(torch.rand(2, 1, 9, 9) > 0.7, LOW)
    fused(model, torch.randn(2, 9, 96), torch.randn(8, 1, 9), mask)


def test_weights_that_are_handed_out_stay() -> None:
    def model(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = pinned(q, k, v)
        weights = (q @ k.mT).softmax(-1)
        return weights @ v, weights

    left(model, *heads(2, 4, 9, 8))


def test_what_the_kernel_does_not_do_stays() -> None:
    def model(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        q, k, v = pinned(q, k, v)
        scores = [q @ k.mT for _ in range(6)]
        return [
            scores[0].softmax(-2) @ v,
            scores[1].tanh().softmax(-1) @ v,
            ((scores[2] + v[..., :1]) * 2).softmax(-1) @ v,
            scores[3].masked_fill(torch.ones(9, 9).triu() > 0, -100.0).softmax(-1) @ v,
            scores[4].softmax(-1) @ v[..., :5].contiguous(),
            v.mT @ scores[5].softmax(-1),
            (q[:, :, :8] @ k[:, :, :8].mT).reshape(2, 4, 4, 16).softmax(-1).view(2, 4, 8, 8) @ v[:, :, :8].contiguous(),
        ]

    left(model, *heads(2, 4, 9, 8))


def _tokens(shape: tuple[int, int]) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 211, shape)}


def _gpt2() -> tuple[nn.Module, int, Callable[[int], Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=1, n_embd=32, n_head=4, vocab_size=211, attn_implementation="eager")
    return GPT2LMHeadModel(config), 1, lambda size: _tokens((2 + size, 16 + size))


def _llama() -> tuple[nn.Module, int, Callable[[int], Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    width: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 211}
    config = LlamaConfig(**width, num_attention_heads=4, num_key_value_heads=2, attn_implementation="eager")
    return LlamaForCausalLM(config), 1, lambda size: _tokens((2 + size, 16 + size))


def _bert() -> tuple[nn.Module, int, Callable[[int], Any]]:
    from transformers import BertConfig, BertForMaskedLM

    width: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}

    def inputs(size: int) -> Any:
        mask = torch.ones(2 + size, 16 + size, dtype=torch.int64)
        mask[0, 9:] = 0
        return {**_tokens((2 + size, 16 + size)), "attention_mask": mask}

    return BertForMaskedLM(BertConfig(**width, vocab_size=211, attn_implementation="eager")), 1, inputs


def _t5() -> tuple[nn.Module, int, Callable[[int], Any]]:
    from transformers import T5Config, T5ForConditionalGeneration

    small: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 211}
    config = T5Config(**small, decoder_start_token_id=0, attn_implementation="eager")

    def inputs(size: int) -> Any:
        return {**_tokens((2 + size, 16 + size)), "decoder_input_ids": torch.randint(0, 211, (2 + size, 7 + size))}

    return T5ForConditionalGeneration(config), 3, inputs


def _vit() -> tuple[nn.Module, int, Callable[[int], Any]]:
    from transformers import ViTConfig, ViTForImageClassification

    width: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = ViTConfig(**width, image_size=32, patch_size=8, attn_implementation="eager")
    return ViTForImageClassification(config), 1, lambda size: {"pixel_values": torch.randn(2 + size, 3, 32, 32)}


def _unet() -> tuple[nn.Module, int, Callable[[int], Any]]:
    from diffusers import UNet2DConditionModel
    from diffusers.models.attention_processor import AttnProcessor

    model = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16,),
        layers_per_block=1,
        norm_num_groups=8,
        cross_attention_dim=32,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D",),
        mid_block_type=None,
        up_block_types=("UpBlock2D",),
    )
    model.set_attn_processor(AttnProcessor())

    def inputs(size: int) -> Any:
        x, words = torch.randn(2 + size, 4, 8 + 8 * size, 8 + 8 * size), torch.randn(2 + size, 7, 32)
        return {"sample": x, "timestep": torch.tensor(10), "encoder_hidden_states": words}

    return model, 2, inputs


@pytest.mark.parametrize(
    "make",
    [_gpt2, _vit, *(pytest.param(make, marks=pytest.mark.slow) for make in (_bert, _llama, _t5, _unet))],
    ids=lambda make: make.__name__[1:],
)
def test_real_models_at_two_sizes_with_one_capture(make: Callable[[], tuple[nn.Module, int, Callable[[int], Any]]]) -> None:
    model, layers, inputs = make()
    model.eval()
    traced = Traced(model, all_rewrites)
    for size in range(2):
        given = inputs(size)
        with torch.no_grad():
            expected = model(**given)[0]
        assert torch.allclose(traced(**given)[0], expected, rtol=1e-4, atol=1e-5)
    assert traced.captures == 1
    found = counts(traced.changed)
    assert found.get(FLASH) == layers
    assert not any("softmax" in name for name in found)
    assert len([text for text in traced.done if text.startswith("attention of ")]) == layers
