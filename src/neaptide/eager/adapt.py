"""Checkpointing that follows the input: each call of the model runs with just as much as its size needs to fit the budget.

In: a model, a budget. Out: what a `Handle` drives. At each call that trains: its sizes, the figures predicted for them, the
fastest choice that fits, and each block runs its way. Where nothing can be known beforehand, the first steps run sheltered
and are watched.
"""

from __future__ import annotations

import inspect
import logging
import time
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from neaptide.allocator import keep_pages
from neaptide.budget import Budget
from neaptide.dryrun import Loss
from neaptide.eager import strengths
from neaptide.eager.agree import Ranks
from neaptide.eager.blocks import Switch, Unit, find_blocks
from neaptide.eager.choose import Choice, Weighed
from neaptide.eager.compose import make_plan
from neaptide.eager.course import Course, Pending, Situation
from neaptide.eager.figures import Figures
from neaptide.eager.micro import run_split
from neaptide.eager.observe import Observer
from neaptide.eager.planner import Planner, TooLargeError
from neaptide.eager.refuse import refusal
from neaptide.eager.sheltered import RealStep
from neaptide.eager.stats import AdaptStats
from neaptide.eager.strengths import FULL, KEEP
from neaptide.errors import BudgetError
from neaptide.plans import Plan
from neaptide.runtime.observe import Watch, watch
from neaptide.twins import split_inputs

log = logging.getLogger(__name__)
TIGHTER = 0.9
"""What is planned for when memory ran out, of what was planned for then."""
PROGRESS = 500
"""After so many calls a line in the log says how it goes."""
RETIMED = (4, 16)
"""After so many calls choices are made anew, now that forwards have been timed."""


class Adapter:
    """Everything that belongs to one `adapt`: the engine behind its handle."""

    def __init__(
        self,
        model: nn.Module,
        budget: Budget,
        optimizer: torch.optim.Optimizer | None = None,
        blocks: Sequence[str | type[nn.Module]] | None = None,
        reserve: int = 0,
        offload: bool = True,
        same_sizes: bool = False,
        loss: Loss | None = None,
        split: bool | str = False,
        selective: bool = False,
    ) -> None:
        keep_pages()
        self.model, self.budget, self.split = model, budget, split
        self.units = find_blocks(model, blocks)
        self.stats = AdaptStats()
        self.optimizer = weakref.ref(optimizer) if optimizer is not None else None
        self._ranks = Ranks(model, same_sizes)
        self._root = Unit("", model)
        self.planner = Planner(self, reserve, offload and not self._ranks.agree, loss)
        self.planner.ledger.gathered = self._ranks.gathered
        self.planner.sharded = self.planner.rates.only_whole = self._ranks.agree
        self.planner.rates.selective = selective
        self._course: Course | None = None
        self.observer: Observer | None = None
        self._real: RealStep | None = None
        self._watch: tuple[Watch, int] | None = None
        self._is_over = False
        """Whether it was released: someone else's call may still lead here."""
        self._pending: list[Pending] = []
        self._last: tuple[Choice, Figures, int] | None = None
        self._takes_cache = "use_cache" in inspect.signature(model.forward).parameters
        self._switches = [Switch(self._root, self._call)]
        self._switches += [Switch(unit, self._block) for unit in self.units]
        self._switches += [Switch(part, self._part) for unit in self.units for part in unit.parts]
        self._own_checkpoints = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False) is True]
        for module in self._own_checkpoints:
            module.gradient_checkpointing = False  # type: ignore[assignment]

    @property
    def session(self) -> Adapter:
        return self

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own call."""
        return self._root.plain(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{len(self.units)} blocks"

    def plan(self) -> Plan:
        """How the latest call ran, and what a step of it takes."""
        return self._plan_of(self._last)

    def _plan_of(self, last: tuple[Choice, Figures, int] | None) -> Plan:
        planner = self.planner
        return make_plan(self.budget, planner.ledger.resident(), last, self.stats, planner.stepping())

    def preview(self, inputs: Any) -> tuple[Plan, float] | None:
        """The plan of a call that is not made, and what it makes again of all that blocks can (in time); None where the step
        would have to be looked at for real first."""
        args, kwargs = split_inputs(inputs)
        self.planner.together, self.planner.held = 1, None
        _, base, found, _ = self.planner.plan(args, kwargs, 0, 0)
        if found is None:
            return None
        choice, figures = found
        most = sum(self.planner.rates.whole(call) for call in figures.calls if call.is_block)
        plan = self._plan_of((choice, figures, base))
        return plan, choice.seconds / most if most else 0.0

    def replan(self, budget: Budget) -> None:
        """Go on with another budget."""
        if budget != self.budget:
            self.budget, self.planner.margin = budget, 0
        self.planner.forget()
        self.begin_step()

    def begin_step(self) -> None:
        """A step begins."""
        self.end_observation()
        self._pending.clear()

    def tighten(self) -> bool:
        """Memory ran out: plan for less from here on. False where there is nothing to tighten."""
        self._course = None
        self._drop_observation()
        self._pending.clear()
        if self.budget.limit is None or self._last is None:
            return False
        choice, figures, base = self._last
        lowest = Weighed(figures, self.planner.rates).lowest()
        margin = self.budget.limit - base - int(choice.level * TIGHTER)
        if margin <= self.planner.margin or choice.level <= lowest.level:
            raise refusal(self.budget.limit, base, lowest.level, figures, None)
        self.planner.margin = margin
        self.planner.forget()
        self.stats.recoveries += 1
        return True

    def wait(self, seconds: float | None) -> bool:
        """Nothing is compiled."""
        return True

    def release(self) -> None:
        """Put everything back."""
        self.end_observation()
        for switch in reversed(self._switches):
            switch.release()
        for module in self._own_checkpoints:
            module.gradient_checkpointing = True  # type: ignore[assignment]
        self._switches, self._own_checkpoints = [], []
        self._is_over = True

    def _call(self, root: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model is called."""
        if self._is_over or self._course is not None or (self.observer is not None and self._real is None):
            return root.plain(*args, **kwargs)
        self.end_observation()
        bound = self.budget.limit is not None or self.budget.smallest
        trains = self.model.training and torch.is_grad_enabled()
        if not bound or not trains or strengths.is_inside_another():
            return root.plain(*args, **kwargs)
        if self._takes_cache:
            kwargs = {**kwargs, "use_cache": False}
        try:
            situation, found = self._planned(args, kwargs)
        except TooLargeError as no:
            if not self.split:
                raise no.refusal from None
            return run_split(self, no.room, args, kwargs)
        return self._run(args, kwargs, situation, found)

    def _planned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Situation, tuple[Choice, Figures] | None]:
        """What this call runs as: a choice, or None where it has to be looked at for real."""
        start = time.perf_counter()
        self.stats.calls += 1
        if self.stats.calls in RETIMED:
            self.planner.forget()
        there = sum(pending.kept for pending in self._pending)
        try:
            situation, base, found, is_new = self.planner.plan(args, kwargs, there, len(self._pending))
        except BudgetError as no:
            self._ranks.agreed(None, no)
            raise
        found = self._ranks.agreed(found)
        if found is not None:
            self._last = (*found, base + there)
            self.stats.predicted = max(self.stats.predicted, base + there + found[0].level)
            if is_new and not there and self.budget.limit is not None:
                begun = watch(self.planner.device.type, situation.shapes[0] if situation.shapes else ())
                self._watch = None if begun is None else (begun, found[0].level)
        spent = time.perf_counter() - start
        self.stats.planning_seconds += spent
        if self.stats.calls == 1:
            self.stats.setup_seconds = spent
        if self.stats.calls % PROGRESS == 0:
            log.info("%s", self.stats)
        return situation, found

    def _run(self, args: tuple, kwargs: dict[str, Any], situation: Situation, found: tuple[Choice, Figures] | None) -> Any:
        self._course = Course(*(found or (None, None)))
        try:
            if found is None:
                self._real = RealStep(self, situation, (args, kwargs))
                self._real.begin()
            output = self.plain(*args, **kwargs)
        except BaseException:
            self._drop_observation()
            raise
        finally:
            self._course = None
        self._pending.append(Pending(0 if found is None else found[0].kept, output, self._turns))
        return output

    def _turns(self, pending: Pending) -> None:
        """The backward of a call begins, or will never come."""
        if pending in self._pending:
            self.planner.together = max(self.planner.together or 0, len(self._pending))
            self.planner.held = pending.held | (self.planner.held or frozenset())
            self._pending.remove(pending)

    def _block(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A block is called."""
        if not torch.is_grad_enabled() or strengths.is_inside_another():
            return unit.plain(*args, **kwargs)
        if self.observer is not None:
            return self.observer.block(unit, args, kwargs)
        course = self._course
        if course is None or course.open is not None:
            return unit.plain(*args, **kwargs)
        way, call = course.next(unit)
        if call is None:
            return strengths.run(unit, way, args, kwargs)
        course.open = (way, call)
        start = time.perf_counter()
        try:
            return strengths.run(unit, way, args, kwargs)
        finally:
            course.open = None
            if way is KEEP or way is FULL:
                self.planner.rates.seen(unit.alike, "", time.perf_counter() - start, call.saved)

    def _part(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A part of a block is called."""
        if self.observer is not None:
            return self.observer.part(unit, args, kwargs)
        course = self._course
        if course is None or course.open is None:
            return unit.plain(*args, **kwargs)
        way, call = course.open
        if way is KEEP:
            start = time.perf_counter()
            result = unit.plain(*args, **kwargs)
            self.planner.rates.seen(call.alike, unit.name, time.perf_counter() - start, call.saved)
            return result
        if unit.name in way.parts and torch.is_grad_enabled() and not strengths.is_inside_another():
            return strengths.checkpointed(unit, args, kwargs)
        return unit.plain(*args, **kwargs)

    def end_observation(self) -> None:
        """The step before is over: what did it take?"""
        if self._real is not None:
            step, self._real = self._real, None
            step.end()
        if self._watch is not None:
            (begun, level), self._watch = self._watch, None
            begun.look()
            seen = begun.ends(level)
            if seen is not None:
                self.stats.observed.append(seen)
                if seen.excess > self.planner.margin:
                    self.planner.margin = seen.excess
                    self.planner.forget()

    def _drop_observation(self) -> None:
        self._watch = None
        if self._real is not None:
            step, self._real = self._real, None
            step.drop()
