"""With fused kernels and no budget, what light ops make of what is there anyway is not kept."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import neaptide


class Scored(nn.Module):
    """Returns its logits and their loss, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 50)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def kept(inner: str | None) -> tuple[int, list[torch.Tensor]]:
    torch.manual_seed(0)
    model, x, labels = Scored(), torch.randn(4, 32, 16), torch.randint(0, 50, (4, 32))
    handle = neaptide.compile(model, inner=inner)  # type: ignore[arg-type]
    for _ in range(2):
        model.zero_grad()
        loss, _ = model(x, labels)
        loss.backward()
    handle.wait()
    unit = handle._session.units[0]
    call = next(iter(unit.chosen.values()))
    handle.release()
    return call.rung.take(unit.last).kept, [p.grad for p in model.parameters() if p.grad is not None]


def test_what_light_ops_make_is_made_again() -> None:
    (plain, expected), (fused, found) = kept(None), kept("inductor")
    assert plain - fused >= 4 * 32 * 50 * 4  # the logarithms of all probabilities
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
