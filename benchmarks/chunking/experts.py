"""What people do by hand to take less memory: the knobs of the libraries, and rows in a loop.

Each expert changes a model of one family in place. The size of the chunks is the expert's to choose; the usual ones are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Expert:
    """Who changes which family, in the form that it is meant for."""

    family: str
    form: str
    change: Callable[[Any], None]


class Rows(nn.Module):
    """A layer run on a few rows of the pairs at a time, each result put in its place: OpenFold's way of chunking.

    What the rows share (the bias of an attention) is passed whole.
    """

    def __init__(self, layer: nn.Module, rows: int) -> None:
        super().__init__()
        self.layer, self.rows = layer, rows

    def forward(self, pair: Tensor, *shared: Tensor) -> Tensor:
        out = torch.empty_like(pair)
        for start in range(0, pair.shape[1], self.rows):
            part = slice(start, start + self.rows)
            out[:, part] = self.layer(pair[:, part], *shared)
        return out


def chunk_rows(rows: int) -> Callable[[Any], None]:
    """Triangle attention after its norm, and transitions, in rows; triangle multiplication stays whole."""

    def change(model: Any) -> None:
        for block in model.blocks:
            block.starting.attention = Rows(block.starting.attention, rows)
            block.ending.attention = Rows(block.ending.attention, rows)
            block.transition = Rows(block.transition, rows)

    return change


def chunk_feed_forward(tokens: int) -> Callable[[Any], None]:
    """What `config.chunk_size_feed_forward` does in transformers; of the families here BERT alone looks at it."""

    def change(model: Any) -> None:
        for layer in model.encoder.layer:
            layer.chunk_size_feed_forward = tokens

    return change


def slice_attention(size: str) -> Callable[[Any], None]:
    """diffusers' sliced attention: `auto` takes half of the heads at a time, `max` one head."""

    def change(model: Any) -> None:
        model.set_attention_slice(size)

    return change


EXPERTS = {
    "feed-forward in 512": Expert("bert", "sdpa", chunk_feed_forward(512)),
    "feed-forward in 128": Expert("bert", "sdpa", chunk_feed_forward(128)),
    "sliced attention, auto": Expert("unet", "eager", slice_attention("auto")),
    "sliced attention, max": Expert("unet", "eager", slice_attention("max")),
    "rows of 32": Expert("evoformer", "eager", chunk_rows(32)),
    "rows of 4": Expert("evoformer", "eager", chunk_rows(4)),
}
