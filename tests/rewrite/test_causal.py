"""A mask that hides only what comes later, or nothing, is left to the kernel; any other stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import neaptide

pytestmark = pytest.mark.usefixtures("fresh_captures")


def attend(visible: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[-2])
        return F.scaled_dot_product_attention(x, x, x, attn_mask=visible(place[:, None], place))

    return call


def rewrites_of(call: Callable[[torch.Tensor], torch.Tensor], length: int) -> tuple[str, ...]:
    x = torch.randn(1, 2, length, 16)
    handle = neaptide.compile(call, budget="min")
    with torch.no_grad():
        torch.testing.assert_close(handle(x), call(x), rtol=1e-5, atol=1e-5)
    return handle.plan.graphs[0].rewrites


def test_a_causal_mask_is_left_to_the_kernel() -> None:
    (said,) = rewrites_of(attend(lambda row, column: column <= row), 700)
    assert "causal" in said


def test_a_mask_that_hides_nothing_is_left_out() -> None:
    (said,) = rewrites_of(attend(lambda row, column: column - row < row + column + 1), 700)
    assert "empty" in said


@pytest.mark.parametrize("window", [4, 40, 600])
def test_a_window_is_no_causal_mask_however_wide(window: int) -> None:
    assert not rewrites_of(attend(lambda row, column: (column <= row) & (column > row - window)), 700)


def test_a_mask_made_of_data_stays() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=(x[:, :, None, :, 0] > -100).expand(-1, -1, x.shape[-2], -1))

    assert not rewrites_of(call, 700)
