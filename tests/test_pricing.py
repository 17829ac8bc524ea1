"""Prices of ops: what is in the cache and what is not, what every part of a loop needs again, and what is not read at all.

The machine is made up, one cost at a time, so that a price has one reason.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

import neaptide
from neaptide import pricing, timing
from neaptide.graph import Graph
from neaptide.hardware import Machine
from neaptide.pricing import CACHED, in_parts, price, whole
from neaptide.probes import FAR, NEAR
from neaptide.runtime import chunking
from neaptide.search.chunk import Net
from neaptide.shapes import Concrete, shapes_of
from neaptide.workspaces import Spec
from tests.chunk.modules import Stack

aten = torch.ops.aten
NOTHING: Any = {f.name: 0.0 for f in fields(Machine) if f.name not in ("half", "calls", "each")}
FREE = Machine(**NOTHING)


def dense(*shape: int) -> Spec:
    return Spec(shape, torch.empty(shape, device="meta").stride(), torch.float32)


def test_a_product_that_moves_little_pays_nothing_for_what_is_not_in_the_cache() -> None:
    machine = replace(FREE, spill=1.0)
    small, large = dense(64, 64), dense(CACHED // 64, 64)
    assert whole(price(aten.mm.default, [small, small], [small], machine), machine) == 0
    moved = 2 * large.nbytes + small.nbytes
    assert whole(price(aten.mm.default, [large, small], [large], machine), machine) == moved - CACHED


def test_parts_that_stay_in_the_cache_are_cheaper_than_the_whole() -> None:
    machine = replace(FREE, stream=1.0)
    large = dense(CACHED)
    found = price(aten.add.Tensor, [large, large], [large], machine)
    assert whole(found, machine) == 3 * large.nbytes - CACHED
    assert in_parts(found, 16, 1 / 16, machine) == 0


def test_what_every_part_is_multiplied_by_costs_less_while_it_stays_in_the_cache() -> None:
    machine = replace(FREE, near=1.0, fetch=3.0)
    assert pricing.fetching(NEAR, machine) == NEAR
    assert pricing.fetching(FAR, machine) == 3 * FAR
    between = (NEAR + FAR) // 2
    assert pricing.fetching(between, machine) == pytest.approx(2 * between)


def test_a_batch_of_matrices_that_every_part_is_multiplied_by_has_a_price_of_its_own() -> None:
    machine = replace(FREE, near=1.0, fetch=1.0, heads=0.25)
    rows, weight = dense(4, 64, 64), dense(64, 64)
    assert price(aten.matmul.default, [rows, weight], [rows], machine, whole=[1]).fixed == weight.nbytes
    assert price(aten.matmul.default, [rows, rows], [rows], machine, whole=[1]).fixed == rows.nbytes / 4


def scattered(batch: int, side: int) -> Spec:
    """Matrices of which the numbers of one lie `batch` apart."""
    return Spec((batch, side, side), (1, side * batch, batch), torch.float32)


def test_scattered_matrices_cost_more_once_they_are_too_many_for_the_cache() -> None:
    machine = replace(FREE, far=1.0)
    few, many = scattered(4, 64), scattered(64, 256)
    assert whole(price(aten.bmm.default, [few, few], [dense(4, 64, 64)], machine), machine) == 0
    found = price(aten.bmm.default, [many, many], [dense(64, 256, 256)], machine)
    assert whole(found, machine) == 2 * many.nbytes - CACHED
    assert in_parts(found, 64, 1 / 64, machine) == 0


class Channels(nn.Module):
    """A product for each channel, of matrices that lie channel beside channel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = x.permute(2, 0, 1)
        return torch.bmm(factor, factor)


class Unread(nn.Module):
    """Scores added to what is not read, as diffusers writes attention out."""

    def __init__(self, beta: int) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[1]
        return torch.baddbmm(torch.empty(x.shape[0], size, size), x, x.transpose(1, 2), beta=self.beta, alpha=0.5)


def captured(model: nn.Module, x: torch.Tensor) -> tuple[Graph, Concrete]:
    handle = neaptide.compile(model)
    with torch.no_grad():
        handle(x)
    (unit,) = handle._session.units
    return unit.graph, shapes_of(unit.graph).at(unit.last)


def place(graph: Graph, target: Any) -> int:
    return next(i for i, op in enumerate(graph.ops) if op.target is target)


@pytest.mark.usefixtures("fresh_captures")
def test_parts_across_the_lines_of_scattered_matrices_are_no_nearer_than_the_whole() -> None:
    graph, shapes = captured(Channels(), torch.randn(128, 128, 64))
    op = place(graph, aten.bmm.default)
    machine = replace(FREE, far=1.0)
    costs = {
        timing.is_within_lines(graph, op, axis): timing.cost(shapes, op, machine, axis)
        for axis in Net(graph).axes(op)
        if all(axis.inputs)
    }
    assert in_parts(costs[True], 64, 1 / 64, machine) == 2 * 64 * 128 * 128 * 4


@pytest.mark.usefixtures("fresh_captures")
def test_what_a_product_is_added_to_costs_nothing_where_it_is_not_read() -> None:
    machine = replace(FREE, byte=1.0, spill=1.0)
    x = torch.randn(2, 96, 32)
    moved = {}
    for beta in (0, 1):
        graph, shapes = captured(Unread(beta), x)
        moved[beta] = timing.cost(shapes, place(graph, aten.baddbmm.default), machine).moved
    assert moved[0] == 4 * (2 * x.numel() + 2 * 96 * 96)
    assert moved[1] > moved[0]


@pytest.mark.usefixtures("fresh_captures")
@pytest.mark.parametrize(("costly", "is_in_parts"), [("stream", True), ("view", False)])
def test_what_fits_once_rewritten_runs_in_parts_where_that_is_clearly_faster(
    costly: str, is_in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Stack(2).eval(), torch.randn(1, 1024, 32)
    plain = neaptide.plan(model, x).peak
    monkeypatch.setattr(chunking, "this_machine", lambda _: replace(FREE, **{costly: 1.0}))
    made = neaptide.plan(model, x, budget=plain - 1)
    assert made.graphs[0].rewrites
    assert bool(made.graphs[0].regions) == is_in_parts
