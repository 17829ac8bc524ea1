"""The choice for a call: what is there, what it will take, which ways fit.

In: the arguments of a call. Out: a `Choice`, found among earlier ones or made now; None where the step has to be looked at for
real first.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neaptide.accounting import storages, tensors_in
from neaptide.allocator import allocated
from neaptide.dryrun import Loss
from neaptide.eager import shelf
from neaptide.eager.choose import Choice, Rates, Weighed
from neaptide.eager.course import Situation, is_near, situation_of
from neaptide.eager.figures import Figures
from neaptide.eager.micro import largest_batch
from neaptide.eager.predict import DryRun, Fitted, Shapes
from neaptide.eager.probe import optimizer_need, probe
from neaptide.eager.refuse import refusal
from neaptide.errors import BudgetError
from neaptide.hardware import this_machine
from neaptide.runtime.ledger import Ledger

if TYPE_CHECKING:
    from neaptide.eager.adapt import Adapter

log = logging.getLogger(__name__)
Found = tuple[Choice, Figures]
CONVOLVES = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
KERNELS = 3 << 20
"""Bytes that the first step at a size takes beside tensors where a CPU convolves: a kernel is made for each shape, and kept."""


class TooLargeError(BudgetError):
    """Nothing fits; the refusal says so to the user, `room` is what there is for a part of the batch."""

    def __init__(self, said: BudgetError, room: int) -> None:
        super().__init__(str(said), need=said.need, limit=said.limit, smallest=said.smallest)
        self.refusal, self.room = said, room


@dataclass
class Family:
    """Calls of one form: what predicts their figures, and the choices made so far."""

    key: str
    predictor: DryRun | Fitted
    choices: dict[Any, Found] = field(default_factory=dict)
    ran: set[Shapes] = field(default_factory=set)
    """Sizes for which kernels have been made."""


class Planner:
    """Everything that a choice depends on."""

    def __init__(self, adapter: Adapter, reserve: int, offload: bool, loss: Loss | None) -> None:
        self._adapter, self.loss, self._offload = adapter, loss, offload
        optimizer = adapter.optimizer() if adapter.optimizer is not None else None
        self.ledger = Ledger([adapter.model], optimizer, reserve)
        self.device = next((p.device for p in adapter.model.parameters()), torch.device("cpu"))
        self.sharded = False
        """Whether ranks share the weights (FSDP)."""
        self.rates = Rates()
        self.margin = 0
        """Bytes of the budget that turned out not to be there."""
        convolves = any(isinstance(module, CONVOLVES) for module in adapter.model.modules())
        self._making = KERNELS if convolves and self.device.type == "cpu" else 0
        self.extra = 0
        """Bytes that are there while a batch is split."""
        self.together: int | None = None
        """How many calls were under way at once when a backward began; None before the first."""
        self.held: frozenset[int] | None = None
        """Which of the model's outputs the caller holds through the backward; None (all of them) before the first."""
        self._families: dict[Any, Family] = {}
        self._resident: tuple[Any, int] = (None, 0)
        self._needed: tuple[Any, int] = (None, 0)
        self._whole: int | None = None
        """What the optimizer's step takes beside parameters and gradients, its state included."""

    def forget(self) -> None:
        """Choices are made anew from here on."""
        for family in self._families.values():
            family.choices.clear()

    def family(self, situation: Situation) -> Family:
        """The calls of one form."""
        found = self._families.get(situation.form)
        if found is None:
            key = shelf.shelf_key(self._adapter.model, self._adapter.units, situation.form, self.loss)
            predictor = (
                Fitted("its weights are gathered by hooks, which fakes must not run") if self.sharded else shelf.read(key)
            )
            found = self._families[situation.form] = Family(key, predictor)
        return found

    def plan(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], there: int, pending: int
    ) -> tuple[Situation, int, Found | None, bool]:
        """The situation of a call, what is there before it, its choice, and whether that is new."""
        stats = self._adapter.stats
        situation = situation_of(args, kwargs, self.ledger.accumulates)
        family = self.family(situation)
        base = self._base(args, kwargs)
        making = 0 if situation.shapes in family.ran else self._making
        key = (situation.shapes, situation.accumulates, base, there, self.together, self.held, making)
        found = family.choices.get(key)
        figures = None if found is not None else self._predict(family, situation)
        if found is None and figures is None:
            found = self._neighbour(family, key)
        if found is not None:
            family.ran.add(situation.shapes)
            stats.hits += 1
            return situation, base, found, False
        if figures is None and isinstance(family.predictor, DryRun):
            figures = self._look(family, family.predictor, situation, args, kwargs)
        stats.predictor, stats.why = family.predictor.kind, family.predictor.why
        if figures is None:
            return situation, base, None, True
        figures = replace(figures, margin=figures.margin + making)
        found = family.choices[key] = (self._chosen(figures, base + there, pending, args, kwargs), figures)
        family.ran.add(situation.shapes)
        stats.plans += 1
        stats.sizes = len({(form, k[0]) for form, one in self._families.items() for k in one.choices})
        return situation, base, found, True

    def _neighbour(self, family: Family, key: tuple) -> Found | None:
        """The choice of a slightly larger size, where the size itself would have to be looked at."""
        near = (found for k, found in family.choices.items() if k[1:2] == key[1:2] and is_near(key[0], k[0]))
        return next((found for found in near if self._fits(found[0], key[2] + key[3])), None)

    def _fits(self, choice: Choice, there: int) -> bool:
        limit = self._adapter.budget.limit
        return limit is None or there + choice.level <= limit - self.margin

    def _predict(self, family: Family, situation: Situation) -> Figures | None:
        return family.predictor.predict(situation.shapes, situation.accumulates, self.held)

    def _look(
        self, family: Family, predictor: DryRun, situation: Situation, args: tuple, kwargs: dict[str, Any]
    ) -> Figures | None:
        """Look at a size on fakes; where that cannot be done, real steps will be looked at from here on."""
        adapter = self._adapter
        adapter.stats.probes += 1
        try:
            record = probe(adapter, (args, kwargs), self.loss)
        except Exception as error:  # whatever a model does on fakes, it may be right for real
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            log.info("no dry run: %s", first)
            family.predictor = Fitted(f"a dry run is not possible: {first}")
            return None
        predictor.learn(situation.shapes, record)
        shelf.write(family.key, predictor)
        return self._predict(family, situation)

    def _chosen(self, figures: Figures, there: int, pending: int, args: tuple, kwargs: dict[str, Any]) -> Choice:
        weighed = Weighed(figures, self.rates)
        limit = self._adapter.budget.limit
        if limit is None:
            return weighed.lowest()
        room = limit - self.margin - there
        lowest: Choice | None = None
        later = 0 if self.together is None else max(self.together - 1 - pending, 0)
        if later or self.together is None:
            lowest = weighed.lowest()
        if later and lowest is not None:
            room -= later * lowest.kept + self._gradients()
        first = room // 2 if self.together is None else room  # nobody knows yet what else a step calls
        found = weighed.fastest(first) or (lowest if lowest is not None and lowest.level <= room else None)
        if found is None and self._offload:
            weighed = Weighed(figures, self._with_the_disk())
            found = weighed.fastest(room)
        lowest = weighed.lowest() if found is None else found
        if found is None and self.margin and lowest.level + there <= limit:
            return lowest  # what ran out at one size need not at another: as little as can be is tried
        if found is None or self.stepping() > limit:
            batch = None if self._adapter.split else largest_batch(self._adapter, room, args, kwargs)
            raise TooLargeError(refusal(limit, there, lowest.level, figures, batch), room)
        return found

    def _with_the_disk(self) -> Rates:
        rate = this_machine(self.device.type).away
        return replace(self.rates, away=rate if rate != float("inf") else None)

    def _gradients(self) -> int:
        return sum(allocated(p.nbytes, p.device.type) for p in self._adapter.model.parameters() if p.requires_grad)

    def stepping(self) -> int:
        """What the optimizer's own step takes, with all that is there before it, which no choice changes; 0 if nobody knows."""
        optimizer = self._adapter.optimizer() if self._adapter.optimizer is not None else None
        if optimizer is None:
            return 0
        if self._resident[0] == self._needed[0]:
            return self._needed[1]
        if self._whole is None:
            try:
                self._whole = optimizer_need(self._adapter.model, optimizer)
            except Exception as error:  # an optimizer may want real values; its step is then not counted
                log.info("the optimizer's step is not counted: %s", error)
                self._whole = 0
        there = self._resident[1] + (0 if self.ledger.accumulates else self._gradients())
        state = sum(t.nbytes for held in optimizer.state.values() for t in tensors_in(held))
        self._needed = (self._resident[0], there + max(self._whole - state, 0))
        return self._needed[1]

    def _base(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """What is there before a call: what is resident, and what the model is given."""
        optimizer = self._adapter.optimizer() if self._adapter.optimizer is not None else None
        key = (self.ledger.accumulates, len(optimizer.state) if optimizer is not None else 0)
        if self._resident[0] != key:
            self._resident = (key, sum(r.bytes for r in self.ledger.resident()))
        given = {s._cdata: allocated(s.nbytes(), t.device.type) for t in tensors_in((args, kwargs)) for s in storages(t)}
        return self._resident[1] + sum(given.values()) + self.extra
