"""Autocast to bfloat16, around a model, around parts of it, and around all but a part of it."""

import torch
from tests.mechanism.oracle import total, train
from torch import nn


def mlp(*extra: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), *extra, nn.Linear(16, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 4))


def in_bfloat16(model):
    """A scenario under autocast; as PyTorch advises, the backward is not."""
    seen = []
    for size in (3, 4):
        x = torch.randn(size, 8, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        total(out).backward()
        seen.append((out, x.grad))
    return seen


def in_full(model):
    """A scenario in which only the model itself chooses its dtypes."""
    return [train(model, torch.randn(size, 8, requires_grad=True)) for size in (3, 4)]


def test_autocast_to_bfloat16(both):
    both(mlp, in_bfloat16)


def test_dropout_under_autocast_is_that_of_aot_eager(both):
    # AOTAutograd's dropout rounds once more than eager's in the backward: eager is not the oracle of the last bit here.
    both(lambda: mlp(nn.Dropout(0.3)), in_bfloat16, oracle="aot_eager")


def test_the_backward_of_a_part_without_autocast_is_in_full_precision(both):
    class Island(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.outer, self.inner = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            h = self.outer(x).tanh()
            with torch.autocast("cpu", enabled=False):
                return self.inner(h.float()).sin()

    both(Island, in_bfloat16)


def test_autocast_inside_the_model(both):
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                h = self.second(self.first(x).relu()).tanh()
            return self.first(h.float())

    both(Mixed, in_full)
