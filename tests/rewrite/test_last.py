"""Where only a part of a result is used, only that part is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neaptide.rewrite import narrow_early
from tests.rewrite.traced import Traced, all_rewrites, whole

pytestmark = pytest.mark.usefixtures("fresh_captures")

LINEAR = torch.ops.aten.linear.default


def narrowed(module: Any) -> Any:
    whole(module)
    return module, tuple(narrow_early(module))


def sizes_of(traced: Traced, target: Any = LINEAR) -> list[str]:
    """The second dim of every result of an op."""
    return [str(node.meta["val"].shape[1]) for node in traced.changed.graph.nodes if node.target is target]


class Head(nn.Module):
    """A block that treats positions apart from each other, as the end of a language model."""

    def __init__(self, take: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(8, 32), nn.Linear(32, 8), nn.Linear(8, 50, bias=False)
        self.norm, self.last_norm = nn.LayerNorm(8), nn.RMSNorm(8)
        self.take = take

    def forward(self, x: Tensor) -> Tensor:
        x = x.cumsum(1)
        x = x + self.down(self.up(self.norm(x)).relu())
        return self.take(self.head(self.last_norm(x)))


@pytest.mark.parametrize(
    "take",
    [lambda y: y[:, -1], lambda y: y[:, -1:, :], lambda y: y[:, 2]],
    ids=["last", "last, kept", "third"],
)
def test_only_the_logits_that_are_used_are_computed(take: Callable[[Tensor], Tensor]) -> None:
    model = Head(take)
    traced = Traced(model, narrowed)
    for shape in ((2, 5, 8), (4, 9, 8)):
        x = torch.randn(shape)
        assert torch.allclose(traced(x), model(x), atol=1e-6)
    assert traced.captures == 1
    assert sizes_of(traced) == ["1", "1", "1"]
    assert traced.done == ("head on a part only",)


def test_a_part_whose_length_depends_on_the_input() -> None:
    model = Head(lambda y: y[:, y.shape[1] // 2 :])
    traced = Traced(model, narrowed)
    for shape in ((2, 5, 8), (4, 9, 8)):
        x = torch.randn(shape)
        assert torch.allclose(traced(x), model(x), atol=1e-6)
    assert len(traced.done) == 1


def test_views_between_are_passed() -> None:
    layer = nn.Linear(12, 24)

    def model(x: Tensor) -> Tensor:
        y = layer(x.cumsum(1)).view(*x.shape[:2], 4, 6).transpose(1, 2)
        return y[:, :, -1] * 2

    traced = Traced(model, narrowed)
    x = torch.randn(3, 5, 12)
    assert torch.allclose(traced(x), model(x), atol=1e-6)
    assert sizes_of(traced) == ["1"]


def test_what_cannot_be_done_in_part_stays_whole() -> None:
    def model(x: Tensor, w: Tensor) -> list[Tensor]:
        elsewhere = x @ w
        return [
            x.cumsum(1)[:, -1],
            (x @ w).softmax(1)[:, -1],
            (x @ w)[:, 0:] + 1,
            torch.dropout(x @ w, 0.5, True)[:, -1],
            elsewhere[:, -1] + elsewhere.sum(1),
            x.transpose(0, 1)[-1] + 1,
        ]

    traced = Traced(model, narrowed)
    x, w = torch.randn(3, 5, 8), torch.randn(8, 6)
    torch.manual_seed(1)
    expected = model(x, w)
    torch.manual_seed(1)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(traced(x, w), expected, strict=True))
    assert traced.done == ()


def test_a_language_model_of_which_only_the_last_logits_are_used() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=1, n_embd=32, n_head=4, vocab_size=211, attn_implementation="eager")
    model = GPT2LMHeadModel(config).eval()
    traced = Traced(lambda ids: model(ids).logits[:, -1], all_rewrites)
    for shape in ((2, 7), (3, 12)):
        ids = torch.randint(0, 211, shape)
        with torch.no_grad():
            assert torch.allclose(traced(ids), model(ids).logits[:, -1], rtol=1e-4, atol=1e-5)
    assert traced.captures == 1
    first, *others = sizes_of(traced)  # keys and values are of all positions, with the queries in one product
    assert first != "1"
    assert others == ["1", "1", "1", "1"]
    (attention,) = (node for node in traced.changed.graph.nodes if "flash" in str(node.target))
    assert attention.args[0].meta["val"].shape[2] == 1
