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

from neaptide.advice import ADAPTED, BY_RULE_OFF, COMPILED, MEASURED_OFF, SHEET_OFF, Advice, Asked, Row
from neaptide.batches import Line, Peaks, Scaling, Seconds, peaks_of, with_batch
from neaptide.budget import Budget, parse_budget
from neaptide.catalogue import machine_named
from neaptide.dryrun import Around, Estimate, Loss, dry_run
from neaptide.eager.blocks import find_blocks
from neaptide.eager.micro import batch_of
from neaptide.errors import BudgetError, CaptureError, InputError
from neaptide.handle import Handle, adapt, device_of
from neaptide.hardware import Machine, this_machine
from neaptide.methods import METHODS, PLAIN, Method, accumulate, nothing, with_gradients
from neaptide.pace import pace
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
LOW_BIT: dict[type[torch.optim.Optimizer], tuple[str, int]] = {
    torch.optim.Adam: ("Adam8bit", 2),
    torch.optim.AdamW: ("AdamW8bit", 2),
}
"""The low-bit optimizers of torchao that stand for PyTorch's, and how many numbers each keeps for one of a parameter."""
LOW_BIT_LEAST, LOW_BIT_GROUP = 4096, 256
"""Numbers that a parameter has at least for its state to be in few bits, and that share a scale."""


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
        rows = [replace(_scaled(row, scale), seconds_off=MEASURED_OFF) for row in rows]
    elif device is not None:
        rows = [replace(row, seconds_off=SHEET_OFF) for row in rows]
    else:
        rows = [_scaled(row, pace(where.type)) for row in rows]
    about = Asked(model, optimizer, limit, loss)
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
        blocks: Row | None = None
        with progress("predicting each method", len(methods) + 4) as advance:
            plain = self._row(PLAIN)
            advance()
            yield plain
            for method in methods:
                try:
                    row = self._row(method)
                except (InputError, CaptureError, RuntimeError) as error:  # a method that a model cannot take costs its row
                    self.notes.append(f"{method.name}: not predicted ({_first_line(error)})")
                else:
                    blocks = row if method is METHODS["checkpoint blocks"] else blocks
                    yield row
                advance()
            if self.train:
                yield from self._in_parts()
                advance()
                yield from self._adapted(limit, plain, blocks)
                yield from self._low_bit(plain)
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
        scaling = self._scaling(method.name, one, method.around)
        about = (scaling, method.lossy, method.note, method.code, one.timeline)
        return Row(method.name, one.peak, one.seconds, self.batch, *about)

    def _scaling(self, name: str, one: Estimate, around: Around) -> Scaling | None:
        if self.batch < 1:
            return None
        twice = self._run(with_batch(self.inputs, self.batch, 2 * self.batch), around)
        peaks = peaks_of((self.batch, one.timeline), (2 * self.batch, twice.timeline))
        assert one.seconds is not None
        assert twice.seconds is not None
        if peaks is None:
            self.notes.append(f"{name}: steps differ with the batch size; its largest batch is by a line through two peaks")
            each = max(0.0, (twice.peak - one.peak) / self.batch)
            peaks = Peaks((Line(one.peak - each * self.batch, each),))
        each = min(
            max(0.0, (twice.seconds - one.seconds) / self.batch), one.seconds / self.batch
        )  # no step takes less than nothing
        line = Line(one.seconds - each * self.batch, each)
        return Scaling(peaks, Seconds(len(one.timeline.steps) * self.machine.call, line))

    def _in_parts(self) -> Iterator[Row]:
        """Several smaller batches whose gradients are added up: by us where the model returns its loss, else by the user."""
        for parts in PARTS:
            if self.batch % parts or self.batch == parts:
                continue
            method = accumulate(parts, self.batch // parts)
            try:
                made = self._run(self.inputs, method.around)
            except InputError as error:
                if "loss" not in str(error):
                    self.notes.append(f"accumulation: {_first_line(error)}")
                    return
                yield self._added_up(parts)
                continue
            assert made.seconds is not None
            about = (None, False, method.note, method.code, made.timeline)
            yield Row(method.name, made.peak, made.seconds, self.batch, *about)

    def _added_up(self, parts: int) -> Row:
        """The user's own loop over smaller batches."""
        size = self.batch // parts
        small = with_batch(self.inputs, self.batch, size)
        first, later = self._run(small, nothing), self._run(small, with_gradients)
        assert first.seconds is not None
        assert later.seconds is not None
        seconds = first.seconds + (parts - 1) * (later.seconds - self._stepping)
        note = "gradients of smaller batches are added up in your own loop, since the model does not return its loss"
        code = f"for part in batch.chunk({parts}): (loss(model(part)) / {parts}).backward()"
        about = (None, False, note, code, later.timeline, False)
        return Row(f"accumulate {parts} x {size}", max(first.peak, later.peak), seconds, self.batch, *about)

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

    def _adapted(self, limit: Budget, plain: Row, blocks: Row | None) -> Iterator[Row]:
        """What `adapt` does at this size: its own plan, timed by what checkpointing every block takes."""
        if blocks is None or (limit.limit is None and not limit.smallest):
            return
        try:
            handle = adapt(self.model, limit, self.optimizer, loss=self.loss)
        except InputError as error:
            self.notes.append(f"adapt: {_first_line(error)}")
            return
        try:
            made = handle._session.preview(self.inputs)
        except (BudgetError, CaptureError, RuntimeError) as error:
            self.notes.append(f"adapt: {_first_line(error)}")
            return
        finally:
            handle.release()
        if made is None:
            self.notes.append("adapt: would look at real steps first")
            return
        planned, again = made
        seconds = plain.seconds + again * (blocks.seconds - plain.seconds)
        note = "each batch with as much checkpointing as its size needs; this is for the size asked about"
        code = f"handle = neaptide.adapt(model, budget={limit.limit!r}, optimizer=optimizer)"
        yield Row(ADAPTED, planned.peak, seconds, self.batch, None, False, note, code, planned.timeline)

    def _low_bit(self, plain: Row) -> Iterator[Row]:
        """The optimizer's state in 8 bits, by another library's optimizer: predicted by its rule."""
        assert plain.timeline is not None
        if self.optimizer is None or type(self.optimizer) not in LOW_BIT:
            return
        name, states = LOW_BIT[type(self.optimizer)]
        trained = [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]
        fewer = [p.numel() for p in trained if p.numel() >= LOW_BIT_LEAST and p.numel() % LOW_BIT_GROUP == 0]
        saved = int(sum(states * n * (4 - 1 - 4 / LOW_BIT_GROUP) for n in fewer))
        if not saved:
            return
        note = "predicted by its rule, not by a dry run: state of large parameters in 8 bits; time as in plain PyTorch"
        code = f"optimizer = torchao.optim.{name}(model.parameters(), ...)"
        about = (None, True, note, code, None, False, BY_RULE_OFF)
        yield Row(f"{name} (torchao)", plain.peak - saved, plain.seconds, self.batch, *about)

    def _sharded(self, plain: Row, ranks: int) -> Row:
        """FSDP: parameters, gradients and optimizer state are shared out; one block of parameters is whole at a time."""
        assert plain.timeline is not None
        shared = sum(plain.timeline.parts[kind] for kind in ("parameter", "gradient", "optimizer"))
        blocks = [sum(p.nbytes for p in child.parameters()) for child in _blocks(self.model)]
        gathered = 2 * max(blocks, default=0)  # the next one is fetched while one runs
        saved = shared * (ranks - 1) // ranks
        note = f"predicted by its rule, not by a dry run: {ranks} ranks, each with its own batch; links are not in the time"
        code = "for block in blocks: torch.distributed.fsdp.fully_shard(block)\ntorch.distributed.fsdp.fully_shard(model)"
        peak = plain.peak - saved + gathered
        about = (None, False, note, code, None, False, BY_RULE_OFF)
        return Row(f"FSDP over {ranks}", peak, plain.seconds, self.batch, *about)


def _blocks(model: nn.Module) -> Sequence[nn.Module]:
    try:
        return [unit.module for unit in find_blocks(model)]
    except InputError:
        return [model]


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
