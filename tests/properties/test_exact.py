"""The oracle: no choice beats it, it is never better than what can be run, and what is chosen is nearly as good."""

from __future__ import annotations

import statistics

import pytest
from torch import nn

from neaptide.search.exact import optimum
from neaptide.search.recompute import Choice, Chooser, Cutter
from tests.properties.test_choices import every_choice, scene
from tests.properties.test_recompute import Block, Conv

SHARES = (0.6, 0.2)


@pytest.mark.parametrize("kind", [Block, Conv])
def test_no_choice_beats_the_oracle(kind: type[nn.Module]) -> None:
    at = scene(kind, (9, 17))
    best = every_choice(at)
    top, bottom = best[0][0], best[-1][0]
    for share in SHARES:
        target = int(bottom + share * (top - bottom))
        found = optimum(at, target)
        assert found is not None
        fastest = min(seconds for peak, seconds in best if peak <= target)
        assert found.seconds <= fastest * (1 + 1e-3)
        kept = at.play(Choice(found.keep))
        assert kept.peak > target or found.seconds <= kept.seconds * (1 + 1e-3)


def test_no_budget_no_recomputation_and_none_below_what_is_needed() -> None:
    at = scene(Conv, (9, 17))
    everything = at.play(Choice(at.judge.wanted))
    found = optimum(at, everything.peak)
    assert found is not None
    assert found.seconds == 0
    assert optimum(at, everything.peak // 10) is None


def test_what_is_chosen_is_nearly_as_fast_as_the_oracle() -> None:
    ratios = []
    for kind in (Block, Conv):
        at = scene(kind, (9, 17))
        chooser = Chooser(at, Cutter(at.judge), [])
        top, bottom = at.play(Choice(at.judge.wanted)).peak, chooser.lowest().peak
        for share in SHARES:
            target = int(bottom + share * (top - bottom))
            found, best = chooser.fastest(target), optimum(at, target)
            assert found is not None
            assert best is not None
            ratios.append(found.seconds / best.seconds if best.seconds else 1.0 if not found.seconds else 2.0)
    assert statistics.median(ratios) <= 1.1, ratios
