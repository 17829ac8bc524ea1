"""Models of images and videos, and of images beside text."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.zoo.entries import Entry, pixels, tokens, transformer
from torch import Tensor

FEW = ((2, 128), (3, 128))
MORE = ((3, 96), (2, 64))

VIT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "image_size": 128,
    "patch_size": 4,
}


def frames(batch: int, side: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch, 4, 3, side, side)}


CLIP_TEXT: dict[str, Any] = {
    "vocab_size": 500,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENTRIES: dict[str, Entry] = {
    "vit": transformer("ViTModel", pixels, FEW, **VIT),
    "deit": transformer("DeiTModel", pixels, FEW, **VIT),
    "beit": transformer("BeitModel", pixels, FEW, **VIT, use_relative_position_bias=True),
    "dinov2": transformer("Dinov2Model", pixels, FEW, **{k: v for k, v in VIT.items() if k != "intermediate_size"}),
    "clip-text": transformer("CLIPTextModel", tokens, ((2, 512), (3, 300)), **CLIP_TEXT),
    "clip-vision": transformer("CLIPVisionModel", pixels, FEW, **VIT),
    "siglip-vision": transformer("SiglipVisionModel", pixels, FEW, **VIT),
    "swin": transformer(
        "SwinModel", pixels, FEW, image_size=128, patch_size=2, embed_dim=32, depths=[2], num_heads=[2], window_size=8
    ),
    "swinv2": transformer(
        "Swinv2Model", pixels, FEW, image_size=128, patch_size=2, embed_dim=32, depths=[2], num_heads=[2], window_size=8
    ),
    "segformer": transformer(
        "SegformerModel", pixels, MORE, hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4]
    ),
    "pvt": transformer(
        "PvtModel",
        pixels,
        FEW,
        image_size=128,
        hidden_sizes=[32, 64, 96, 128],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
    ),
    "convnext": transformer("ConvNextModel", pixels, MORE, hidden_sizes=[32, 64], depths=[2, 2], num_stages=2),
    "convnextv2": transformer("ConvNextV2Model", pixels, MORE, hidden_sizes=[32, 64], depths=[2, 2], num_stages=2),
    "resnet": transformer("ResNetModel", pixels, MORE, embedding_size=32, hidden_sizes=[64, 128], depths=[2, 2]),
    "regnet": transformer(
        "RegNetModel", pixels, MORE, embedding_size=32, hidden_sizes=[64, 128], depths=[1, 1], groups_width=16
    ),
    "mobilenet-v2": transformer("MobileNetV2Model", pixels, MORE, depth_multiplier=0.5),
    "mobilevit": transformer(
        "MobileViTModel", pixels, FEW, image_size=128, hidden_sizes=[32, 48, 64], neck_hidden_sizes=[8, 16, 24, 32, 48, 64, 96]
    ),
    "poolformer": transformer("PoolFormerModel", pixels, FEW, hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 1, 1]),
    "dpt": transformer(
        "DPTModel", pixels, FEW, **{**VIT, "num_hidden_layers": 4}, backbone_out_indices=[0, 1, 2, 3], add_pooling_layer=False
    ),
    "videomae": transformer(
        "VideoMAEModel", frames, ((1, 64), (1, 64)), **{**VIT, "image_size": 64}, num_frames=4, tubelet_size=2
    ),
    "timesformer": transformer("TimesformerModel", frames, ((2, 64), (3, 64)), **{**VIT, "image_size": 64}, num_frames=4),
}
