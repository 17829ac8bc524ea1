"""What to turn on: each method's peak, step time and largest batch, and the one to take.

In: rows, as advising.py predicts them, and a budget. Out: the fastest that fits and is exact, unless lossy ones are allowed; a
table, JSON; and `apply`, which turns it on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neaptide.applied import Applied
from neaptide.batches import Best, Scaling
from neaptide.budget import Budget
from neaptide.dryrun import Loss
from neaptide.errors import BudgetError, InputError
from neaptide.handle import Handle, adapt, compile
from neaptide.methods import method_named
from neaptide.report import Point, format_bytes, write_html
from neaptide.timeline import Timeline

COMPILED, ADAPTED = "neaptide.compile", "neaptide.adapt"
PEAK_OFF, BY_RULE_OFF = 0.01, 0.1
"""How far peaks are taken to lie from dry runs and plans (benchmarks/advise.py says how often that holds), and from rules of
thumb, which nobody measured."""
CALIBRATED_OFF, MEASURED_OFF, SHEET_OFF = 0.2, 0.1, 0.5
"""How far times are taken to lie from predictions by the calibration, beside a plain step that was timed, and by a data sheet.
Assumed: none is fitted to measurements yet."""


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
    timeline: Timeline | None = field(default=None, repr=False, compare=False)
    ours: bool = True
    """Whether `Advice.apply` can turn it on; else there is code to paste."""
    peak_off: float = PEAK_OFF
    seconds_off: float = CALIBRATED_OFF
    """How far the truth may be, either way: shares of what is predicted."""

    @property
    def peak_range(self) -> tuple[int, int]:
        """Where the peak should lie.

        >>> Row("plain", 1000, 2.0, 8, peak_off=0.01).peak_range
        (990, 1010)
        """
        return int(self.peak * (1 - self.peak_off)), int(self.peak * (1 + self.peak_off))

    @property
    def seconds_range(self) -> tuple[float, float]:
        """Where the step's seconds should lie."""
        return self.seconds * (1 - self.seconds_off), self.seconds * (1 + self.seconds_off)

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.batch / self.seconds if self.seconds > 0 else 0.0

    def largest(self, limit: int | None) -> int | None:
        """The largest batch inside a limit, where that is known."""
        return None if limit is None or self.scaling is None else self.scaling.peaks.largest(limit)

    def best(self, limit: int | None) -> Best | None:
        """The batch inside a limit with the most samples per second, which need not be the largest; None where that is not
        known, or not one sample fits."""
        found = None if limit is None or self.scaling is None else self.scaling.best(limit)
        return found if found is not None and found.batch else None

    def to_json(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in ("method", "peak", "seconds", "batch", "lossy", "note", "code")}
        scaling = None if self.scaling is None else asdict(self.scaling)
        ranges = {"peak_range": self.peak_range, "seconds_range": self.seconds_range}
        if self.seconds > 0:
            ranges["throughput_range"] = tuple(self.batch / taken for taken in reversed(self.seconds_range))
        return {**told, **ranges, "throughput": self.throughput, "scaling": scaling}


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom advice is for."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    budget: Budget
    loss: Loss | None = None

    def applied(self, row: Row) -> Handle:
        """A row turned on."""
        if row.method == COMPILED:
            return compile(self.model, self.budget, self.optimizer)
        if row.method == ADAPTED:
            return adapt(self.model, self.budget, self.optimizer, loss=self.loss)
        method = method_named(row.method)
        if method is None or not row.ours:
            raise InputError(f"{row.method} is not ours to turn on. In your own code:\n{row.code}")
        return Handle(self.model, Applied(self.model, method, self.optimizer, self.budget, row.timeline))


@dataclass(frozen=True)
class Advice:
    """What each method would take, and which to use."""

    rows: tuple[Row, ...]
    budget: int | None
    device: str
    notes: tuple[str, ...] = ()
    allow_lossy: bool = False
    smallest: bool = False
    """Whether the lowest peak was asked for, rather than the fastest inside a budget."""
    about: Asked | None = field(default=None, repr=False, compare=False)
    """Whom it is for."""

    def apply(self, method: str | None = None) -> Handle:
        """Turn on what is recommended, or another of the rows by its name.

        >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
        >>> from neaptide import advise
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

    def pays(self, row: Row) -> bool | None:
        """Whether a method raises the best throughput inside the budget, at whichever batch each is best; None where that is
        not known. Memory that is saved pays where the plain batch is so small that a step's fixed costs outweigh it."""
        best, plain = row.best(self.budget), self.plain.best(self.budget)
        if self.budget is None or row.scaling is None or self.plain.scaling is None or row is self.plain:
            return None
        return best is not None and (plain is None or best.throughput > plain.throughput)

    @property
    def plain(self) -> Row:
        """Eager PyTorch with nothing turned on."""
        return self.rows[0]

    @cached_property
    def best(self) -> Row | None:
        """The fastest row inside the budget, of the exact ones unless lossy ones were allowed; None where nothing fits."""
        inside = [row for row in self.rows if self.fits(row) and (self.allow_lossy or not row.lossy)]
        if self.smallest:
            return min(inside, key=lambda row: (row.peak, row.seconds), default=None)
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
        return {**told, "rows": [self._row_to_json(row) for row in self.rows]}

    def _row_to_json(self, row: Row) -> dict[str, Any]:
        best = row.best(self.budget)
        inside = {"largest_batch": row.largest(self.budget), "best_batch": None if best is None else asdict(best)}
        return {**row.to_json(), "fits": self.fits(row), **inside, "pays": self.pays(row)}

    def write_html(self, path: str | Path) -> Path:
        """Write a page: every method by peak and time, and the memory timeline of a step, plain and as recommended.

        >>> import tempfile
        >>> from neaptide import advise
        >>> advise(nn.Linear(8, 8), torch.ones(2, 8)).write_html(Path(tempfile.mkdtemp()) / "advice.html").name
        'advice.html'
        """
        best, front = self.best, self.front
        points = [
            Point(r.method, r.peak, r.seconds, r.throughput, r.lossy, self.fits(r), r in front, r is best, r.note)
            for r in self.rows
        ]
        shown = [self.plain, *([best] if best is not None and best is not self.plain else [])]
        timelines = {row.method: row.timeline for row in shown if row.timeline is not None}
        name = "a model" if self.about is None else type(self.about.model).__name__
        lines = {} if self.budget is None else {"budget": self.budget}
        return write_html(path, timelines, f"What {name} would take on {self.device}", lines, points)

    def __str__(self) -> str:
        width = max(len(_title(row)) for row in self.rows)
        head = f"{'method':<{width}}{'peak':>12}{'':>7}{'step':>11}{'':>7}{'samples/s':>11}"
        lines = [f"{head}{'largest batch':>15}{'at best':>20}  pays  fits"]
        for row in sorted(self.rows, key=lambda r: (not self.fits(r), -r.throughput)):
            lines.append(f"{_title(row):<{width}}{self._cells(row)}")
        if self.best is None:
            lowest = min(self.rows, key=lambda r: r.peak)
            lines.append(f"nothing fits: the lowest is {lowest.method} with {format_bytes(lowest.peak)}")
        else:
            lines.append(f"take: {self.best.method}. {self.best.note}")
            lines += [f"    {line}" for line in self.best.code.splitlines()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _cells(self, row: Row) -> str:
        largest, best, pays = row.largest(self.budget), row.best(self.budget), self.pays(row)
        line = f"{format_bytes(row.peak):>12}{_off(row.peak_off)}"
        line += f"{row.seconds * 1e3:>8.0f} ms{_off(row.seconds_off)}{row.throughput:>11.1f}"
        at_best = "" if best is None else f"{best.throughput:,.1f}/s with {best.batch}"
        yes = {None: "", True: "yes", False: "no"}
        return f"{line}{'' if largest is None else largest:>15}{at_best:>20}  {yes[pays]:<4}  {yes[self.fits(row)]}"


def _title(row: Row) -> str:
    return row.method + (" (lossy)" if row.lossy else "")


def _off(share: float) -> str:
    return f"{f'±{share:.0%}':>7}"
