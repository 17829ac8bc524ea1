"""Models with branches, whose order of ops is not the only one: UNets of diffusers, and Inception's blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def unet() -> Any:
    """diffusers' unconditional UNet, with attention at one level."""
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=128,
        in_channels=3,
        out_channels=3,
        layers_per_block=2,
        block_out_channels=(64, 128, 128, 256),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    )


def conditional_unet() -> Any:
    """diffusers' UNet of Stable Diffusion, with few channels."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=64,
        block_out_channels=(64, 128, 256),
        layers_per_block=2,
        cross_attention_dim=128,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    )


def _conv(given: int, made: int, size: int) -> nn.Module:
    layers = [nn.Conv2d(given, made, size, padding=size // 2, bias=False), nn.BatchNorm2d(made), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Block(nn.Module):
    """Inception's: four branches side by side, of one, two and three convolutions and of a pooling."""

    def __init__(self, given: int, wide: bool) -> None:
        super().__init__()
        one, five, three, pool = (128, 96, 192, 64) if wide else (64, 64, 96, 32)
        self.one = _conv(given, one, 1)
        self.five = nn.Sequential(_conv(given, 48, 1), _conv(48, five, 5))
        self.three = nn.Sequential(_conv(given, 64, 1), _conv(64, three, 3), _conv(three, three, 3))
        self.pool = _conv(given, pool, 1)
        self.made = one + five + three + pool

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.five(x), self.three(x), self.pool(nn.functional.avg_pool2d(x, 3, 1, 1))], 1)


class Inception(nn.Module):
    """A few blocks, and the mean of what they make."""

    def __init__(self, given: int, wide: bool = False, count: int = 3) -> None:
        super().__init__()
        blocks: list[Block] = []
        for _ in range(count):
            blocks.append(Block(given, wide))
            given = blocks[-1].made
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x).mean((2, 3))
