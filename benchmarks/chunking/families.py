"""The models: transformers', diffusers' and a pair stack, with random weights, few layers and long inputs.

`FAMILIES[name].build(size, layers, form)` gives a model and its inputs, batch 1. Attention is written out in the form
`eager`, PyTorch's kernel in the form `sdpa`. Models have no heads, and so few words that looking them up weighs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, Any]
WORDS = 1000


@dataclass(frozen=True, slots=True)
class Family:
    """How to build a model, and at which sizes: `size` for most sections, `base` where a length is to grow."""

    build: Callable[[int, int, str], Made]
    layers: int
    size: int
    base: int
    step: int
    unit: str
    flat: bool
    """Whether the input has a side rather than a length: tokens grow with its square."""
    over_sdpa: float = 0.5
    """The share of activations to get down to where attention is fused already."""


def make(name: str, size: int, layers: int, form: str) -> Made:
    """A model that is ready for inference, the same weights and inputs every time."""
    torch.manual_seed(0)
    model, inputs = FAMILIES[name].build(size, layers, form)
    return model.eval(), inputs


def _tokens(length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(WORDS, (1, length))}


def gpt2(size: int, layers: int, form: str) -> Made:
    """As wide as GPT-2 small: 768, 12 heads."""
    from transformers import GPT2Config, GPT2Model

    own: dict[str, Any] = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 0, "attn_implementation": form}
    return GPT2Model(GPT2Config(n_layer=layers, n_positions=size, use_cache=False, **own)), _tokens(size)


def llama(size: int, layers: int, form: str) -> Made:
    """As wide as SmolLM2-360M: 960, 15 heads that share 5 keys and values."""
    from transformers import LlamaConfig, LlamaModel

    width: dict[str, Any] = {
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "attn_implementation": form,
    }
    own: dict[str, Any] = {"vocab_size": WORDS, "max_position_embeddings": size, "use_cache": False}
    return LlamaModel(LlamaConfig(num_hidden_layers=layers, **width, **own)), _tokens(size)


def bert(size: int, layers: int, form: str) -> Made:
    """As wide as BERT base: 768, 12 heads."""
    from transformers import BertConfig, BertModel

    own: dict[str, Any] = {"vocab_size": WORDS, "max_position_embeddings": size, "attn_implementation": form}
    return BertModel(BertConfig(num_hidden_layers=layers, **own), add_pooling_layer=False), _tokens(size)


def vit(size: int, layers: int, form: str) -> Made:
    """As wide as ViT base with patches of 16: 768, 12 heads."""
    from transformers import ViTConfig, ViTModel

    own: dict[str, Any] = {"image_size": size, "attn_implementation": form}
    return ViTModel(ViTConfig(num_hidden_layers=layers, **own), add_pooling_layer=False), {
        "pixel_values": torch.randn(1, 3, size, size)
    }


def unet(size: int, layers: int, form: str) -> Made:
    """Stable Diffusion's UNet with 128, 256 and 512 channels, 8 heads, attention at the two finer levels."""
    from diffusers import UNet2DConditionModel
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

    model = UNet2DConditionModel(
        sample_size=size,
        block_out_channels=(128, 256, 512),
        layers_per_block=layers,
        cross_attention_dim=256,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    )
    model.set_attn_processor(AttnProcessor2_0() if form == "sdpa" else AttnProcessor())
    return model, (torch.randn(1, 4, size, size), torch.tensor(10), torch.randn(1, 77, 256))


def evoformer(size: int, layers: int, form: str) -> Made:
    """The pair stack of examples/protein.py, as wide as AlphaFold's: 128 channels, 4 heads."""
    from examples.protein import PairStack, fused, pairs, written_out

    return PairStack(layers, attend=fused if form == "sdpa" else written_out), pairs(size)


def template(size: int, layers: int, form: str) -> Made:
    """The same as AlphaFold's template pair stack has it: 64 channels, 4 heads."""
    from examples.protein import PairStack, fused, pairs, written_out

    return PairStack(layers, 64, attend=fused if form == "sdpa" else written_out), pairs(size, 64)


FAMILIES = {
    "gpt2": Family(gpt2, layers=2, size=4096, base=2048, step=128, unit="tokens", flat=False),
    "llama": Family(llama, layers=2, size=4096, base=2048, step=128, unit="tokens", flat=False),
    "bert": Family(bert, layers=2, size=4096, base=2048, step=128, unit="tokens", flat=False),
    "vit": Family(vit, layers=2, size=1024, base=896, step=32, unit="pixels a side", flat=True),
    "unet": Family(unet, layers=1, size=64, base=48, step=8, unit="latents a side", flat=True, over_sdpa=0.75),
    "evoformer": Family(evoformer, layers=2, size=320, base=640, step=16, unit="residues", flat=True),
    "template": Family(template, layers=2, size=320, base=320, step=16, unit="residues", flat=True),
}
