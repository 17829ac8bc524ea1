"""Small modules whose largest results can be made in parts, each in a way of its own."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    """Rows go through independently: a residual, a norm, a wide middle."""

    def __init__(self, width: int = 32, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=dtype)
        self.up, self.down = nn.Linear(width, 16 * width, dtype=dtype), nn.Linear(16 * width, width, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Attention(nn.Module):
    """Attention written out, causal by a mask made inside, keys and values whole for every part of the queries."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        place = torch.arange(length)
        scores = scores.masked_fill(place[:, None] < place, float("-inf"))
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))


class Stack(nn.Module):
    """Layers of attention and a wide middle, as they come in transformers."""

    def __init__(self, layers: int = 3, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(m for _ in range(layers) for m in (Attention(width), Mlp(width)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Nearest(nn.Module):
    """Integers and bools come out: the nearest code of each row, and whether it is near."""

    def __init__(self, width: int = 32, codes: int = 512) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(codes, width))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        likeness = (x @ self.codes.t()).softmax(-1)
        best = likeness.amax(-1)
        return likeness.argmax(-1), best > 0.5


class Images(nn.Module):
    """Images go through convolutions independently of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.relu(self.first(x)))


class Words(nn.Module):
    """Integers come in: a table is looked up and widened."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.table, self.mlp = nn.Embedding(100, width), Mlp(width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.table(words))
