"""What once went wrong in a model, as small as it can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import neaptide
from neaptide.rounds import group_norm_part
from neaptide.search.chunk import Net
from neaptide.shapes import shapes_of

pytestmark = pytest.mark.usefixtures("fresh_captures")


def same_in_parts(module: Callable[..., Any], *inputs: torch.Tensor, regions: int = 1) -> neaptide.Handle:
    """Held against the plain results; at least so many regions ran in parts."""
    with torch.no_grad():
        expected = module(*inputs)
        handle = neaptide.compile(module, budget="min")
        made = handle(*inputs)
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)
    assert sum(len(graph.regions) for graph in handle.plan.graphs) >= regions
    return handle


def test_what_is_made_again_in_a_loop_may_be_read_along_two_dims() -> None:
    """DeBERTa's relative positions: rows of them for one term of the scores, columns for another."""

    def scores(x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[0])
        apart = (place[:, None] - place).clamp(-7, 9)
        return ((x @ x.t()).tanh() + apart + (apart * 2).t()).softmax(-1) @ x

    same_in_parts(scores, torch.randn(640, 16))


def test_what_is_made_again_in_a_loop_may_be_read_whole_as_well() -> None:
    def scores(x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[0])
        apart = (place[:, None] - place).clamp(-7, 9) / 8
        return ((x @ x.t()).tanh() + apart).softmax(-1) @ apart @ x

    same_in_parts(scores, torch.randn(640, 16))


def test_two_results_never_take_over_the_same_memory() -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sums = x.cumsum(0)
        wide = sums.repeat(1, 32).tanh()
        return wide.view(-1, 32, 16).sum(1) + sums, wide.view(-1, 32, 16).amax(1) - sums

    same_in_parts(both, torch.randn(640, 16))


def test_what_is_read_again_later_keeps_its_memory() -> None:
    """A small thing of which a large one is made for each use: nothing may be written over it in between."""

    def twice(x: torch.Tensor) -> torch.Tensor:
        place = x.cumsum(0)[:, :1].contiguous()
        wide = (x @ x.t()).tanh() + place * torch.ones(640)
        first = wide.softmax(-1).amax(-1, keepdim=True) + place
        again = (x @ x.t()).sin() * first + place * torch.ones(640)
        return again.softmax(-1) @ x

    same_in_parts(twice, torch.randn(640, 16))


def test_images_run_one_by_one_through_convolutions_and_products() -> None:
    """Neither the sizes of a convolution's result nor the rows that a product needs at least keep images together."""
    patch, wide, narrow = torch.nn.Conv2d(3, 16, 4, 4), torch.nn.Linear(16, 128), torch.nn.Linear(128, 16)

    def block(images: torch.Tensor) -> torch.Tensor:
        return narrow(wide(patch(images).permute(0, 2, 3, 1)).relu()).permute(0, 3, 1, 2)

    handle = same_in_parts(block, torch.randn(3, 3, 96, 64))
    (region,) = handle.plan.graphs[0].regions
    assert (region.extent, region.rows) == (3, 1)


def test_a_norm_of_groups_takes_parts_that_lie_otherwise_than_the_whole() -> None:
    """One image, channels last, out of several: the stride of the batch is no longer that of the layout."""
    image = torch.randn(16 * 16 * 64).as_strided((1, 64, 16, 16), (64, 1, 1024, 64))
    norm = torch.nn.GroupNorm(8, 64)
    made, *_ = group_norm_part(image, norm.weight, norm.bias, 1, 64, 256, 8, norm.eps)
    torch.testing.assert_close(made, norm(image))


def test_a_norm_by_known_statistics_runs_in_parts() -> None:
    """Two of its results are empty: neither parts nor the same in every part, and yet there to be dropped."""
    conv, norm = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32).eval()
    same_in_parts(lambda images: norm(conv(images)).relu().sum(1), torch.randn(3, 3, 48, 48))


def test_what_nothing_needs_does_no_harm_in_a_region() -> None:
    """Mamba: of a result of several parts one is never read, and what leads to it alone goes."""

    def scores(x: torch.Tensor) -> torch.Tensor:
        idle = x.sin().cumsum(0)
        wide = (x @ x.t()).tanh()
        (wide + (idle @ x.t()).relu()).exp()
        return wide.softmax(-1) @ x

    same_in_parts(scores, torch.randn(640, 16))


def test_a_product_over_what_is_cut_is_added_up_beside_the_stream() -> None:
    """Triangle multiplication: both factors are made of a norm that the gate reads too; neither need ever be whole."""

    class Triangle(torch.nn.Module):
        def __init__(self, incoming: bool) -> None:
            super().__init__()
            self.norm, self.norm_out = torch.nn.LayerNorm(32), torch.nn.LayerNorm(32)
            self.left, self.right, self.gate = (torch.nn.Linear(32, 32) for _ in range(3))
            self.equation = "kic,kjc->ijc" if incoming else "ikc,jkc->ijc"

        def forward(self, pair: torch.Tensor) -> torch.Tensor:
            x = self.norm(pair)
            mixed = torch.einsum(self.equation, self.left(x).tanh(), self.right(x).tanh())
            return pair + self.gate(x).sigmoid() * self.norm_out(mixed)

    stack = torch.nn.Sequential(*(Triangle(bool(i % 2)) for i in range(4)))
    pair = torch.randn(160, 160, 32)
    handle = same_in_parts(stack, pair, regions=4)
    assert "put together into bmm" in handle.plan.explain()
    whole = pair.numel() * 4
    assert handle.plan.peak < 3.5 * whole  # what came in, the stream, what is added up, and parts


def test_the_mask_of_a_part_of_causal_attention_is_counted() -> None:
    """Rows in the middle of the triangle come with a mask of their own, as wide as the keys are many."""
    given = [torch.randn(1, 2, 2048, 16) for _ in range(3)]
    handle = neaptide.compile(lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    with torch.no_grad():
        handle(*given)
    graph = handle._session.units[0].graph
    (op,) = (i for i, op in enumerate(graph.ops) if "attention" in str(op.target))
    rows = next(axis for axis in Net(graph).axes(op) if axis.beside is not None)
    shapes = shapes_of(graph).at([symbol.hint for symbol in graph.sizes.symbols])
    taken, mask = shapes.part_workspace(op, rows, 512, 2048), 512 * 2048 * 4
    assert mask <= taken <= mask + shapes.part_workspace(op, rows, 2048, 2048) - 2048 * 2048 * 4


def test_copies_of_scattered_matrices_are_counted_where_their_products_are_added_up() -> None:
    """Parts of a batch of matrices that are dense in neither direction are made dense, all of a part's at once."""
    pair = torch.randn(96, 96, 32)
    handle = neaptide.compile(lambda x: torch.einsum("ikc,jkc->ijc", x.tanh(), x.sin()))
    with torch.no_grad():
        handle(pair)
    graph = handle._session.units[0].graph
    (op,) = (i for i, op in enumerate(graph.ops) if op.target is torch.ops.aten.bmm.default)
    summed = next(axis for axis in Net(graph).axes(op) if axis.outputs == ("sum",))
    shapes = shapes_of(graph).at([symbol.hint for symbol in graph.sizes.symbols])
    copies = 2 * 16 * 96 * 32 * 4
    assert shapes.part_workspace(op, summed, 16, 96) == copies


def test_a_graph_of_nothing_but_sizes_runs_as_it_is() -> None:
    def inner(n: int, m: int) -> tuple[int, int]:
        torch._dynamo.graph_break()
        return n, m

    def shaped(x: torch.Tensor) -> torch.Tensor:
        n, m = inner(x.shape[0], x.shape[1])
        torch._dynamo.graph_break()
        return x.sum() * n + m

    handle = neaptide.compile(shaped, budget="min")
    with torch.no_grad():
        for size in (6, 9):
            x = torch.randn(size, 4)
            assert torch.allclose(handle(x), shaped(x))
    assert any(not unit.graph.ops for unit in handle._session.units)
