"""The order of ops: never below the bound, lower where branches are written side by side, the same results, and left alone
where nothing can be gained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import neaptide
from neaptide.apply import reordered, straight, write_in_place
from neaptide.graph import Graph
from neaptide.memory import envelope
from neaptide.search.order import Orders, better_order


class Side(nn.Module):
    """Branches that are all made wide before any is made narrow again."""

    def __init__(self, branches: int = 6) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(16, 256) for _ in range(branches))
        self.narrow = nn.ModuleList(nn.Linear(256, 8) for _ in range(branches))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = [layer(x).relu() for layer in self.wide]
        return torch.cat([layer(h) for layer, h in zip(self.narrow, wide, strict=True)], -1)


class Line(nn.Module):
    """One after the other: there is only one order."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.LayerNorm(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + x


def captured(model: nn.Module, x: torch.Tensor) -> tuple[Graph, tuple[int, ...], neaptide.Handle]:
    handle = neaptide.compile(model.eval())
    with torch.no_grad():
        model(x)
    (unit,) = handle._session.units
    return unit.graph, unit.last, handle


def lowest_of_all(orders: Orders, dims: tuple[int, ...]) -> int:
    """By trying every order: for each set of ops that can have been done, the lowest peak on any way there."""
    held, hidden = orders.bytes_at(dims)
    count = len(orders.graph.ops)
    reached = {0: (0, 0)}
    for _ in range(count):
        onward: dict[int, tuple[int, int]] = {}
        for done, (peak, alive) in reached.items():
            for op in range(count):
                if not done >> op & 1 and not orders.after[op] & ~done:
                    higher = max(peak, alive + orders._here(op, done, held, hidden))
                    then = onward.get(done | 1 << op, (higher, 0))[0]
                    onward[done | 1 << op] = (min(higher, then), alive + orders._change(op, done, held))
        reached = onward
    ((peak, _),) = reached.values()
    return peak


def test_branches_written_side_by_side_are_done_one_after_the_other() -> None:
    graph, dims, _ = captured(Side(), torch.randn(64, 16))
    orders = Orders(graph)
    order = better_order(graph, dims)
    assert order is not None
    traced = envelope(write_in_place(straight(graph))).peak(dims)
    found = envelope(write_in_place(straight(reordered(graph, order)))).peak(dims)
    assert found <= 0.5 * traced
    assert found == orders.peak(order, dims)
    assert orders.bound(dims) <= found


def test_where_there_is_one_order_it_is_left_alone() -> None:
    graph, dims, _ = captured(Line(), torch.randn(64, 16))
    assert better_order(graph, dims) is None


@pytest.mark.parametrize("branches", [1, 2, 3])
def test_the_search_finds_what_trying_everything_finds(branches: int) -> None:
    graph, dims, _ = captured(Side(branches), torch.randn(64, 16))
    orders = Orders(graph)
    best = lowest_of_all(orders, dims)
    found = orders.lowest(dims, orders.bound(dims))
    assert found is not None
    assert orders.peak(found, dims) == best
    assert orders.bound(dims) <= best


def test_an_order_is_used_under_a_budget_with_the_same_bits() -> None:
    torch.manual_seed(0)
    model, x = Side().eval(), torch.randn(4096, 16)
    with torch.no_grad():
        expected = model(x)
        plain = neaptide.plan(model, x).peak
        least = neaptide.plan(model, x, budget=int(0.6 * plain), exact=True)
        handle = neaptide.compile(model, budget=int(0.6 * plain), exact=True)
        assert torch.equal(model(x), expected)
    assert least.peak <= 0.6 * plain
    assert any("another order" in note for graph in least.graphs for note in graph.notes)
    assert not any(graph.regions for graph in least.graphs)
    handle.release()


class Noisy(nn.Module):
    """Two random branches: their numbers must stay theirs."""

    def forward(self, x: torch.Tensor) -> Any:
        first, second = torch.rand_like(x), torch.rand_like(x)
        return (second * x).sum(-1), (first + x).sum(-1)


def test_random_ops_keep_their_order() -> None:
    graph, dims, _ = captured(Noisy(), torch.randn(64, 128))
    orders = Orders(graph)
    drawn = [i for i, op in enumerate(graph.ops) if op.random]
    assert len(drawn) == 2
    found = orders.lowest(dims, 0)
    assert found is not None
    assert found.index(drawn[0]) < found.index(drawn[1])
