"""Figures of sizes that were never run, from those of a few that were.

In: what sheltered steps at some sizes showed. Out: figures at another. Two ways: *dry run*, where each storage's bytes are
one expression of the sizes, found exactly from two or three steps on fake tensors; and *fitted*, where each figure is a
polynomial in every size that varies, through what real steps showed, with its own error as a margin. Either says when it
does not know: that size is then looked at as well. The polynomials are Mimose's idea; it has them in one size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Protocol

import numpy as np
from scipy.optimize import nnls

from neaptide.eager.figures import CallFigures, Figures, Held, PartWay, Reading
from neaptide.eager.record import Record

Shapes = tuple[tuple[int, ...], ...]
"""The sizes of every tensor that a model is given."""
EXACT = 0.002
"""A prediction that was wrong by no more than this share is trusted from then on."""
DEGREES = 5
FITTED_STEPS = 10
"""After so many real steps a fit is used as it is, with its error as a margin."""
CLOSE = 0.01
BEYOND = 1.05
"""Sizes beyond the largest seen by more than this are not what a fit knows about."""


class Predictor(Protocol):
    """What `adapt` asks."""

    kind: str
    why: str

    def predict(self, shapes: Shapes, accumulates: bool, held: Held = None) -> Figures | None:
        """The figures at a size; None where it has to be looked at."""
        ...


@dataclass(frozen=True, slots=True)
class Variables:
    """Which sizes vary: those that always moved together are one."""

    groups: tuple[tuple[int, ...], ...]
    degrees: tuple[int, ...]
    fixed: tuple[tuple[int, int], ...]

    @staticmethod
    def of(seen: Sequence[Shapes]) -> Variables:
        """What varies over some sizes.

        >>> Variables.of([((8, 3, 32, 32), (8,)), ((8, 3, 64, 64), (8,))])
        Variables(groups=((2, 3),), degrees=(4,), fixed=((0, 8), (1, 3), (4, 8)))
        """
        table = np.array([[d for shape in shapes for d in shape] for shapes in seen])
        owner = [n for n, shape in enumerate(seen[0]) for _ in shape]
        groups: dict[tuple[int, ...], list[int]] = {}
        fixed = []
        for column in range(table.shape[1]):
            values = tuple(map(int, table[:, column]))
            if len(set(values)) == 1:
                fixed.append((column, values[0]))
            else:
                groups.setdefault(values, []).append(column)
        degrees = tuple(2 * max(sum(owner[c] == owner[one] for c in group) for one in group) for group in groups.values())
        return Variables(tuple(map(tuple, groups.values())), degrees, tuple(fixed))

    def values(self, shapes: Shapes) -> tuple[int, ...] | None:
        """The values of the variables at a size; None where something varies that never did before."""
        flat = [d for shape in shapes for d in shape]
        if any(flat[column] != value for column, value in self.fixed):
            return None
        if any(flat[column] != flat[group[0]] for group in self.groups for column in group):
            return None
        return tuple(flat[group[0]] for group in self.groups)

    def terms(self) -> list[tuple[int, ...]]:
        """Exponents of the monomials, the simplest first."""
        every = product(*(range(min(degree, DEGREES - 1) + 1) for degree in self.degrees))
        return sorted((e for e in every if sum(e) < DEGREES), key=lambda e: (sum(e), max(e, default=0), [-x for x in e]))


def _powers(values: np.ndarray, terms: Sequence[tuple[int, ...]]) -> np.ndarray:
    """(sizes, terms): each monomial at each size."""
    return np.prod(values[:, None, :].astype(float) ** np.array(terms, dtype=float)[None], axis=2)


class DryRun:
    """Every storage's bytes as an expression of the sizes.

    It is trusted once it has predicted a step that was then looked at.
    """

    kind = "dry run"

    def __init__(self) -> None:
        self.why = ""
        self._records: dict[Shapes, Record] = {}
        self._reading: Reading | None = None
        self._trusted = self._mixed = False
        self.error = 0.0
        self._model: _Expressions | None = None

    @property
    def probes(self) -> int:
        return len(self._records)

    def learn(self, shapes: Shapes, record: Record) -> None:
        """A step was looked at."""
        if self._reading is None:
            self._reading = Reading(record)
        elif not record.is_like(self._reading.record):
            self._mixed = True
            self.why = "steps of different sizes run different ops, so that each new size is looked at"
        if self._mixed:
            self._records[shapes] = record
            return
        predicted = self._predicted(shapes, False)
        self._records[shapes] = record
        if predicted is not None:
            told = self._reading.figures(record.taken())
            wrong = _difference(predicted, told)
            self._trusted = wrong <= EXACT
            self.error = wrong
        if len(self._records) > 1:
            self._model = _Expressions(self._records)

    def predict(self, shapes: Shapes, accumulates: bool, held: Held = None) -> Figures | None:
        known = self._records.get(shapes)
        if known is not None and self._reading is not None:
            reading = self._reading if not self._mixed else Reading(known)
            return reading.figures(known.taken(), accumulates, held=held)
        return self._predicted(shapes, accumulates, held) if self._trusted and not self._mixed else None

    def to_json(self) -> dict[str, Any]:
        """The steps that were looked at; those that are not like the first are left out."""
        first = self._reading.record if self._reading is not None else None
        alike = {s: r for s, r in self._records.items() if first is not None and r.is_like(first)}
        steps = [{"shapes": shapes, "asked": record.asked.tolist()} for shapes, record in alike.items()]
        first = None if first is None else first.to_json()
        return {"first": first, "steps": steps, "trusted": self._trusted, "mixed": self._mixed, "error": self.error}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DryRun:
        made = DryRun()
        if data["first"] is not None:
            first = Record.from_json(data["first"])
            made._reading = Reading(first)
            for step in data["steps"]:
                shapes = tuple(tuple(map(int, shape)) for shape in step["shapes"])
                asked = np.array(step["asked"], dtype=np.int64)
                if asked.shape != first.asked.shape:
                    raise ValueError("its steps are not of one form")
                made._records[shapes] = replace(first, asked=asked)
            if len(made._records) > 1:
                made._model = _Expressions(made._records)
        made._trusted, made._mixed, made.error = bool(data["trusted"]), bool(data["mixed"]), float(data["error"])
        return made

    def _predicted(self, shapes: Shapes, accumulates: bool, held: Held = None) -> Figures | None:
        asked = None if self._model is None else self._model.asked(shapes)
        if asked is None or self._reading is None:
            return None
        taken = self._reading.record.taken(asked)
        return self._reading.figures(taken, accumulates, int(self.error * float(taken.max(initial=0))), held)


class _Expressions:
    """Bytes asked for by each storage, as one monomial where that is exact, else as a sum of some that comes closest."""

    def __init__(self, records: dict[Shapes, Record]) -> None:
        self._variables = Variables.of(list(records))
        values = np.array([self._variables.values(shapes) for shapes in records], dtype=float).reshape(len(records), -1)
        table = np.stack([record.asked for record in records.values()])
        unique, self._class = np.unique(table, axis=1, return_inverse=True)
        self._class = self._class.ravel()
        terms = self._variables.terms()
        powers = _powers(values, terms)
        self._terms = terms
        self._weights = np.zeros((len(terms), unique.shape[1]))
        for number in range(unique.shape[1]):
            self._weights[:, number] = _expression(unique[:, number].astype(float), powers)

    def asked(self, shapes: Shapes) -> np.ndarray | None:
        values = self._variables.values(shapes)
        if values is None:
            return None
        sizes = np.rint(_powers(np.array([values], dtype=float), self._terms) @ self._weights)[0]
        return np.maximum(sizes, 0).astype(np.int64)[self._class]


def _expression(sizes: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """The weights of the terms: one of them alone if that is exact, else as few of the first as are."""
    weights = np.zeros(powers.shape[1])
    ratios = sizes[:, None] / powers
    alone = np.flatnonzero(np.ptp(ratios, axis=0) <= 1e-9 * np.abs(ratios[0]))
    if len(alone):
        weights[alone[0]] = ratios[0, alone[0]]
        return weights
    return _positive(powers, sizes)


def _positive(powers: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Weights of the terms, none below zero, that come closest: bytes are sums of products of sizes, and so few weights suffice
    that sizes of a few steps tell them."""
    scale = np.abs(powers).max(0)
    weights, _ = nnls(powers / scale, sizes, maxiter=50 * powers.shape[1])
    return weights / scale


def _difference(one: Figures, other: Figures) -> float:
    """The share by which two figures differ: of what a sheltered step reaches, and of what blocks save."""
    pairs = [(one.sheltered, other.sheltered), (sum(c.saved for c in one.calls), sum(c.saved for c in other.calls))]
    return max(abs(a - b) / max(b, 1) for a, b in pairs)


NUMBERS = ("entry", "back_entry", "forward", "back", "kept", "plain", "again", "saved", "products", "unsaved", "small", "given")


class Fitted:
    """Every figure as a polynomial through what real steps showed."""

    kind = "fitted"

    def __init__(self, why: str) -> None:
        self.why = why
        self._seen: dict[Shapes, list[Figures]] = {}
        self.error = 1.0

    @property
    def probes(self) -> int:
        return sum(map(len, self._seen.values()))

    def learn(self, shapes: Shapes, figures: Figures) -> None:
        """A real step was looked at, in which gradients were not added to others."""
        first = next(iter(self._seen.values()), None)
        if first is not None and [c.name for c in first[0].calls] != [c.name for c in figures.calls]:
            self.why += "; its calls of blocks depend on the data, so that all are checkpointed"
            self.error = 1.0
            return
        self._seen.setdefault(shapes, []).append(figures)
        self.error = self._left_out()

    @property
    def is_ready(self) -> bool:
        return self.error <= CLOSE or self.probes >= FITTED_STEPS

    def predict(self, shapes: Shapes, accumulates: bool, held: Held = None) -> Figures | None:
        if not self._seen or not self.is_ready or self.error >= 1.0:
            return None
        return self._fit(list(self._seen), shapes)

    def _table(self, sizes: Sequence[Shapes]) -> np.ndarray:
        return np.array([[getattr(c, n) for c in _highest(self._seen[s]).calls for n in NUMBERS] for s in sizes], float)

    def _fit(self, sizes: Sequence[Shapes], shapes: Shapes) -> Figures | None:
        template = _highest(self._seen[sizes[-1]])
        if len(sizes) == 1:
            return _with_margin(template, self.error) if sizes[0] == shapes else None
        variables = Variables.of(sizes)
        values = variables.values(shapes)
        rows = [variables.values(s) for s in sizes]
        if values is None or any(v > BEYOND * max(r[n] for r in rows if r) for n, v in enumerate(values)):
            return None
        terms = variables.terms()
        powers = _powers(np.array([*rows, values], dtype=float), terms)
        table, places = np.unique(self._table(sizes), axis=1, return_inverse=True)
        fits = [powers[-1] @ _positive(powers[:-1], table[:, n]) for n in range(table.shape[1])]
        row = np.rint(np.array(fits)).astype(np.int64)[places.ravel()]
        calls = []
        for number, call in enumerate(template.calls):
            told = dict(zip(NUMBERS, map(int, row[number * len(NUMBERS) : (number + 1) * len(NUMBERS)]), strict=True))
            share = told["saved"] / max(call.saved, 1)
            parts = tuple(PartWay(p.parts, *(int(share * n) for n in (p.saved, p.plain, p.back))) for p in call.parts)
            calls.append(CallFigures(**{**asdict(call), **told, "parts": parts}))
        return _with_margin(Figures(tuple(calls)), self.error)

    def _left_out(self) -> float:
        """How wrong the latest sizes would have been predicted by all the others."""
        sizes = list(self._seen)
        spread = max((_difference(f, _highest(many)) for many in self._seen.values() for f in many), default=0.0)
        if len(sizes) < 3:
            return 1.0 if len(sizes) > 1 or spread == 0.0 else spread
        wrong = [spread]
        for one in sizes[-3:]:
            rest = [s for s in sizes if s != one]
            predicted = self._fit(rest, one)
            if predicted is not None:
                wrong.append(_difference(Figures(predicted.calls), _highest(self._seen[one])))
        return max(wrong) if len(wrong) > 1 else 1.0


def _highest(many: Sequence[Figures]) -> Figures:
    return max(many, key=lambda figures: (figures.sheltered, sum(c.saved for c in figures.calls)))


def _with_margin(figures: Figures, error: float) -> Figures:
    whole = figures.sheltered + sum(call.saved for call in figures.calls)
    return Figures(figures.calls, int(error * whole))
