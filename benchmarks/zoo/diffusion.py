"""Models of diffusers: UNets, transformers, autoencoders."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.zoo.entries import Entry, Inputs, Size
from torch import Tensor, nn

UNET: dict[str, Any] = {
    "sample_size": 32,
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "cross_attention_dim": 32,
    "attention_head_dim": 4,
    "norm_num_groups": 8,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
}
CODER: dict[str, Any] = {
    "block_out_channels": (32, 64),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "layers_per_block": 1,
    "latent_channels": 4,
    "norm_num_groups": 8,
}


def diffuser(name: str, inputs: Callable[..., Inputs], sizes: tuple[Size, ...], part: str = "", **config: Any) -> Entry:
    """A model of diffusers from its configuration, attention written out where it can be; `part` is a method to take."""

    def build() -> nn.Module:
        model = getattr(importlib.import_module("diffusers"), name)(**config)
        if hasattr(model, "set_attn_processor"):
            from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0

            for module in model.modules():
                if isinstance(module, Attention) and isinstance(module.processor, AttnProcessor2_0):
                    module.set_processor(AttnProcessor())
        return Method(model, part) if part else model

    return Entry(build, inputs, sizes)


class Method(nn.Module):
    """One method of a model as what is called."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.model, self.name)(*args, **kwargs)


def noisy(batch: int, side: int, channels: int = 4) -> dict[str, Tensor]:
    return {"sample": torch.randn(batch, channels, side, side), "timestep": torch.tensor(10)}


def prompted(batch: int, side: int) -> dict[str, Tensor]:
    return {**noisy(batch, side), "encoder_hidden_states": torch.randn(batch, 77, 32)}


def labelled(batch: int, side: int) -> dict[str, Tensor]:
    states = {"hidden_states": torch.randn(batch, 4, side, side), "timestep": torch.full((batch,), 10)}
    return {**states, "class_labels": torch.arange(batch)}


def steered(batch: int, side: int) -> dict[str, Any]:
    return {**prompted(batch, side), "controlnet_cond": torch.randn(batch, 3, 8 * side, 8 * side), "return_dict": False}


def pixart(batch: int, side: int) -> dict[str, Any]:
    states = {"hidden_states": torch.randn(batch, 4, side, side), "timestep": torch.full((batch,), 10)}
    more = {"resolution": None, "aspect_ratio": None}
    return {**states, "encoder_hidden_states": torch.randn(batch, 77, 32), "added_cond_kwargs": more}


def sd3(batch: int, side: int) -> dict[str, Tensor]:
    return {
        "hidden_states": torch.randn(batch, 4, side, side),
        "encoder_hidden_states": torch.randn(batch, 77, 32),
        "pooled_projections": torch.randn(batch, 64),
        "timestep": torch.full((batch,), 10),
    }


def flux(batch: int, side: int) -> dict[str, Tensor]:
    places = torch.zeros(side * side, 3)
    places[:, 1], places[:, 2] = torch.arange(side).repeat_interleave(side), torch.arange(side).repeat(side)
    return {
        "hidden_states": torch.randn(batch, side * side, 4),
        "encoder_hidden_states": torch.randn(batch, 77, 32),
        "pooled_projections": torch.randn(batch, 32),
        "timestep": torch.full((batch,), 0.5),
        "img_ids": places,
        "txt_ids": torch.zeros(77, 3),
    }


def states(batch: int, side: int) -> dict[str, Tensor]:
    return {"hidden_states": torch.randn(batch, 32, side, side), "encoder_hidden_states": torch.randn(batch, 77, 32)}


def moving(batch: int, side: int) -> dict[str, Tensor]:
    """Frames of a video, with a prompt."""
    sample = torch.randn(batch, 4, 4, side, side)
    return {"sample": sample, "timestep": torch.tensor(10), "encoder_hidden_states": torch.randn(batch, 77, 32)}


SIDES = ((2, 32), (3, 24))
DIT: dict[str, Any] = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2, "sample_size": 32, "patch_size": 1}
ENTRIES: dict[str, Entry] = {
    "unet": diffuser("UNet2DConditionModel", prompted, SIDES, **UNET, up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")),
    "unet2d": diffuser(
        "UNet2DModel",
        lambda batch, side: noisy(batch, side, 3),
        SIDES,
        sample_size=32,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        attention_head_dim=16,
        down_block_types=("AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D"),
    ),
    "unet1d": diffuser(
        "UNet1DModel",
        lambda batch, length: {"sample": torch.randn(batch, 2, length), "timestep": torch.tensor(10)},
        ((2, 8192), (3, 4096)),
        in_channels=2,
        out_channels=2,
        block_out_channels=(32, 32, 64),
        extra_in_channels=64,
    ),
    "unet3d": diffuser(
        "UNet3DConditionModel",
        moving,
        ((2, 16), (1, 16)),
        **{**UNET, "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D")},
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
    ),
    "controlnet": diffuser(
        "ControlNetModel", steered, ((2, 32), (3, 32)), **{k: v for k, v in UNET.items() if k != "sample_size"}
    ),
    "transformer2d": diffuser(
        "Transformer2DModel",
        states,
        SIDES,
        in_channels=32,
        num_attention_heads=4,
        attention_head_dim=8,
        num_layers=2,
        norm_num_groups=8,
        cross_attention_dim=32,
    ),
    "dit": diffuser("DiTTransformer2DModel", labelled, ((2, 32), (3, 32)), **DIT, num_embeds_ada_norm=10),
    "pixart": diffuser(
        "PixArtTransformer2DModel",
        pixart,
        ((2, 32), (3, 32)),
        **DIT,
        cross_attention_dim=64,
        caption_channels=32,
        out_channels=8,
    ),
    "sd3": diffuser(
        "SD3Transformer2DModel",
        sd3,
        SIDES,
        **DIT,
        in_channels=4,
        joint_attention_dim=32,
        caption_projection_dim=64,
        pooled_projection_dim=64,
        out_channels=4,
    ),
    "flux": diffuser(
        "FluxTransformer2DModel",
        flux,
        ((2, 24), (3, 20)),
        in_channels=4,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    ),
    "vae": diffuser(
        "AutoencoderKL", lambda batch, side: {"sample": torch.randn(batch, 3, side, side)}, ((2, 64), (3, 48)), **CODER
    ),
    "vae-decoder": diffuser(
        "AutoencoderKL", lambda batch, side: {"z": torch.randn(batch, 4, side, side)}, SIDES, part="decode", **CODER
    ),
    "vq": diffuser(
        "VQModel",
        lambda batch, side: {"sample": torch.randn(batch, 3, side, side)},
        ((2, 64), (3, 48)),
        **{**CODER, "latent_channels": 3},
        num_vq_embeddings=64,
    ),
    "tiny-vae": diffuser(
        "AutoencoderTiny",
        lambda batch, side: {"sample": torch.randn(batch, 3, side, side)},
        ((2, 64), (3, 48)),
        encoder_block_out_channels=(32, 32),
        decoder_block_out_channels=(32, 32),
        num_encoder_blocks=(1, 2),
        num_decoder_blocks=(2, 1),
    ),
    "prior": diffuser(
        "PriorTransformer",
        lambda batch: {
            "hidden_states": torch.randn(batch, 32),
            "timestep": torch.tensor(5),
            "proj_embedding": torch.randn(batch, 32),
            "encoder_hidden_states": torch.randn(batch, 500, 32),
        },
        ((2,), (3,)),
        num_attention_heads=4,
        attention_head_dim=16,
        num_layers=2,
        embedding_dim=32,
        num_embeddings=500,
        additional_embeddings=4,
    ),
}
