"""Advice: rows for every method, the best inside the budget, and an honest no."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import neaptide
from neaptide.advice import Advice, Row
from neaptide.advising import advise
from tests.test_methods import WIDTH, Block, loss


@pytest.fixture(scope="module")
def advice() -> Advice:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    return advise(model, torch.randn(4, 512, WIDTH), optimizer=optimizer, loss=loss)


def test_every_method_has_a_row_and_says_what_it_takes(advice: Advice) -> None:
    names = [row.method for row in advice.rows]
    assert names[0] == "plain"
    assert {"checkpoint blocks", "int8 activations", "accumulate 2 x 2", "neaptide.compile"} <= set(names)
    for row in advice.rows:
        assert row.peak > 0
        assert row.seconds > 0
    assert advice.best is not None
    assert not advice.best.lossy


def test_what_saves_memory_saves_memory(advice: Advice) -> None:
    by_name = {row.method: row for row in advice.rows}
    assert by_name["checkpoint blocks"].peak < 0.8 * advice.plain.peak
    assert by_name["checkpoint blocks"].seconds > advice.plain.seconds
    assert by_name["int8 activations"].peak < advice.plain.peak
    largest = by_name["checkpoint blocks"].largest(advice.plain.peak)
    assert largest is not None
    assert largest > 4


def test_a_budget_decides(advice: Advice) -> None:
    tight = Advice(advice.rows, min(row.peak for row in advice.rows), "cpu")
    assert tight.best is not None
    assert tight.best.peak <= (tight.budget or 0)
    none = Advice(advice.rows, 1, "cpu")
    assert none.best is None
    assert "nothing fits" in str(none)


def test_it_is_json_and_text(advice: Advice) -> None:
    told = json.loads(json.dumps(advice.to_json()))
    assert told["best"] == advice.best.method if advice.best else None
    assert "samples/s" in str(advice)


def test_of_exact_rows_the_fastest_unless_lossy_ones_are_allowed() -> None:
    rows = (Row("plain", 100, 2.0, 8), Row("bf16", 60, 1.0, 8, lossy=True))
    assert Advice(rows, 100, "cpu").best is rows[0]
    assert Advice(rows, 100, "cpu", allow_lossy=True).best is rows[1]
    assert [row.method for row in Advice(rows, 100, "cpu").front] == ["bf16"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"budget": -1}, "budget"),
        ({"device": "abacus"}, "h100"),
        ({"ranks": 0}, "ranks"),
        ({"measured": -2.0}, "seconds"),
    ],
)
def test_bad_input_is_one_clear_line(given: dict, said: str) -> None:
    with pytest.raises((neaptide.InputError, ValueError), match=said):
        advise(nn.Linear(2, 2), torch.ones(3, 2), **given)


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(neaptide.InputError, match="no parameters"):
        advise(nn.ReLU(), torch.ones(3))


def test_for_a_card_that_is_not_here() -> None:
    model = nn.Sequential(*(Block() for _ in range(2)))
    here, there = (advise(model, torch.randn(2, 256, WIDTH), device=device, loss=loss) for device in (None, "h100"))
    assert there.plain.seconds < here.plain.seconds
    assert there.plain.peak == here.plain.peak
