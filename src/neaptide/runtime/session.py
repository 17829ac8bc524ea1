"""One `compile`: its settings, its captured graphs, its ledger, and the choice of a rung for each graph and size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from neaptide.budget import Budget, parse_budget
from neaptide.emit import Emitted
from neaptide.errors import BudgetError, InputError
from neaptide.graph import Graph, Input
from neaptide.memory import lent_at, timeline
from neaptide.plans import Plan
from neaptide.report import format_bytes
from neaptide.runtime.compose import make_plan
from neaptide.runtime.inference import Inference
from neaptide.runtime.ledger import Ledger
from neaptide.runtime.room import ANYTHING, Room
from neaptide.runtime.runner import Dims, Rung, Unit
from neaptide.runtime.training import Training


@dataclass
class Stats:
    """What happened so far: graphs captured, calls, plans made and the seconds that took, and times that memory ran out."""

    captures: int = 0
    calls: int = 0
    plans: int = 0
    planning_seconds: float = 0.0
    recoveries: int = 0


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
    ) -> None:
        self.budget, self.exact, self.rewrite, self.offload = budget, exact, rewrite, offload
        self.bounded = bounded or budget.smallest or budget.limit is not None
        """Whether there is, or will be, a budget."""
        self.ledger = Ledger(modules, optimizer, reserve)
        self.stats = Stats()
        self.units: list[Unit] = []
        self.fixed_sizes = False
        self.run: Callable[[Emitted, list[Any]], Sequence[Any]] = run
        self._turned = False
        self._margin = 0
        """Bytes of the budget that turned out not to be there."""
        self._calls: list[tuple[Unit, Dims]] = []
        self._sequence: list[tuple[Unit, Dims]] | None = None
        """The calls of this step so far, and those of the last whole step that trained; None before the first."""

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
        """A graph is called. A step begins anew where all that was saved has been consumed, or a graph recurs."""
        again = any(each is unit for each, _ in self._calls)
        nothing_saved = (again or self._turned) and not self.ledger.saved
        if nothing_saved or (again and not unit.graph.trains):
            self.begin_step()

    def called(self, unit: Unit) -> None:
        """A graph is about to run."""
        self.stats.calls += 1
        self._calls.append((unit, unit.last))

    @property
    def recent(self) -> list[Unit]:
        """The graphs that this step has called so far."""
        return list(dict.fromkeys(unit for unit, _ in self._calls))

    @property
    def informed(self) -> bool:
        """Whether a whole step has shown which graphs follow each other."""
        return self._sequence is not None

    def turned(self) -> None:
        """A backward runs."""
        self._turned = True

    def begin_step(self) -> None:
        """The graphs called from here on are those of one step."""
        if self._turned:
            self._sequence = list(self._calls)
        self._turned = False
        self._calls.clear()

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
        if self.budget.limit is None or not self._calls:
            return False
        resident = self.ledger.resident()
        there = sum(r.bytes for r in resident)
        planned = make_plan(self, resident).peak - there
        margin = self.budget.limit - there - int(planned * TIGHTER)
        if margin <= self._margin:
            unit, dims = self._calls[-1]
            raise self._no(unit, unit.current or unit.rungs[-1], dims, there + planned)
        self._margin = margin
        self.replan(self.budget)
        self.stats.recoveries += 1
        return True

    def plan(self) -> Plan:
        """How the latest calls ran, and what a step of them takes, with what is resident now."""
        return make_plan(self, self.ledger.resident())

    def choose(self, unit: Unit, dims: Dims) -> Rung:
        """The rung for new sizes: the one that recomputes least among those that fit the budget.

        Without a budget, among those that take no more than PyTorch's own choice of what to recompute; with "min", the lowest.
        """
        start = time.perf_counter()
        self.stats.plans += 1
        try:
            return self._choose(unit, dims)
        finally:
            self.stats.planning_seconds += time.perf_counter() - start

    def _choose(self, unit: Unit, dims: Dims) -> Rung:
        peaks = {rung: rung.peak(dims) for rung in unit.rungs}
        lowest = min(unit.rungs, key=lambda rung: peaks[rung])
        if self.budget.smallest and self._is_last(unit):
            tightest = unit.tighter(dims, None)
            return tightest if tightest is not None and tightest.peak(dims) < peaks[lowest] else lowest
        room = self._room(unit, dims, peaks[lowest])
        fitting = [rung for rung in unit.rungs if room.holds(peaks[rung], rung.kept(dims) if unit.graph.trains else 0)]
        if fitting:
            return min(fitting, key=lambda rung: (rung.reruns, peaks[rung]))
        tighter = unit.tighter(dims, room)
        if tighter is not None and tighter.peak(dims) <= room.peak:
            return tighter
        if tighter is not None and tighter.peak(dims) < peaks[lowest]:
            lowest = tighter
        smallest = self.base(unit, dims) + lowest.peak(dims)
        if self._margin and self.budget.limit is not None and smallest <= self.budget.limit:
            return lowest  # what ran out at one size need not at another: as little as can be is tried
        raise self._no(unit, lowest, dims, smallest)

    def _room(self, unit: Unit, dims: Dims, lowest: int) -> Room:
        """What a call may take, and leave behind for those that follow it in a step.

        In the first step nobody knows what will follow: a graph that trains leaves behind as little as it can.
        """
        if self.budget.limit is None and not self.budget.smallest:
            room = max(lowest, int(unit.customary.peak(dims) * AS_GOOD))
            return Room(room, room)
        if self.budget.limit is None:
            return Room(ANYTHING, unit.least(dims, last=False).kept)
        room = self.budget.limit - self._margin - self.base(unit, dims)
        if unit.graph.trains and not self.informed:
            return Room(room, unit.least(dims, last=False).kept)
        return Room(room, room - self._rest(unit, dims))

    def _place(self, unit: Unit) -> int | None:
        """Where in the last step's calls the next one, of this graph, stood."""
        units = [each for each, _ in self._sequence or ()]
        here = len(self._calls)
        if units[here : here + 1] == [unit]:
            return here
        return units.index(unit) if unit in units else None

    def _is_last(self, unit: Unit) -> bool:
        """Whether no call that trains follows, as far as is known."""
        place = self._place(unit)
        later = () if place is None else (self._sequence or [])[place + 1 :]
        return not any(each.graph.trains for each, _ in later)

    def _rest(self, unit: Unit, dims: Dims) -> int:
        """What the calls that followed this one in the last step take at least, on top of what this one leaves behind."""
        place, sequence = self._place(unit), self._sequence or []
        if place is None or not unit.graph.trains:
            return 0
        became = dict(zip(sequence[place][1], dims, strict=True))
        needed = left = 0
        for position, (later, seen) in enumerate(sequence[place + 1 :], place + 2):
            least = later.least(tuple(became.get(d, d) for d in seen), last=position == len(sequence))
            needed = max(needed, left + least.peak)
            left += least.kept
        return needed

    def base(self, unit: Unit, dims: Dims) -> int:
        """Bytes that are there before a graph runs: resident, saved by earlier graphs, and its own inputs."""
        resident = self.ledger.resident()
        owned = any(r.kind in ("parameter", "buffer") for r in resident)
        given = lent_at(unit.graph, dims, ("input",) if owned else ("input", "parameter", "buffer"))
        return sum(r.bytes for r in resident) + self.ledger.saved + given

    def _no(self, unit: Unit, rung: Rung, dims: Dims, smallest: int) -> BudgetError:
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


TIGHTER = 0.9
"""What is planned for when memory ran out, of what was planned for then beyond what is resident."""
AS_GOOD = 1.005
"""Peaks that differ by less than this are as good as each other: no measurement tells them apart."""

OPTIONS = ("budget", "reserve", "exact", "rewrite", "offload")


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
