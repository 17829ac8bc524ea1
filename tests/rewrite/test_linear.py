"""Linear layers and batched products are whole again, and not a bit of their results is another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from neaptide.trace import module_path
from tests.rewrite.traced import Traced, counts, whole

pytestmark = pytest.mark.usefixtures("fresh_captures")

DTYPES = [torch.float32, torch.bfloat16]
LEADS = [(1, 7), (3, 5), (3, 5, 2)]


def both(model: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Traced, tuple[Any, ...], tuple[Any, ...]]:
    """A model's graph made whole, its results, and those of the graph as it was."""
    made = Traced(model, whole)
    return made, tuple(tree_leaves(made(*inputs))), made.same


def same_bits(got: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


class Conv1D(nn.Module):
    """As in transformers: the weight lies the other way round."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(depth, width)), nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return made.view(*x.size()[:-1], self.weight.shape[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lead", LEADS)
def test_linear_layers_are_one_op_each_with_the_same_bits(lead: tuple[int, ...], dtype: torch.dtype) -> None:
    layers = [nn.Linear(33, 17), nn.Linear(33, 17, bias=False), Conv1D(17, 33), nn.Linear(33, 64)]
    model = nn.ModuleList(layers).to(dtype)
    traced, got, expected = both(lambda x: [layer(x) for layer in model], torch.randn(*lead, 33, dtype=dtype))
    assert same_bits(got, expected)
    assert counts(traced.changed) == {"linear.default": 4, "t.default": 1}


def test_one_capture_serves_every_size() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8, bias=False))
    traced = Traced(model, whole)
    for shape in ((2, 5, 8), (4, 9, 8)):
        x = torch.randn(shape)
        assert torch.allclose(traced(x), model(x), atol=1e-6)
    assert traced.captures == 1
    assert counts(traced.changed).get("linear.default") == 2


def test_input_that_is_not_contiguous_keeps_the_kernel_it_had() -> None:
    layers = nn.ModuleList([nn.Linear(16, 8), nn.Linear(16, 8, bias=False)])

    def model(x: torch.Tensor) -> list[torch.Tensor]:
        turned = [x[..., :16].transpose(0, 1), x[:, :, ::2], x[..., :16]]
        return [layer(y) for layer in layers for y in turned]

    _, got, expected = both(model, torch.randn(6, 5, 32))
    assert same_bits(got, expected)


def test_conv1d_on_a_part_of_the_features_is_left_as_it_is() -> None:
    layer = Conv1D(8, 16)
    traced, got, expected = both(lambda x: layer(x[..., :16]), torch.randn(3, 5, 32))
    assert same_bits(got, expected)
    assert "linear.default" not in counts(traced.changed)


@pytest.mark.parametrize("scaled", [{"beta": 2.0}, {"alpha": 0.5}])
def test_a_scaled_product_is_left_as_it_is(scaled: dict[str, float]) -> None:
    weight, bias = torch.randn(16, 8), torch.randn(8)

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, x.view(-1, 16), weight, **scaled).view(*x.shape[:-1], 8)

    traced, got, expected = both(model, torch.randn(3, 5, 16))
    assert same_bits(got, expected)
    assert counts(traced.changed).get("addmm.default") == 1


def test_a_product_that_is_used_flat_is_left_as_it_is() -> None:
    layer = nn.Linear(16, 8)

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flat = layer(x.view(-1, 16))
        return flat.view(*x.shape[:-1], 8), flat.relu()

    traced = Traced(model, whole)
    traced(torch.randn(3, 5, 16))
    assert counts(traced.changed).get("addmm.default") == 1


def test_what_is_viewed_behind_a_linear_layer_shares_its_memory() -> None:
    layer = nn.Linear(16, 24)

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = layer(x).view(*x.shape[:-1], 3, 8).permute(2, 0, 1, 3).unbind(0)
        return q + 1, k.transpose(0, 1) * 2, v.chunk(2, -1)[1].relu()

    x = torch.randn(3, 5, 16)
    for got, expected in zip(Traced(model, whole)(x), model(x), strict=True):
        assert torch.allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 3, 5, 8), (3, 4, 7, 9), (2, 3, 2, 5, 8)])
def test_a_batched_product_is_one_op_with_the_same_bits(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a, b = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    traced, got, expected = both(lambda a, b: a @ b.transpose(-1, -2), a, b)
    assert same_bits(got, expected)
    assert counts(traced.changed).get("matmul.default") == 1
    assert not {"bmm.default", "expand.default", "view.default"} & counts(traced.changed).keys()


def test_a_copy_that_a_product_needs_stays_in_the_graph() -> None:
    a, b = torch.randn(2, 7, 3, 8), torch.randn(2, 5, 3, 8)
    traced, got, expected = both(lambda a, b: a.transpose(1, 2) @ b.permute(0, 2, 3, 1), a, b)
    assert same_bits(got, expected)
    assert counts(traced.changed).get("clone.default") == traced.before["clone.default"] == 2


def test_an_operand_that_is_broadcast_is_copied_in_the_graph_as_before() -> None:
    a, b = torch.randn(2, 3, 5, 8), torch.randn(1, 3, 8, 4)
    traced, got, expected = both(lambda a, b: a @ b, a, b)
    assert same_bits(got, expected)
    assert counts(traced.changed).get("clone.default") == traced.before["clone.default"] == 1


def test_new_ops_know_their_place_in_the_model() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    traced = Traced(model, whole)
    traced(torch.randn(3, 5, 8))
    made = [n for n in traced.changed.graph.nodes if n.target is torch.ops.aten.linear.default]
    assert [module_path(node) for node in made] == ["0", "2"]
