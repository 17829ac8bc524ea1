"""Small models that `adapt` is tested on: blocks of several kinds, dropout, statistics, routing, branches on data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.mixed(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], -1e4)
        return self.out(F.dropout(scores.softmax(-1), 0.1, self.training) @ v)


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.narrow(F.gelu(self.wide(x))))


class Block(nn.Module):
    """Takes a keyword, gives back a dict."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(width), Mlp(width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> dict[str, Tensor]:
        x = x + self.attention(self.first(x), mask=mask)
        return {"x": x + self.mlp(self.second(x))}


class Stack(nn.Module):
    """A transformer; with `shared`, one block that is called many times."""

    def __init__(self, width: int = 32, layers: int = 4, shared: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(1 if shared else layers))
        self.head = nn.Linear(width, 50)
        self.layers = layers

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        x = self.words(ids)
        for number in range(self.layers):
            x = self.blocks[number % len(self.blocks)](x, mask=mask)["x"]
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), ids.flatten()), "logits": logits}


class Residual(nn.Module):
    def __init__(self, inside: int, width: int) -> None:
        super().__init__()
        first, last = nn.Conv2d(inside, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.body = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(inplace=True), last)
        self.skip = nn.Conv2d(inside, width, 1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.body(x) + self.skip(x)), inplace=True)


class Pictures(nn.Module):
    """Blocks of different sizes, and statistics that a forward updates."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(Residual(8, 8), Residual(8, 16), Residual(16, 16), Residual(16, 32))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Expert(nn.Module):
    """Rows go to one of two layers, as their values ask."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(width, 2), nn.ModuleList(Mlp(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        where = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (where == number).nonzero().squeeze(-1)
            if int(rows.numel()):
                out = out.index_add(0, rows, expert(x[rows]))
        return x + out


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin() * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2 * ctx.saved_tensors[0].cos()


class Odd(nn.Module):
    """A branch on data, and a function of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return x + (Twice.apply(y) if float(y.detach().sum()) > 0 else y * 2)


class Rows(nn.Module):
    def __init__(self, kind: type[nn.Module], width: int = 32, layers: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind(width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()
