"""Advice: rows for every method, the best inside the budget, and an honest no."""

from __future__ import annotations

import json
from pathlib import Path

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
    expected = {"checkpoint blocks", "int8 activations", "accumulate 2 x 2", "AdamW8bit (torchao)", "neaptide.compile"}
    assert expected <= set(names)
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


class WithLoss(nn.Module):
    """A model that returns its loss, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.blocks(x).square().mean()}


@pytest.fixture(scope="module")
def with_loss() -> tuple[nn.Module, torch.Tensor, Advice]:
    torch.manual_seed(0)
    model, x = WithLoss().train(), torch.randn(8, 512, WIDTH)
    plain = neaptide.estimate(model, x).peak
    return model, x, advise(model, x, budget=int(0.7 * plain))


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(3)
    model(x)["loss"].backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_a_batch_in_parts_is_turned_on_and_takes_what_was_said(with_loss: tuple[nn.Module, torch.Tensor, Advice]) -> None:
    model, x, advice = with_loss
    row = next(row for row in advice.rows if row.method == "accumulate 4 x 2")
    assert row.peak < 0.6 * advice.plain.peak
    dropouts = {module: module.p for module in model.modules() if isinstance(module, nn.Dropout)}
    for module in dropouts:
        module.p = 0.0
    expected = step(model, x)
    handle = advice.apply("accumulate 4 x 2")
    for ours, theirs in zip(step(model, x), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-7)
    for module, p in dropouts.items():
        module.p = p
    step(model, x)
    model.zero_grad()
    others = neaptide.measure(lambda: None).peak - sum(p.nbytes for p in model.parameters()) - x.nbytes
    taken = neaptide.measure(lambda: model(x)["loss"].backward()).peak - others
    handle.release()
    assert row.peak == pytest.approx(taken, rel=0.03)


def test_adapt_has_a_row_inside_the_budget_and_is_turned_on(with_loss: tuple[nn.Module, torch.Tensor, Advice]) -> None:
    model, x, advice = with_loss
    row = next(row for row in advice.rows if row.method == "neaptide.adapt")
    blocks = next(row for row in advice.rows if row.method == "checkpoint blocks")
    assert row.peak <= (advice.budget or 0)
    assert advice.plain.seconds < row.seconds <= blocks.seconds
    handle = advice.apply("neaptide.adapt")
    step(model, x)
    step(model, x)
    assert handle.plan.peak <= (advice.budget or 0)
    handle.release()


def test_what_is_not_ours_is_code_to_paste(advice: Advice) -> None:
    with pytest.raises(neaptide.InputError, match="torchao"):
        advice.apply("AdamW8bit (torchao)")


def test_a_page_shows_every_row(advice: Advice, tmp_path: Path) -> None:
    page = advice.write_html(tmp_path / "advice.html").read_text()
    assert all(row.method in page for row in advice.rows)
