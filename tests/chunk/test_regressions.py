"""What once went wrong in a model, as small as it can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import neaptide

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
