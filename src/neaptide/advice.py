"""What to turn on, before anything runs: every method's peak, step time and largest batch, and the one to take.

In: a model, inputs, a budget. Out: an `Advice`: a row for each method and useful mix, predicted by dry runs on fake tensors
(eager methods) and by plans (graphs), with nothing executed. Against the batch size both are closed forms (batches.py). `best`
is the fastest row that fits and is exact, unless lossy ones are allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from neaptide.applied import Applied
from neaptide.batches import Line, Peaks, Scaling, Seconds, peaks_of
from neaptide.budget import Budget, parse_budget
from neaptide.catalogue import machine_named
from neaptide.dryrun import Around, Estimate, Loss, dry_run
from neaptide.eager.micro import batch_of
from neaptide.errors import BudgetError, CaptureError, InputError
from neaptide.handle import Handle, compile, device_of
from neaptide.hardware import Machine, this_machine
from neaptide.methods import METHODS, Method, with_gradients
from neaptide.preview import plan
from neaptide.report import format_bytes
from neaptide.report.progress import progress
from neaptide.timeline import Timeline
from neaptide.twins import KNOWN_BYTES, modules_of, split_inputs

MIXES = (
    ("checkpoint blocks", "step in backward"),
    ("autocast bf16", "checkpoint blocks"),
    ("autocast bf16", "checkpoint selectively"),
    ("int8 activations", "step in backward"),
)
"""Methods that are useful together."""
PARTS = (2, 4, 8)
"""Into how many batches one may be split whose gradients are added up."""
COMPILED = "neaptide.compile"
OFF_PEAK, OFF_SECONDS, OFF_KNOWN = 0.015, 0.12, 0.05
"""How far predictions may be off, nine times of ten: peaks; seconds, with the calibration alone; with a plain step measured."""


@dataclass(frozen=True, slots=True)
class Row:
    """One method, predicted.

    >>> Row("plain", 100, 2.0, 8).throughput
    4.0
    """

    method: str
    peak: int
    seconds: float
    batch: int
    scaling: Scaling | None = None
    """Peak and seconds at every batch size; None where they are known at this one only."""
    lossy: bool = False
    note: str = ""
    code: str = ""
    off: float = OFF_SECONDS
    timeline: Timeline | None = field(default=None, repr=False, compare=False)

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.batch / self.seconds if self.seconds > 0 else 0.0

    @property
    def peak_within(self) -> tuple[int, int]:
        """Where the peak is, nine times of ten."""
        return int(self.peak * (1 - OFF_PEAK)), int(self.peak * (1 + OFF_PEAK))

    @property
    def seconds_within(self) -> tuple[float, float]:
        """Where the time is, nine times of ten."""
        return self.seconds / (1 + self.off), self.seconds * (1 + self.off)

    def largest(self, limit: int | None) -> int | None:
        """The largest batch inside a limit, where that is known."""
        return None if limit is None or self.scaling is None else self.scaling.peaks.largest(limit)

    def to_json(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in ("method", "peak", "seconds", "batch", "lossy", "note", "code")}
        within = {"peak_within": list(self.peak_within), "seconds_within": list(self.seconds_within)}
        scaling = None if self.scaling is None else asdict(self.scaling)
        return {**told, **within, "throughput": self.throughput, "scaling": scaling}


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom advice is for."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    budget: Budget
    loss: Loss | None

    def applied(self, row: Row) -> Handle:
        """A row turned on."""
        if row.method == COMPILED:
            return compile(self.model, self.budget, self.optimizer)
        if row.method == "plain":
            method = Method("plain", nothing)
        else:
            names = row.method.split(" + ")
            if not all(name in METHODS for name in names):
                raise InputError(f"{row.method} is not ours to turn on. In your own code:\n{row.code}")
            method = reduce(add, (METHODS[name] for name in names))
        return Handle(self.model, Applied(self.model, method, self.optimizer, self.budget, row.timeline))


@dataclass(frozen=True)
class Advice:
    """What each method would take, and which to use."""

    rows: tuple[Row, ...]
    budget: int | None
    device: str
    notes: tuple[str, ...] = ()
    allow_lossy: bool = False
    about: Asked | None = field(default=None, repr=False, compare=False)
    """Whom it is for."""

    def apply(self, method: str | None = None) -> Handle:
        """Turn on what is recommended, or another of the rows by its name.

        >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
        >>> handle = advise(model, torch.ones(2, 8)).apply("checkpoint blocks")
        >>> handle
        Handle(Sequential, budget no limit, checkpoint blocks)
        >>> handle.release()
        """
        row = self.best if method is None else next((r for r in self.rows if r.method == method), None)
        if self.about is None:
            raise InputError("this advice was read from a file: make it anew for a model to apply it to")
        if row is None and method is not None:
            raise InputError(f"there is no row {method!r}: choose one of {', '.join(r.method for r in self.rows)}")
        if row is None:
            lowest = min(self.rows, key=lambda r: r.peak)
            raise BudgetError(
                f"nothing fits: {format_bytes(lowest.peak)} with {lowest.method}, budget {format_bytes(self.budget or 0)}",
                need=lowest.peak,
                limit=self.budget or 0,
                smallest=lowest.peak,
            )
        return self.about.applied(row)

    def fits(self, row: Row) -> bool:
        """Whether a row is inside the budget."""
        return self.budget is None or row.peak <= self.budget

    @property
    def plain(self) -> Row:
        """Eager PyTorch with nothing turned on."""
        return self.rows[0]

    @cached_property
    def best(self) -> Row | None:
        """The fastest row inside the budget, of the exact ones unless lossy ones were allowed; None where nothing fits."""
        inside = [row for row in self.rows if self.fits(row) and (self.allow_lossy or not row.lossy)]
        return max(inside, key=lambda row: (row.throughput, -row.peak), default=None)

    @property
    def front(self) -> tuple[Row, ...]:
        """The rows that no other beats in both peak and time, from the lowest peak on."""
        kept: list[Row] = []
        for row in sorted(self.rows, key=lambda r: (r.peak, r.seconds)):
            if not kept or row.seconds < kept[-1].seconds:
                kept.append(row)
        return tuple(kept)

    def to_json(self) -> dict[str, Any]:
        best = None if self.best is None else self.best.method
        told = {"budget": self.budget, "device": self.device, "best": best, "notes": list(self.notes)}
        return {**told, "rows": [{**row.to_json(), "fits": self.fits(row)} for row in self.rows]}

    def __str__(self) -> str:
        lines = [f"{'method':<44}{'peak':>12}{'step':>11}{'samples/s':>11}{'largest batch':>15}  fits"]
        for row in sorted(self.rows, key=lambda r: (not self.fits(r), -r.throughput)):
            largest = row.largest(self.budget)
            name = row.method + (" (lossy)" if row.lossy else "")
            line = f"{name:<44}{format_bytes(row.peak):>12}{row.seconds * 1e3:>8.0f} ms{row.throughput:>11.1f}"
            lines.append(f"{line}{'' if largest is None else largest:>15}  {'yes' if self.fits(row) else 'no'}")
        if self.best is None:
            lowest = min(self.rows, key=lambda r: r.peak)
            lines.append(f"nothing fits: the lowest is {lowest.method} with {format_bytes(lowest.peak)}")
        else:
            lines.append(f"take: {self.best.method}. {self.best.note}")
            lines += [f"    {line}" for line in self.best.code.splitlines()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


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
    limit = parse_budget(budget, device_of(modules_of(model)))
    machine = machine_named(device) if device is not None else this_machine(device_of(modules_of(model)).type)
    case = _Case(model, inputs, optimizer if train else None, train, loss, machine)
    rows = list(case.rows(limit, ranks))
    if measured is not None:
        scale = measured / rows[0].seconds
        rows = [_scaled(row, scale) for row in rows]
    total = case.memory if limit.smallest else limit.limit
    about = Asked(model, optimizer, limit, loss)
    return Advice(tuple(rows), total, device or machine_name(model), tuple(case.notes), lossy, about)


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


def machine_name(model: nn.Module) -> str:
    """Where a model is."""
    return str(device_of(modules_of(model)))


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
    return replace(row, seconds=row.seconds * by, scaling=scaling, off=OFF_KNOWN)


class _Case:
    """One model with its inputs, on one machine."""

    memory: int | None = None

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
            plain = self._row(Method("plain", nothing))
            advance()
            yield plain
            for method in methods:
                try:
                    yield self._row(method)
                except (InputError, CaptureError, RuntimeError, NotImplementedError) as error:
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

    def _row(self, method: Method) -> Row:
        """A method at the batch size that was asked for, and at twice it for the closed form."""
        one = self._run(self.inputs, method.around)
        assert one.seconds is not None
        scaling = self._scaling(one, method.around)
        about = (scaling, method.lossy, method.note, method.code, OFF_SECONDS, one.timeline)
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
        with_step = self._run(self.inputs, nothing).seconds or 0.0
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
        about = (None, False, note, code, OFF_SECONDS, made.timeline)
        yield Row(COMPILED, made.peak, made.seconds + self._stepping, self.batch, *about)

    def _sharded(self, plain: Row, ranks: int) -> Row:
        """FSDP: parameters, gradients and optimizer state are shared out; one block of parameters is whole at a time."""
        assert plain.timeline is not None
        sizes = dict.fromkeys(("parameter", "gradient", "optimizer"), 0)
        for life in plain.timeline.held_by:
            if life.kind in sizes:
                sizes[life.kind] += life.bytes
        blocks = [sum(p.nbytes for p in child.parameters()) for child in _blocks(self.model)]
        gathered = 2 * max(blocks, default=0)  # the next one is fetched while one runs
        saved = sum(sizes.values()) * (ranks - 1) // ranks
        note = f"predicted by its rule, not by a dry run: {ranks} ranks, each with its own batch; links are not in the time"
        code = "for block in blocks: torch.distributed.fsdp.fully_shard(block)\ntorch.distributed.fsdp.fully_shard(model)"
        return Row(f"FSDP over {ranks}", plain.peak - saved + gathered, plain.seconds, self.batch, None, False, note, code)


def _blocks(model: nn.Module) -> Sequence[nn.Module]:
    from neaptide.eager.blocks import find_blocks

    try:
        return [unit.module for unit in find_blocks(model)]
    except InputError:
        return [model]


class nothing:  # noqa: N801  (used as a function is)
    """A context that does nothing."""

    def __init__(self, modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer | None) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def with_batch(inputs: Any, batch: int, size: int) -> Any:
    """Inputs as they would be with another batch size: small ones of integers repeat what is there, others have no values.

    >>> with_batch({"ids": torch.arange(2), "x": torch.ones(2, 3)}, 2, 5)["x"].shape
    torch.Size([5, 3])
    """

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != batch:
            return tensor
        if not tensor.is_floating_point() and tensor.nbytes // batch * size <= KNOWN_BYTES and tensor.device.type != "meta":
            return tensor[torch.arange(size, device=tensor.device) % batch]
        made = torch.empty((size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
        return made.requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, resized, inputs)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
