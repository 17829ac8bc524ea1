"""Training inside a budget: held at every size, lower with each lower budget, the same bits, and an honest no."""

from __future__ import annotations

import copy
import itertools
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import neaptide
from neaptide import BudgetError

WIDTH = 64


class Block(nn.Module):
    """Attention written out, dropout, an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        x = x + F.dropout((q @ k.transpose(-1, -2) / 8).softmax(-1), 0.1) @ v
        return x + self.down(F.gelu(self.up(x)))


class Stack(nn.Module):
    """Blocks, and a loss; between some of them the graph breaks."""

    def __init__(self, blocks: int = 3, breaks: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            if self.breaks:
                torch._dynamo.graph_break()  # in a loop: each block is called by itself, one graph for all of them
        return x.square().mean()


X = torch.randn(2, 192, WIDTH)


@cache
def ends(breaks: bool = False) -> tuple[int, int]:
    """The plain peak and the smallest reachable."""
    model = Stack(breaks=breaks)
    return neaptide.plan(model, X, train=True).peak, neaptide.plan(model, X, budget="min", train=True).peak


def peaks(model: Stack, shares: list[float]) -> list[tuple[int, int]]:
    """Budgets and planned peaks; shares are of the way from the smallest reachable to the plain peak."""
    top, bottom = ends(model.breaks)
    budgets = [int(bottom + share * (top - bottom)) for share in shares]
    return [(budget, neaptide.plan(model, X, budget=budget, train=True).peak) for budget in budgets]


def test_every_budget_is_held_and_a_lower_one_never_takes_more() -> None:
    found = peaks(Stack(), [0.6, 0.02])
    assert all(peak <= budget for budget, peak in found)
    assert all(after <= before for (_, before), (_, after) in itertools.pairwise(found))


def test_a_lot_less_is_reachable_and_below_that_is_an_honest_no() -> None:
    top, bottom = ends()
    assert bottom < 0.5 * top
    with pytest.raises(BudgetError) as no:
        neaptide.plan(Stack(), X, budget=int(0.9 * bottom), train=True)
    assert no.value.smallest == pytest.approx(bottom, rel=0.02)


@pytest.mark.parametrize("share", [pytest.param(0.5, marks=pytest.mark.slow), 0.1])
def test_gradients_are_those_of_the_plain_model_at_every_size(share: float) -> None:
    torch.manual_seed(0)
    model = Stack()
    plain = copy.deepcopy(model)
    top, bottom = ends()
    handle = neaptide.compile(model, budget=int(bottom + share * (top - bottom)))
    for length in (192, 160, 192, 96, 190):
        part = X[:, :length].clone()
        for each in (plain, model):
            each.zero_grad()
            torch.manual_seed(length)
            each(part).backward()
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert mine.grad is not None
            assert torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]
    assert handle.stats.captures == 1
    handle.release()


def test_a_step_of_several_calls_is_inside_the_budget_as_a_whole() -> None:
    top, bottom = ends(breaks=True)
    assert bottom < 0.7 * top
    assert all(peak <= budget for budget, peak in peaks(Stack(breaks=True), [0.2]))


def test_gradients_that_are_there_already_count() -> None:
    torch.manual_seed(0)
    model = Stack()
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    budget = ends()[1] + 3 * gradients
    handle = neaptide.compile(model, budget=budget)
    for _ in range(2):
        model(X).backward()
        model.zero_grad()
    model(X).backward()
    first = handle.plan.graphs[0].peak
    model(X).backward()
    assert handle.plan.graphs[0].peak <= first
    assert handle.plan.peak <= budget
    handle.release()


class Piece(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)) for _ in range(6)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


class Broken(nn.Module):
    """Four pieces with breaks between them; all have the same code, so that few graphs are called often."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pieces, self.loss = nn.ModuleList(Piece(width) for _ in range(4)), Mean()
        self.held: list[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        for number, piece in enumerate(self.pieces):
            if number:
                torch._dynamo.graph_break()
            x = piece(x)
            if self.held is not None:
                self.held.append(x)
        return self.loss(x)


@pytest.mark.parametrize("holds", [False, True])
def test_what_a_piece_hands_on_counts_as_long_as_somebody_holds_it(holds: bool) -> None:
    model, x = Broken(128), torch.randn(8192, 128)
    handle = neaptide.compile(model, budget="min", offload=False)

    def step() -> None:
        model.held = [] if holds else None
        model(x).backward()

    for _ in range(3):
        step()
        model.zero_grad()
    model.held = None
    before = neaptide.measure(lambda: None).peak - model_bytes(model) - x.nbytes
    taken = neaptide.measure(step).peak - before
    assert taken == pytest.approx(handle.plan.peak, rel=0.03)


@pytest.mark.parametrize(("rows", "width"), [pytest.param(4096, 256, marks=pytest.mark.slow), (128, 768)])
def test_pieces_that_share_a_graph_are_inside_the_budget_together_as_measured(rows: int, width: int) -> None:
    """With few rows gradients are most of it: those of later pieces are there when an earlier one's backward runs."""
    model, x = Broken(width), torch.randn(rows, width)
    plain = copy.deepcopy(model)
    handle = neaptide.compile(model, budget="min", offload=False)
    before = neaptide.measure(lambda: None).peak - model_bytes(model) - x.nbytes  # what else is alive, here and in other tests

    def taken(budget: int | str) -> tuple[int, int]:
        handle.budget = budget
        for _ in range(2):
            model(x).backward()
            model.zero_grad()
        peak = neaptide.measure(lambda: model(x).backward()).peak - before
        model.zero_grad()
        return peak, handle.plan.peak

    (low, least), (high, most) = taken("min"), taken(1 << 40)
    assert (low, high) == (
        pytest.approx(least, rel=0.03),
        pytest.approx(most, rel=0.03),
    )
    assert least <= (0.7 if rows > width else 1) * most
    assert handle.stats.captures < len(handle.plan.graphs)
    for budget in ((least + most) // 2, least):
        assert taken(budget)[0] <= 1.02 * budget
    with pytest.raises(BudgetError) as no:
        taken(int(0.96 * least))
    assert no.value.smallest == pytest.approx(least, rel=0.03)
    handle.budget = "min"
    for each in (model, plain):
        each.zero_grad()
        torch.manual_seed(3)
        each(x).backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]


def model_bytes(model: nn.Module) -> int:
    return sum(p.nbytes for p in model.parameters())
