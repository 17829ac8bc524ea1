"""Sizes are evaluated all at once, equal ones are one, and two can be compared for every allowed size."""

from __future__ import annotations

import time

import sympy

from neaptide._torch import FloorDiv
from neaptide.sizes import Sizes, Symbol


def two() -> tuple[Sizes, sympy.Expr, sympy.Expr]:
    sizes = Sizes([Symbol("s0", "ids.shape[0]"), Symbol("s1", "ids.shape[1]", low=16)])
    return sizes, sizes.symbol("s0"), sizes.symbol("s1")


def test_equal_expressions_are_one_entry_however_they_are_written() -> None:
    sizes, a, b = two()
    assert sizes.add(4 * a * (b - 1) + 4 * a) == sizes.add(4 * a * b)
    assert sizes.add(7) == sizes.add(sympy.Integer(7))


def test_all_expressions_are_evaluated_at_once_as_ints() -> None:
    sizes, a, b = two()
    half = sizes.add(FloorDiv(a * b, 2))
    most = sizes.add(sympy.Max(a, b))
    square = sizes.add(b**2)
    values = sizes.evaluate((3, 17))
    assert (values[half], values[most], values[square]) == (25, 17, 289)
    assert all(type(value) is int for value in values)


def test_three_thousand_values_take_well_under_a_millisecond() -> None:
    sizes, a, b = two()
    for k in range(3000):
        sizes.add(4 * (k % 60 + 1) * a * b + 64 * (k % 7))
    sizes.evaluate((3, 17))
    begin = time.perf_counter()
    for _ in range(20):
        sizes.evaluate((4, 1000))
    assert (time.perf_counter() - begin) / 20 < 1e-3


def test_two_sizes_are_compared_over_the_whole_range_where_that_is_decidable() -> None:
    sizes, a, b = two()
    assert sizes.compare(a * b, a) == 1
    assert sizes.compare(a, a * b) == -1
    assert sizes.compare(a * b + a, a * (b + 1)) == 0
    assert sizes.compare(b, 15) == 1, "the range of s1 begins at 16"
    assert sizes.compare(a, b) is None
    assert sizes.compare(3, 2) == 1
    assert sizes.compare(FloorDiv(a, 2), b) is None


def test_a_size_that_only_a_run_tells_is_counted_as_what_it_is_bound_to() -> None:
    sizes, a, b = two()
    unknown = sympy.Symbol("u0", integer=True)
    sizes.bind("u0", a * b)
    rows = sizes.add(8 * unknown)
    assert sizes.evaluate((2, 16))[rows] == 256


def test_a_shape_is_given_for_concrete_sizes() -> None:
    sizes, a, b = two()
    assert sizes.shape((a, 5, a * b), (2, 16)) == (2, 5, 32)
