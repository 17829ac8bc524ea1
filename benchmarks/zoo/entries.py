"""An entry of the zoo: how to build a model, and its inputs at two sizes.

Weights are drawn so that every layer matters: with the libraries' own (std 0.02, scales of 1e-6, gates of 0) a block that
computes something wrong would hardly change what comes out of the model.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Inputs = Mapping[str, Any]
Size = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A model: `build` makes it, `inputs(*size)` what it is called with, at the first size and then at the others."""

    build: Callable[[], nn.Module]
    inputs: Callable[..., Inputs]
    sizes: tuple[Size, ...]

    def model(self) -> nn.Module:
        """The model, ready for inference, with the same weights every time."""
        torch.manual_seed(0)
        model = self.build().eval()
        draw_weights(model)
        return model

    def given(self, size: Size) -> Inputs:
        torch.manual_seed(sum(size))
        return self.inputs(*size)


def transformer(name: str, inputs: Callable[..., Inputs], sizes: tuple[Size, ...], part: str = "", **config: Any) -> Entry:
    """A model of transformers from its configuration, attention written out; `part` is a submodule to take instead."""

    def build() -> nn.Module:
        library: Any = importlib.import_module("transformers")
        kind = getattr(library, name)
        made = kind.config_class(**config)
        made._attn_implementation = "eager"
        model = kind(made)
        return model.get_submodule(part) if part else model

    return Entry(build, inputs, sizes)


def draw_weights(model: nn.Module) -> None:
    """Weights that keep the size of what they are applied to, scales around one, biases that are not zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                continue
            noise = torch.randn_like(parameter)
            if parameter.dim() > 1:
                parameter.copy_(noise / max(parameter[0].numel(), 1) ** 0.5)
            elif name.endswith("bias"):
                parameter.copy_(noise * 0.1)
            else:
                parameter.copy_(1 + noise * 0.1)


def tokens(batch: int, length: int, words: int = 500) -> dict[str, Tensor]:
    """Words, none of them padding."""
    return {"input_ids": torch.randint(5, words, (batch, length))}


def padded(batch: int, length: int) -> dict[str, Tensor]:
    """Words, of which the last rows of the batch have fewer."""
    mask = torch.ones(batch, length, dtype=torch.long)
    for row in range(batch):
        mask[row, length - length // 8 * (row + 1) :] = 0
    return {**tokens(batch, length), "attention_mask": mask}


def both(batch: int, length: int, target: int) -> dict[str, Tensor]:
    """What an encoder and a decoder read."""
    return {**tokens(batch, length), "decoder_input_ids": torch.randint(5, 500, (batch, target))}


def pixels(batch: int, side: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch, 3, side, side)}
