"""Every method predicted, before anything runs.

In: a model, inputs, a budget. Out: an `Advice`. Eager methods are predicted by dry runs on fake tensors with the method
switched on, graphs by their plans; nothing is executed. Against the batch size both are closed forms (batches.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from neaptide.advice import COMPILED, Advice, Asked, Row
from neaptide.batches import Line, Peaks, Scaling, Seconds, peaks_of, with_batch
from neaptide.budget import Budget, parse_budget
from neaptide.catalogue import machine_named
from neaptide.dryrun import Around, Estimate, Loss, dry_run
from neaptide.eager.blocks import find_blocks
from neaptide.eager.micro import batch_of
from neaptide.errors import BudgetError, CaptureError, InputError
from neaptide.handle import Handle, device_of
from neaptide.hardware import Machine, this_machine
from neaptide.methods import METHODS, PLAIN, Method, nothing, with_gradients
from neaptide.preview import plan
from neaptide.report.progress import progress
from neaptide.twins import modules_of, split_inputs

MIXES = (
    ("checkpoint blocks", "step in backward"),
    ("autocast bf16", "checkpoint blocks"),
    ("autocast bf16", "checkpoint selectively"),
    ("int8 activations", "step in backward"),
)
"""Methods that are useful together."""
PARTS = (2, 4, 8)
"""Into how many batches one may be split whose gradients are added up."""


def advise(
    model: nn.Module,
    inputs: Any,
    budget: Budget | str | int | float | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    train: bool = True,
    loss: Loss | None = None,
    device: str | None = None,
    lossy: bool = False,
    ranks: int = 1,
    measured: float | None = None,
) -> Advice:
    """What each method would take for a step on these inputs, and which to use inside a budget; nothing is executed.

    `device` names an accelerator one need not have ("h100"; see `neaptide.catalogue`): times are then from its data sheet. With
    `lossy`, methods that change results may be recommended. `ranks` is over how many processes FSDP may share the model out.
    `measured` is what a plain step really takes, in seconds, if that is known: every time is scaled by it.

    >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)))
    >>> advice = advise(model, torch.randn(256, 64), optimizer=torch.optim.AdamW(model.parameters()))
    >>> advice.plain.method, advice.best is not None
    ('plain', True)
    """
    _check(model, ranks, measured)
    where = device_of(modules_of(model))
    limit = parse_budget(budget, where)
    machine = machine_named(device) if device is not None else this_machine(where.type)
    case = _Case(model, inputs, optimizer if train else None, train, loss, machine)
    rows = list(case.rows(limit, ranks))
    if measured is not None:
        scale = measured / rows[0].seconds
        rows = [_scaled(row, scale) for row in rows]
    about = Asked(model, optimizer, limit)
    return Advice(tuple(rows), limit.limit, device or str(where), tuple(case.notes), lossy, limit.smallest, about)


def fit(
    model: nn.Module,
    inputs: Any,
    budget: Budget | str | int | float | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    train: bool = True,
    loss: Loss | None = None,
    lossy: bool = False,
) -> Handle:
    """Look at every method, and turn on the one that trains fastest inside the budget. `handle.advice` says why.

    >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
    >>> handle = fit(model, torch.ones(2, 8), budget="1GiB")
    >>> handle.advice.fits(handle.advice.best)
    True
    >>> handle.release()
    """
    made = advise(model, inputs, budget, optimizer, train, loss, lossy=lossy)
    handle = made.apply()
    handle.advice = made
    return handle


def _check(model: Any, ranks: int, measured: float | None) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"advise takes a torch.nn.Module, not {type(model).__name__}")
    if next(model.parameters(), None) is None:
        raise InputError(f"{type(model).__name__} has no parameters: there is nothing to train or to place")
    if not isinstance(ranks, int) or ranks < 1:
        raise InputError(f"ranks is {ranks!r}: pass how many processes there are, 1 or more")
    if measured is not None and not measured > 0:
        raise InputError(f"measured is {measured!r}: pass the seconds that a plain step takes")


def _scaled(row: Row, by: float) -> Row:
    scaling = row.scaling
    if scaling is not None:
        floor, line = scaling.seconds.floor * by, scaling.seconds.line
        scaling = replace(scaling, seconds=Seconds(floor, Line(line.fixed * by, line.each * by)))
    return replace(row, seconds=row.seconds * by, scaling=scaling)


class _Case:
    """One model with its inputs, on one machine."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        optimizer: torch.optim.Optimizer | None,
        train: bool,
        loss: Loss | None,
        machine: Machine,
    ) -> None:
        self.model, self.optimizer, self.train, self.loss, self.machine = model, optimizer, train, loss, machine
        args, kwargs = split_inputs(inputs)
        self.inputs = kwargs or args
        self.batch = batch_of(self.inputs)
        self.notes: list[str] = []

    def rows(self, limit: Budget, ranks: int) -> Iterator[Row]:
        """The plain step first."""
        methods = list(self._methods()) if self.train else []
        with progress("predicting each method", len(methods) + 3) as advance:
            plain = self._row(PLAIN)
            advance()
            yield plain
            for method in methods:
                try:
                    yield self._row(method)
                except (InputError, CaptureError, RuntimeError) as error:  # a method that a model cannot take costs its row
                    self.notes.append(f"{method.name}: not predicted ({_first_line(error)})")
                advance()
            if self.train:
                yield from self._in_parts()
            advance()
            yield from self._planned(limit)
            advance()
            if self.train and ranks > 1:
                yield self._sharded(plain, ranks)

    def _methods(self) -> Iterator[Method]:
        names = [name for name in METHODS if self.optimizer is not None or name != "step in backward"]
        yield from (METHODS[name] for name in names)
        for first, second in MIXES:
            if first in names and second in names:
                yield METHODS[first] + METHODS[second]

    def _run(self, inputs: Any, around: Around) -> Estimate:
        return dry_run(self.model, inputs, self.train, self.optimizer, self.loss, self.machine, around)

    @cached_property
    def _plain(self) -> Estimate:
        return self._run(self.inputs, nothing)

    def _row(self, method: Method) -> Row:
        """A method at the batch size that was asked for, and at twice it for the closed form."""
        one = self._plain if method is PLAIN else self._run(self.inputs, method.around)
        assert one.seconds is not None
        scaling = self._scaling(one, method.around)
        about = (scaling, method.lossy, method.note, method.code, one.timeline)
        return Row(method.name, one.peak, one.seconds, self.batch, *about)

    def _scaling(self, one: Estimate, around: Around) -> Scaling | None:
        if self.batch < 1:
            return None
        twice = self._run(with_batch(self.inputs, self.batch, 2 * self.batch), around)
        peaks = peaks_of((self.batch, one.timeline), (2 * self.batch, twice.timeline))
        assert one.seconds is not None
        assert twice.seconds is not None
        if peaks is None:
            self.notes.append("steps differ with the batch size: the largest batch is by a line through two peaks")
            each = max(0.0, (twice.peak - one.peak) / self.batch)
            peaks = Peaks((Line(one.peak - each * self.batch, each),))
        each = max(0.0, (twice.seconds - one.seconds) / self.batch)
        line = Line(one.seconds - each * self.batch, each)
        return Scaling(peaks, Seconds(len(one.timeline.steps) * self.machine.call, line))

    def _in_parts(self) -> Iterator[Row]:
        """Several smaller batches whose gradients are added up."""
        for parts in PARTS:
            if self.batch % parts or self.batch == parts:
                continue
            size = self.batch // parts
            small = with_batch(self.inputs, self.batch, size)
            first, later = self._run(small, nothing), self._run(small, with_gradients)
            assert first.seconds is not None
            assert later.seconds is not None
            seconds = first.seconds + (parts - 1) * (later.seconds - self._stepping)
            yield Row(
                f"accumulate {parts} x {size}",
                max(first.peak, later.peak),
                seconds,
                self.batch,
                note="gradients of smaller batches are added up; statistics over a batch (BatchNorm) are of the small ones",
                code=f"for part in batch.chunk({parts}): (loss(part) / {parts}).backward()",
                timeline=later.timeline,
            )

    @cached_property
    def _stepping(self) -> float:
        """The seconds of the optimizer's own step."""
        if self.optimizer is None:
            return 0.0
        with_step = self._plain.seconds or 0.0
        without = dry_run(self.model, self.inputs, True, None, self.loss, self.machine).seconds or 0.0
        return max(0.0, with_step - without)

    def _planned(self, limit: Budget) -> Iterator[Row]:
        """What `compile` does inside the budget, or at the least."""
        asked: Any = limit if limit.limit is not None or limit.smallest else "min"
        given = {"train": self.train, "optimizer": self.optimizer, "loss": self.loss}
        try:
            made = plan(self.model, self.inputs, asked, **given)
        except BudgetError as no:
            self.notes.append(f"compile: {_first_line(no)}")
            return
        except Exception as error:  # whatever a model does to a compiler costs a row, not the advice
            self.notes.append(f"compile: not predicted ({_first_line(error)})")
            return
        note = "graphs planned inside the budget: recompute, chunk, offload, order"
        code = f"handle = neaptide.compile(model, budget={made.budget!r})"
        about = (None, False, note, code, made.timeline)
        yield Row(COMPILED, made.peak, made.seconds + self._stepping, self.batch, *about)

    def _sharded(self, plain: Row, ranks: int) -> Row:
        """FSDP: parameters, gradients and optimizer state are shared out; one block of parameters is whole at a time."""
        assert plain.timeline is not None
        shared = sum(plain.timeline.parts[kind] for kind in ("parameter", "gradient", "optimizer"))
        blocks = [sum(p.nbytes for p in child.parameters()) for child in _blocks(self.model)]
        gathered = 2 * max(blocks, default=0)  # the next one is fetched while one runs
        saved = shared * (ranks - 1) // ranks
        note = f"predicted by its rule, not by a dry run: {ranks} ranks, each with its own batch; links are not in the time"
        code = "for block in blocks: torch.distributed.fsdp.fully_shard(block)\ntorch.distributed.fsdp.fully_shard(model)"
        return Row(f"FSDP over {ranks}", plain.peak - saved + gathered, plain.seconds, self.batch, None, False, note, code)


def _blocks(model: nn.Module) -> Sequence[nn.Module]:
    try:
        return [unit.module for unit in find_blocks(model)]
    except InputError:
        return [model]


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
