"""Figures of sizes that never ran: exact from dry runs, close from real steps, in every size that varies."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from neaptide.budget import Budget
from neaptide.eager.adapt import Adapter
from neaptide.eager.figures import Figures, figures_of
from neaptide.eager.predict import EXACT, DryRun, Fitted, Shapes, Variables, _difference
from neaptide.eager.probe import probe
from tests.eager.models import Pictures, Stack
from tests.workloads.models import make


def looked_at(adapter: Adapter, kwargs: dict[str, Any], args: tuple = ()) -> tuple[Shapes, Any]:
    tensors = [*args, *kwargs.values()]
    shapes = tuple(tuple(t.shape) for t in tensors if isinstance(t, torch.Tensor))
    return shapes, probe(adapter, (args, kwargs), None)


def t5_batch(draw: random.Random) -> dict[str, Any]:
    rows, source, target = 4, draw.randrange(60, 300), draw.randrange(60, 300)
    return {"input_ids": torch.ones(rows, source).long() * 5, "labels": torch.ones(rows, target).long() * 5, "use_cache": False}


def stack_batch(draw: random.Random) -> dict[str, Any]:
    return {"ids": torch.zeros(draw.randrange(2, 8), draw.randrange(50, 200)).long()}


def picture_batch(draw: random.Random) -> dict[str, Any]:
    side = draw.randrange(32, 80)
    return {"x": torch.zeros(draw.randrange(2, 6), 3, side, side)}


CASES = {
    "t5": (lambda: make("t5")[0], t5_batch),
    "stack": (lambda: Stack(), stack_batch),
    "pictures": (lambda: Pictures(), picture_batch),
}


@pytest.mark.parametrize("case", CASES)
def test_dry_runs_of_a_few_sizes_tell_all_others(case: str) -> None:
    make_model, batch = CASES[case]
    adapter, draw = Adapter(make_model(), Budget(smallest=True)), random.Random(1)
    known = DryRun()
    probes = 0
    for _ in range(12):
        shapes, record = looked_at(adapter, batch(draw))
        predicted = known.predict(shapes, False)
        if predicted is None:
            known.learn(shapes, record)
            probes += 1
        else:
            assert _difference(predicted, figures_of(record)) <= EXACT
    assert probes <= 7
    again = DryRun.from_json(known.to_json())
    shapes, _ = looked_at(adapter, batch(draw))
    assert again.predict(shapes, True) == known.predict(shapes, True)


@pytest.mark.parametrize("case", [case if case == "stack" else pytest.param(case, marks=pytest.mark.slow) for case in CASES])
def test_ten_steps_are_enough_for_a_fit(case: str) -> None:
    make_model, batch = CASES[case]
    adapter, draw = Adapter(make_model(), Budget(smallest=True)), random.Random(2)
    fitted = Fitted("to see how it does")
    checked = 0
    for step in range(30):
        shapes, record = looked_at(adapter, batch(draw))
        told = figures_of(record)
        predicted = fitted.predict(shapes, False)
        if predicted is None:
            if step < 10:
                fitted.learn(shapes, told)
            continue
        checked += 1
        assert _difference(Figures(predicted.calls), told) <= 0.02
    assert checked >= 5


def test_sizes_that_move_together_are_one() -> None:
    found = Variables.of([((4, 128), (4, 128), (3, 7)), ((4, 64), (4, 64), (3, 9))])
    assert found.groups == ((1, 3), (5,))
    assert found.values(((4, 32), (4, 32), (3, 8))) == (32, 8)
    assert found.values(((4, 32), (4, 33), (3, 8))) is None
    assert found.values(((5, 32), (5, 32), (3, 8))) is None


def test_a_size_that_never_varied_before_is_looked_at() -> None:
    adapter = Adapter(Stack(), Budget(smallest=True))
    known = DryRun()
    for length in (16, 24, 40, 32):
        known.learn(*looked_at(adapter, {"ids": torch.zeros(2, length).long()}))
    assert known.predict(((2, 50),), False) is not None
    assert known.predict(((3, 50),), False) is None
