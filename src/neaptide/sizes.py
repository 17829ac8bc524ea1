"""Symbolic sizes: one table of the distinct expressions of a graph, evaluated by one compiled function.

In: the symbols of a capture and the expressions over them that its storages, workspaces and shapes need. Out: ints
for concrete dims (microseconds for thousands of values, since they share a few dozen expressions), and comparisons
that hold for every allowed size. The idea is BladeDISC++'s symbolic shape graph, on torch's own sympy expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy

from neaptide._torch import PythonPrinter

Expr = sympy.Expr


@dataclass(frozen=True, slots=True)
class Symbol:
    """A free size: its name in the capture, where it was seen (`input_ids.shape[1]`), and its allowed range."""

    name: str
    origin: str
    low: int = 2
    high: int | None = None
    hint: int = 2


class Sizes:
    """The distinct size expressions of one graph.

    >>> sizes = Sizes([Symbol("s0", "ids.shape[0]"), Symbol("s1", "ids.shape[1]")])
    >>> s0, s1 = sizes.symbol("s0"), sizes.symbol("s1")
    >>> rows, cells = sizes.add(4 * s0 * (s1 - 1) + 4 * s0), sizes.add(4 * s0 * s1)
    >>> rows == cells                       # equal expressions are one entry
    True
    >>> sizes.evaluate((3, 5))[cells]
    60
    >>> sizes.compare(s0 * s1 * 4, s1 * 4)  # for every size from 2 up
    1
    """

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        self.symbols = tuple(symbols)
        self.expressions: list[Expr] = []
        self._index: dict[Expr, int] = {}
        self._canonical: dict[Any, Expr] = {}
        self._symbols: dict[str, Any] = {s.name: sympy.Symbol(s.name, integer=True, positive=True) for s in symbols}
        self._function: Callable[..., tuple[int, ...]] | None = None

    def symbol(self, name: str) -> Expr:
        """The sympy symbol called `name`."""
        return self._symbols[name]

    def knows(self, name: str) -> bool:
        """Whether `name` is a symbol of this table, or bound to an expression over them."""
        return name in self._symbols

    def bind(self, name: str, size: Any) -> None:
        """Let the symbol `name`, whose value only a run tells, be counted as `size`."""
        self._symbols[name] = self.canonical(size)

    def canonical(self, size: Any) -> Expr:
        """`size` (an int or a sympy expression) in expanded form, over this table's own symbols."""
        if isinstance(size, int):
            return sympy.Integer(size)
        known = self._canonical.get(size)
        if known is None:
            own = {s: self._symbols[s.name] for s in size.free_symbols if s.name in self._symbols}
            known = self._canonical[size] = sympy.expand(size.xreplace(own))
        return known

    def add(self, size: Any) -> int:
        """The index of `size` in the table, entered if it is new."""
        expression = self.canonical(size)
        index = self._index.get(expression)
        if index is None:
            index = self._index[expression] = len(self.expressions)
            self.expressions.append(expression)
            self._function = None
        return index

    def find(self, size: Any) -> int | None:
        """The index of `size` in the table; None where it is not in it."""
        return self._index.get(self.canonical(size))

    def evaluate(self, dims: Sequence[int]) -> tuple[int, ...]:
        """Every expression of the table at the sizes `dims`, given in the order of `symbols`."""
        if self._function is None:
            self._function = _compile(self.symbols, self.expressions)
        return self._function(*dims)

    def around(self, dims: Sequence[int], times: float) -> tuple[int, ...] | None:
        """Dims so many times as large; None where some tensor has no size there: an image may be too small for a kernel."""
        found = tuple(max(int(d * times), min(d, 2)) for d in dims)
        try:
            return found if min(self.evaluate(found), default=0) >= 0 else None
        except ZeroDivisionError:
            return None

    def shape(self, sizes: Sequence[Any], dims: Sequence[int]) -> tuple[int, ...]:
        """A shape of ints and expressions at the sizes `dims`."""
        values = dict(zip((self._symbols[s.name] for s in self.symbols), dims, strict=True))
        return tuple(int(self.canonical(size).subs(values)) for size in sizes)

    @property
    def hints(self) -> tuple[int, ...]:
        """The sizes at which the graph was captured."""
        return tuple(s.hint for s in self.symbols)

    def compare(self, left: Any, right: Any) -> int | None:
        """-1, 0 or 1 if `left` is less than, equal to or greater than `right` at every allowed size; None if it depends."""
        difference = sympy.expand(self.canonical(left) - self.canonical(right))
        if difference == 0:
            return 0
        if self._positive(difference):
            return 1
        if self._positive(-difference):
            return -1
        return None

    def _positive(self, expression: Expr) -> bool:
        """Whether a polynomial is above 0 over the whole range: with s = low + t, every coefficient in t is 0 or more."""
        if expression.is_number:
            return bool(sympy.Gt(expression, 0))
        beyond = [sympy.Symbol(f"{s.name}_beyond") for s in self.symbols]
        shifted = {self._symbols[s.name]: t + s.low for s, t in zip(self.symbols, beyond, strict=True)}
        try:
            terms: dict[Any, Any] = sympy.Poly(sympy.expand(expression.xreplace(shifted)), *beyond).as_dict()
        except (sympy.PolynomialError, sympy.GeneratorsError):
            return False
        constant = terms.get((0,) * len(beyond), 0)
        known = all(c.is_number for c in terms.values())
        return known and bool(constant > 0) and all(bool(c >= 0) for c in terms.values())


def quotient(whole: Any, part: Any) -> Any:
    """`whole / part` where that is a whole number at every size, else None.

    >>> quotient(12, 4), quotient(12, 5)
    (3, None)
    >>> s = sympy.Symbol("s", integer=True, positive=True)
    >>> quotient(64 * s, s), quotient(s, 2)
    (64, None)
    """
    if part == 1:
        return whole
    if whole == part:
        return 1
    if isinstance(whole, int) and isinstance(part, int):
        return whole // part if part and whole % part == 0 else None
    return _ratio(whole, part)


@lru_cache(maxsize=1 << 14)
def _ratio(whole: Any, part: Any) -> Any:
    ratio = sympy.cancel(sympy.sympify(whole) / part)
    if ratio.is_Integer:
        return int(ratio)
    return ratio if ratio.is_integer or _is_whole_polynomial(ratio) else None


def _is_whole_polynomial(ratio: Any) -> bool:
    symbols = ratio.free_symbols
    return bool(symbols) and ratio.is_polynomial(*symbols) and all(c.is_Integer for c in sympy.Poly(ratio, *symbols).coeffs())


def equal(a: Any, b: Any) -> bool:
    """Whether two sizes are the same at every size of the capture."""
    return a == b or (not (isinstance(a, int) and isinstance(b, int)) and _is_nothing(a - b))


@lru_cache(maxsize=1 << 14)
def _is_nothing(difference: Any) -> bool:
    return sympy.expand(difference) == 0


def print_expression(expression: Expr) -> str:
    """An expression as Python source over the names of its symbols."""
    return PythonPrinter().doprint(expression)


def _compile(symbols: Iterable[Symbol], expressions: Sequence[Expr]) -> Callable[..., tuple[int, ...]]:
    """One Python function from dims to the values of all expressions, common parts computed once."""
    shared, reduced = sympy.cse(expressions, symbols=sympy.numbered_symbols("x", integer=True, positive=True))
    printer = PythonPrinter()
    lines = [f"def sizes({', '.join(s.name for s in symbols)}):"]
    lines += [f"    {name} = {printer.doprint(part)}" for name, part in shared]
    lines += [f"    return ({''.join(printer.doprint(e) + ', ' for e in reduced)})"]
    space: dict[str, Any] = {}
    # The source is made here, from sympy expressions; nothing that came from a file gets in.
    exec("\n".join(lines), {"math": math, "min": min, "max": max}, space)  # noqa: S102
    return space["sizes"]
