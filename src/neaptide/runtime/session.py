"""One `compile`: its settings, its captured graphs, its ledger, and the choice of a rung for each graph and size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn

from neaptide.allocator import keep_pages
from neaptide.budget import Budget, parse_budget
from neaptide.errors import BudgetError, InputError
from neaptide.graph import Graph, Input
from neaptide.inner.swap import Inner, Lowering
from neaptide.memory import lent_at, timeline
from neaptide.plans import Plan
from neaptide.report import format_bytes
from neaptide.runtime.compose import make_plan
from neaptide.runtime.inference import Inference
from neaptide.runtime.ledger import Ledger
from neaptide.runtime.observe import Observation, Watch, watch
from neaptide.runtime.room import ANYTHING, Room
from neaptide.runtime.runner import Call, Rung, Unit
from neaptide.runtime.steps import Steps
from neaptide.runtime.training import Training
from neaptide.runtime.uncollected import uncollected
from neaptide.search import chain
from neaptide.search.chain import Link
from neaptide.writer import Emitted


@dataclass
class Stats:
    """What happened so far: graphs captured, calls, plans made and the seconds that took, times that memory ran out, stretches
    that a compiler made kernels of, and what steps at new sizes took that took more than any before."""

    captures: int = 0
    calls: int = 0
    plans: int = 0
    planning_seconds: float = 0.0
    recoveries: int = 0
    fused: int = 0
    observed: list[Observation] = field(default_factory=list)


def run(piece: Emitted, args: list[Any]) -> Sequence[Any]:
    """Run a piece of a program."""
    return piece.run(args)


class Session:
    """Everything that the graphs of one `compile` share."""

    def __init__(
        self,
        budget: Budget,
        modules: Sequence[nn.Module] = (),
        optimizer: torch.optim.Optimizer | None = None,
        reserve: int = 0,
        exact: bool = False,
        rewrite: bool = True,
        bounded: bool = False,
        offload: bool = True,
        inner: Inner = "auto",
    ) -> None:
        self.budget, self.exact, self.rewrite, self.offload = budget, exact, rewrite, offload
        self.bounded = bounded or budget.smallest or budget.limit is not None
        """Whether there is, or will be, a budget."""
        if self.bounded:
            keep_pages()
        self.lowering = Lowering(self._fused) if _fuses(inner, exact, modules) else None
        """Has pieces of programs compiled, where that was asked for."""
        self.ledger = Ledger(modules, optimizer, reserve)
        self.stats = Stats()
        self.units: list[Unit] = []
        self.fixed_sizes = False
        self.run: Callable[[Emitted, list[Any]], Sequence[Any]] = run
        self.steps = Steps(self.ledger)
        self._margin = 0
        """Bytes of the budget that turned out not to be there."""
        self._watch: Watch | None = None

    def _fused(self) -> None:
        self.stats.fused += 1

    def next_name(self) -> str:
        return f"graph {len(self.units)}"

    def add_inference(self, graph: Graph, described: Mapping[str, Input]) -> Inference:
        unit = Inference(graph, self, described)
        self._add(unit)
        return unit

    def add_training(self, graph: Graph, keeps: Mapping[str, frozenset[int]], described: Mapping[str, Input]) -> Training:
        unit = Training(graph, self, keeps, described)
        self._add(unit)
        return unit

    def _add(self, unit: Unit) -> None:
        self.units.append(unit)
        self.stats.captures += 1

    def arrives(self, unit: Unit) -> None:
        """A graph is called."""
        if self.steps.is_over(unit):
            self.begin_step()

    def called(self, call: Call, is_new: bool = False) -> None:
        """A graph is about to run, in a situation that was met before or not. A step that begins with a new one is watched."""
        self.stats.calls += 1
        if is_new and not self.steps.calls and self.budget.limit is not None and self.run is run:  # not on fakes
            self._watch = watch(call.unit.graph.device, call.dims)
        self.steps.calls.append(call)

    def ran(self) -> None:
        """A graph has run, to its end or back to its beginning."""
        if self._watch is not None:
            self._watch.look()

    def begin_step(self) -> None:
        """The graphs called from here on are those of one step."""
        self.steps.learn()
        self._compare()
        self.steps.begin()

    def _compare(self) -> None:
        """Beside what was planned: what a watched step took. What it took beyond that is not there to plan with."""
        watched, self._watch = self._watch, None
        seen = None if watched is None else watched.ends(self.steps.planned())
        if seen is not None:
            self.stats.observed.append(seen)
            if seen.excess:
                self._margin += seen.excess
                for unit in self.units:
                    unit.forget()

    def replan(self, budget: Budget) -> None:
        """Go on with another budget."""
        if budget != self.budget:
            self.budget, self._margin = budget, 0
        for unit in self.units:
            unit.forget()
        self.begin_step()

    def tighten(self) -> bool:
        """Memory ran out: from here on plan for less than what was planned just now, or as little as can be. False where there
        is no budget to tighten, or nothing was planned; a `BudgetError` where as little as can be was planned already."""
        if self.budget.limit is None or not self.steps.calls:
            return False
        resident = self.ledger.resident()
        there = sum(r.bytes for r in resident)
        planned = make_plan(self, resident).peak - there
        margin = self.budget.limit - there - int(planned * TIGHTER)
        if margin <= self._margin:
            call = self.steps.calls[-1]
            raise self._no(call, call.rung, there + planned)
        self._margin = margin
        self.replan(self.budget)
        self.stats.recoveries += 1
        return True

    def plan(self) -> Plan:
        """How the latest calls ran, and what a step of them takes, with what is resident now."""
        self.steps.learn()
        return make_plan(self, self.ledger.resident())

    def choose(self, call: Call, saved: int | None = None, before: int | None = None) -> Rung:
        """The rung for a call in a new situation: the one that recomputes least among those that fit the budget.

        Without a budget, among those that take no more than PyTorch's own choice of what to recompute; with "min", the lowest.
        What earlier calls have `saved`, and how many were `before`, are those of now unless they are told.
        """
        start = time.perf_counter()
        self.stats.plans += 1
        try:
            with uncollected():
                there = self.base(call) + (self.ledger.saved if saved is None else saved)
                return self._choose(call, there, self.steps.place(call.unit, before))
        finally:
            self.stats.planning_seconds += time.perf_counter() - start

    def _choose(self, call: Call, there: int, place: int | None) -> Rung:
        unit, dims = call.unit, call.dims
        takes = {rung: rung.take(dims) for rung in unit.rungs}
        lowest = min(unit.rungs, key=lambda rung: takes[rung].peak)
        room = self._room(call, there, place, takes[lowest].peak)
        if room is None:
            tightest = unit.tighter(dims, None)
            return tightest if tightest is not None and tightest.peak(dims) < takes[lowest].peak else lowest
        fitting = [rung for rung in unit.rungs if room.holds(takes[rung])]
        if fitting and self.lowering is not None and not self.bounded:  # light ops cost next to nothing in fused kernels
            return min(fitting, key=lambda rung: (takes[rung].kept, takes[rung].peak))
        if fitting:
            return min(fitting, key=lambda rung: (rung.reruns, takes[rung].peak))
        tighter = unit.tighter(dims, room)
        lowest = min(filter(None, (tighter, lowest)), key=lambda rung: room.level(rung.take(dims)))
        if self.budget.smallest or room.level(lowest.take(dims)) <= room.peak:
            return lowest
        smallest = there + room.level(lowest.take(dims))
        if self._margin and self.budget.limit is not None and smallest <= self.budget.limit:
            return lowest  # what ran out at one size need not at another: as little as can be is tried
        raise self._no(call, lowest, smallest)

    def _room(self, call: Call, there: int, place: int | None, lowest: int) -> Room | None:
        """What a call may take, and leave behind for those that follow it in a step; None for as little as can be.

        In the first step nobody knows what will follow: a graph that trains leaves behind as little as it can.
        """
        unit, dims = call.unit, call.dims
        if self.budget.limit is None and not self.budget.smallest:
            return Room(max(lowest, int(unit.customary.peak(dims) * AS_GOOD)), ANYTHING)
        links = self.steps.links(call, place)
        if self.budget.limit is None:
            return self._among(links, chain.lowest(links).peak) if len(links) > 1 else None
        room = self.budget.limit - self._margin - there
        if unit.graph.trains and not self.steps.informed:
            return Room(room, min(take.kept for take in unit.takes(dims)))
        return self._among(links, room) if links else Room(room, ANYTHING)

    def _among(self, links: Sequence[Link], room: int) -> Room:
        """What the first call of a chain may take so that all fit in a room, in the least time or as nearly as can be."""
        found = chain.fastest(links, room) or chain.lowest(links)
        spare = min((room - level for level in found.levels[1:]), default=ANYTHING)
        return Room(room, found.ways[0].kept + max(spare, 0), links[0].later, links[0].gone)

    def base(self, call: Call) -> int:
        """Bytes that are there before a graph runs: resident, and what it is given that no earlier call of the step made."""
        resident = self.ledger.resident()
        graph = call.unit.graph
        owned = any(r.kind in ("parameter", "buffer") for r in resident)
        lent = 0 if owned else lent_at(graph, call.dims, ("parameter", "buffer"))
        return sum(r.bytes for r in resident) + lent + self.steps.given(call)

    def _no(self, call: Call, rung: Rung, smallest: int) -> BudgetError:
        unit, dims = call.unit, call.dims
        limit = (self.budget.limit or 0) - self._margin
        held = [h for h in timeline(rung.usual, dims).held_by if h.kind not in ("parameter", "buffer")][:3]
        holders = ", ".join(f"{h.path or h.name} ({h.kind}, {format_bytes(h.bytes)})" for h in held)
        at = ", ".join(f"{s.origin}={d}" for s, d in zip(unit.graph.sizes.symbols, dims, strict=True))
        return BudgetError(
            f"needs {format_bytes(smallest)}, budget {format_bytes(limit)}; that is the smallest reachable peak at {at}"
            f" (held by {holders}). Try budget={smallest} or smaller inputs.",
            need=smallest,
            limit=limit,
            smallest=smallest,
        )


def _fuses(inner: Inner, exact: bool, modules: Sequence[nn.Module]) -> bool:
    """Whether inductor makes kernels of what runs: where it is asked for by name, and by itself on an accelerator alone."""
    if inner not in ("auto", "inductor", None):
        raise InputError(f'inner takes "auto", "inductor" or None, not {inner!r}')
    if inner == "inductor" and exact:
        raise InputError('inner="inductor" changes the last bits: pass exact=False, or inner=None')
    first = next((p for module in modules for p in module.parameters()), None)
    return inner == "inductor" or (inner == "auto" and not exact and first is not None and first.device.type != "cpu")


TIGHTER = 0.9
"""What is planned for when memory ran out, of what was planned for then beyond what is resident."""
AS_GOOD = 1.005
"""Peaks that differ by less than this are as good as each other: no measurement tells them apart."""

OPTIONS = ("budget", "reserve", "exact", "rewrite", "offload", "inner")


def session_for(options: Mapping[str, Any]) -> Session:
    """The session behind `torch.compile(..., backend="neaptide", options=options)`: one for each set of options."""
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise InputError(f"unknown option {unknown[0]!r} for the neaptide backend; there are {', '.join(OPTIONS)}")
    return _shared(tuple(sorted(options.items())))


@cache
def _shared(options: tuple[tuple[str, Any], ...]) -> Session:
    given = dict(options)
    budget = parse_budget(given.pop("budget", None))
    return Session(budget, **given)
