"""A budget holds at every size, a smaller one never gives a higher peak, and what cannot be done is said."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

import neaptide
from neaptide import BudgetError, Plan
from tests.chunk.modules import Mlp, Stack

pytestmark = pytest.mark.usefixtures("fresh_captures")

X = torch.randn(1, 1024, 32)


def peaks_under(module: torch.nn.Module, budgets: list[int]) -> list[int]:
    found = []
    for budget in budgets:
        handle = neaptide.compile(module, budget=budget)
        with torch.no_grad():
            module(X)
        found.append(handle.plan.peak)
        handle.release()
    return found


def peak_of(module: torch.nn.Module, budget: str | int | None) -> int:
    return neaptide.plan(module, X, budget=budget).peak


def test_budgets_hold_from_the_whole_down_to_the_smallest_and_peaks_follow_them() -> None:
    module = Stack(2).eval()
    plain, least = peak_of(module, None), peak_of(module, "min")
    assert least < plain / 2
    budgets = [plain - (plain - least) * i // 4 for i in range(5)]
    peaks = peaks_under(module, budgets)
    assert all(peak <= budget for peak, budget in zip(peaks, budgets, strict=True))
    assert all(later <= earlier * 1.01 for earlier, later in itertools.pairwise(peaks))


def test_below_the_smallest_peak_the_error_names_it_and_it_works() -> None:
    module = Mlp().eval()
    with pytest.raises(BudgetError, match="smallest reachable") as caught:
        peaks_under(module, [1 << 18])
    smallest = caught.value.smallest
    neaptide.plan(module, X, budget=smallest)
    assert peak_of(module, "min") == pytest.approx(smallest, rel=0.01)


def test_what_fits_is_left_whole() -> None:
    made = neaptide.plan(Mlp(), X, budget="1GiB")
    assert not made.graphs[0].regions
    assert not made.graphs[0].rewrites


def test_a_plan_names_its_regions_and_goes_to_json_and_back() -> None:
    made = neaptide.plan(Stack(1), X, budget="min")
    region = made.graphs[0].regions[0]
    assert region.parts > 1
    assert "layers." in region.path
    assert region.path in made.explain()
    assert Plan.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_another_length_after_planning_is_neither_cut_short_nor_refused() -> None:
    module = Mlp().eval()
    plain = peak_of(module, None)
    handle = neaptide.compile(module, budget=plain * 3 // 4)
    with torch.no_grad():
        lengths = [module(torch.randn(1, n, 32)).shape[1] for n in (1024, 100, 900, 1100)]
    assert lengths == [1024, 100, 900, 1100]
    assert handle.stats.captures == 1


def test_one_capture_serves_lengths_from_128_to_8192() -> None:
    module = Stack(1, 16).eval()
    inputs = [torch.randn(1, length, 16) for length in (1000, 128, 3001, 8192, 129)]
    with torch.no_grad():
        expected = [module(x) if x.shape[1] < 4000 else None for x in inputs]
        handle = neaptide.compile(module, budget="24MiB")
        for x, plain in zip(inputs, expected, strict=True):
            found = handle(x)
            assert found.shape == x.shape
            assert handle.plan.peak <= 24 << 20
            if plain is not None:
                torch.testing.assert_close(found, plain)
    assert handle.stats.captures == 1
