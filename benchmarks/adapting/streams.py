"""Models and realistic streams of batches for them: lognormal lengths, resolutions of a few kinds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

Batch = dict[str, Any]


def lengths(draw: random.Random, middle: float, most: int) -> int:
    """A length as texts have them, padded to a multiple of 8."""
    return min(most, max(16, 8 * round(draw.lognormvariate(middle, 0.45) / 8)))


def bert() -> tuple[nn.Module, Callable[[random.Random | None], Batch]]:
    width: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8}
    model = BertForMaskedLM(BertConfig(vocab_size=4000, num_hidden_layers=12, attn_implementation="eager", **width))

    def batch(draw: random.Random | None) -> Batch:
        ids = torch.randint(2, 4000, (8, lengths(draw, 4.8, 256) if draw else 256))
        return {"input_ids": ids, "labels": ids}

    return model, batch


def gpt2() -> tuple[nn.Module, Callable[[random.Random | None], Batch]]:
    config = GPT2Config(vocab_size=4000, n_layer=8, n_embd=256, n_head=8, attn_implementation="eager")
    model = GPT2LMHeadModel(config)

    def batch(draw: random.Random | None) -> Batch:
        ids = torch.randint(2, 4000, (8, lengths(draw, 4.8, 256) if draw else 256))
        return {"input_ids": ids, "labels": ids}

    return model, batch


def t5() -> tuple[nn.Module, Callable[[random.Random | None], Batch]]:
    width: dict[str, Any] = {"d_model": 256, "d_kv": 32, "d_ff": 1024, "num_layers": 8, "num_heads": 8, "vocab_size": 4000}
    model = T5ForConditionalGeneration(T5Config(decoder_start_token_id=0, **width))

    def batch(draw: random.Random | None) -> Batch:
        source = lengths(draw, 4.8, 256) if draw else 256
        target = lengths(draw, 4.0, 128) if draw else 128
        return {"input_ids": torch.randint(2, 4000, (8, source)), "labels": torch.randint(2, 4000, (8, target))}

    return model, batch


class Loss(nn.Module):
    """A model with the loss that its user computes, so that every method runs the same step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        output = self.model(*given)
        return (output if isinstance(output, torch.Tensor) else output.sample).square().mean()


def resnet() -> tuple[nn.Module, Callable[[random.Random | None], Batch]]:
    from tests.workloads.models import ResNet

    def batch(draw: random.Random | None) -> Batch:
        side = draw.choice((96, 112, 128, 144, 160, 176, 192)) if draw else 192
        return {"given": (torch.randn(16, 3, side, side),)}

    return Loss(ResNet(32, (3, 4, 6, 3))), batch


def unet() -> tuple[nn.Module, Callable[[random.Random | None], Batch]]:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(32, 64, 128),
        layers_per_block=2,
        norm_num_groups=8,
        cross_attention_dim=64,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    )

    def batch(draw: random.Random | None) -> Batch:
        side = draw.choice((24, 32, 40, 48, 56, 64)) if draw else 64
        return {"given": (torch.randn(4, 4, side, side), torch.tensor(10), torch.randn(4, 16, 64))}

    return Loss(model), batch


MODELS = {"bert": bert, "gpt2": gpt2, "t5": t5, "resnet": resnet, "unet": unet}


def made(name: str) -> tuple[nn.Module, Callable[[random.Random | None], Batch]]:
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    return model.train(), batch


def run(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss of a batch."""
    output = model(*batch["given"]) if "given" in batch else model(**batch)
    return output if isinstance(output, torch.Tensor) else output.loss


def arguments(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (batch["given"], {}) if "given" in batch else ((), dict(batch))


def size(batch: Batch) -> tuple[tuple[int, ...], ...]:
    args, kwargs = arguments(batch)
    return tuple(tuple(t.shape) for t in (*args, *kwargs.values()))
