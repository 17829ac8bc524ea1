"""Closed forms against the batch size: lines, floors, the largest batch, and whether a method pays."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies
from torch import nn

import neaptide
from neaptide.batches import Line, Peaks, Scaling, Seconds, fit_peaks, fit_seconds, peaks_of, with_batch

lines = strategies.lists(
    strategies.builds(Line, strategies.integers(0, 10**6).map(float), strategies.integers(0, 10**4).map(float)),
    min_size=1,
    max_size=8,
)


@given(lines, strategies.integers(0, 10**7))
def test_the_largest_batch_fits_and_the_next_does_not(some: list[Line], limit: int) -> None:
    peaks = Peaks(tuple(some))
    found = peaks.largest(limit)
    if 0 < found < 1 << 31:
        assert peaks(found) <= limit + 1
        assert peaks(found + 1) > limit
    elif found == 0:
        assert peaks(1) > limit or limit == 0


@given(strategies.floats(0.01, 1.0), strategies.floats(0.001, 0.1), strategies.integers(2, 16))
def test_a_floor_and_a_line_are_found_again(floor: float, each: float, bend: int) -> None:
    truth = Seconds(floor, Line(floor - each * bend, each))
    batches = sorted({1, bend, bend + 1, 2 * bend, 4 * bend})
    made = fit_seconds(batches, [truth(b) for b in batches])
    for batch in (1, 3 * bend, 6 * bend):
        assert made(batch) == pytest.approx(truth(batch), rel=0.05)


def test_a_line_through_peaks() -> None:
    assert fit_peaks([1, 2, 4], [110, 120, 140])(10) == pytest.approx(200, abs=1)


def test_fewer_than_two_sizes_are_refused() -> None:
    with pytest.raises(neaptide.InputError, match="two batch sizes"):
        fit_seconds([4, 4], [1.0, 1.0])


def test_paying_depends_on_the_memory() -> None:
    plain = Scaling(Peaks((Line(100.0, 10.0),)), Seconds(0.0, Line(1.0, 0.1)))
    saving = Scaling(Peaks((Line(100.0, 2.0),)), Seconds(0.0, Line(1.0, 0.13)))
    assert saving.pays(plain, 120)
    assert saving.pays_by_rule(plain, 120)
    assert not saving.pays(plain, 100000)
    assert not saving.pays_by_rule(plain, 100000)


def test_the_peak_of_any_batch_follows_from_two_dry_runs() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)))
    x = torch.randn(512, 64)
    runs = [(b, neaptide.estimate(model, with_batch(x, 512, b)).timeline) for b in (512, 1024)]
    peaks = peaks_of(*runs)
    assert peaks is not None
    for batch in (700, 4096):
        assert peaks(batch) == pytest.approx(neaptide.estimate(model, with_batch(x, 512, batch)).peak, rel=0.003)
