"""Real models that tests and benchmarks share: transformers', diffusers' and a ResNet, with random weights.

`make(name, size)` gives a model and inputs; `size` 0, 1, 2 are three different input sizes of one model. `large=True`
is for benchmarks (peaks of a few hundred megabytes), the default for tests (milliseconds a step).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, Any]
FACTORIES: dict[str, Callable[[int, bool, bool], Made]] = {}


def workload(factory: Callable[[int, bool, bool], Made]) -> Callable[[int, bool, bool], Made]:
    FACTORIES[factory.__name__] = factory
    return factory


def make(name: str, size: int = 0, *, large: bool = False, train: bool = True) -> Made:
    """A model in the mode asked for, and inputs of one of three sizes (a loss is in the output where `train`)."""
    torch.manual_seed(0)
    model, inputs = FACTORIES[name](size, large, train)
    return model.train(train), inputs


def _tokens(shape: tuple[int, int], vocabulary: int, train: bool) -> dict[str, Tensor]:
    ids = torch.randint(0, vocabulary, shape)
    return {"input_ids": ids, "labels": ids.clone()} if train else {"input_ids": ids}


@workload
def gpt2(size: int, large: bool, train: bool) -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = ((1, 128), (1, 256), (2, 256))[size] if large else ((2, 16), (3, 24), (2, 40))[size]
    config = GPT2Config(n_layer=6) if large else GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=211)
    return GPT2LMHeadModel(config), _tokens(shape, config.vocab_size, train)


@workload
def llama(size: int, large: bool, train: bool) -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = ((1, 512), (2, 512), (2, 1024))[size] if large else ((2, 16), (3, 24), (2, 40))[size]
    width: dict[str, Any] = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 6, "vocab_size": 16000}
    small: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 211}
    heads: dict[str, Any] = {"num_attention_heads": 12, "num_key_value_heads": 4} if large else {"num_attention_heads": 4}
    config = LlamaConfig(**(width if large else small), **heads)
    return LlamaForCausalLM(config), _tokens(shape, config.vocab_size, train)


@workload
def bert(size: int, large: bool, train: bool) -> Made:
    from transformers import BertConfig, BertForMaskedLM

    shape = ((4, 128), (8, 128), (8, 256))[size] if large else ((2, 16), (3, 24), (2, 40))[size]
    width: dict[str, Any] = {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
    }
    small: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = BertConfig(**width) if large else BertConfig(**small, vocab_size=211)
    inputs = _tokens(shape, config.vocab_size, train)
    mask = torch.ones(shape, dtype=torch.int64)
    mask[0, shape[1] // 2 :] = 0
    return BertForMaskedLM(config), {**inputs, "attention_mask": mask}


@workload
def t5(size: int, large: bool, train: bool) -> Made:
    from transformers import T5Config, T5ForConditionalGeneration

    shape = ((4, 128), (4, 256), (4, 384))[size] if large else ((2, 16), (3, 24), (2, 40))[size]
    small: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 211}
    start: dict[str, Any] = {"decoder_start_token_id": 0}
    config = T5Config(**(start if large else start | small))
    ids = torch.randint(0, config.vocab_size, shape)
    target = torch.randint(0, config.vocab_size, (shape[0], shape[1] // 2))
    inputs = {"input_ids": ids, "labels" if train else "decoder_input_ids": target}
    return T5ForConditionalGeneration(config), inputs


@workload
def vit(size: int, large: bool, train: bool) -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    batch = (4, 8, 16)[size] if large else (1, 2, 3)[size]
    width: dict[str, Any] = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
    }
    small: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = ViTConfig(**width) if large else ViTConfig(**small, image_size=32, patch_size=8)
    side = 224 if large else 32
    inputs = {"pixel_values": torch.randn(batch, 3, side, side)}
    return ViTForImageClassification(config), inputs | ({"labels": torch.zeros(batch, dtype=torch.int64)} if train else {})


@workload
def unet(size: int, large: bool, train: bool) -> Made:
    from diffusers import UNet2DConditionModel

    batch, side = ((1, 32), (2, 48), (2, 64))[size] if large else ((2, 8), (3, 16), (2, 24))[size]
    channels = (128, 256, 512) if large else (16, 32)
    model = UNet2DConditionModel(
        sample_size=side,
        block_out_channels=channels,
        layers_per_block=1,
        norm_num_groups=8,
        cross_attention_dim=256 if large else 32,
        attention_head_dim=8,
        down_block_types=(*["CrossAttnDownBlock2D"] * (len(channels) - 1), "DownBlock2D"),
        up_block_types=("UpBlock2D", *["CrossAttnUpBlock2D"] * (len(channels) - 1)),
    )
    width = 256 if large else 32
    return model, (torch.randn(batch, 4, side, side), torch.tensor(10), torch.randn(batch, 77 if large else 7, width))


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.narrow = nn.Sequential(nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.across = nn.Sequential(
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        self.widen = nn.Sequential(nn.Conv2d(width, outside, 1, bias=False), nn.BatchNorm2d(outside))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.widen(self.across(self.narrow(x)))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    """A residual network with batch normalisation and in-place ReLUs, as torchvision's."""

    def __init__(self, width: int, depths: tuple[int, ...], classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks, inside = [], width
        for level, depth in enumerate(depths):
            for position in range(depth):
                blocks.append(Bottleneck(inside, width << level, 2 if level and not position else 1))
                inside = 4 * (width << level)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


@workload
def resnet(size: int, large: bool, train: bool) -> Made:
    batch, side = ((4, 224), (8, 224), (8, 288))[size] if large else ((2, 32), (3, 48), (2, 64))[size]
    model = ResNet(64, (3, 4, 6, 3), 1000) if large else ResNet(8, (1, 1))
    return model, torch.randn(batch, 3, side, side)
