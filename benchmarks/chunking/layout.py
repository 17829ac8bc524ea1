"""The columns of each section: a heading, a width, and what a row shows there."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of text; the first two of a table lean left."""

    heading: str
    width: int
    show: Callable[[Row], str]


def header(section: str) -> str:
    return _line(section, [column.heading for column in COLUMNS[section]])


def line(section: str, row: Row) -> str:
    """A row as text; what failed or is worth a note stands after the columns."""
    remark = shorten(row.get("failed") or row.get("note") or "", 140, placeholder=" ...")
    return f"{_line(section, [column.show(row) for column in COLUMNS[section]])}  {remark}".rstrip()


def _line(section: str, cells: list[str]) -> str:
    widths = [column.width for column in COLUMNS[section]]
    return "".join(
        f"{cell:<{width}}" if position < 2 else f"{cell:>{width}}"
        for position, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def _get(name: str, form: str = "", scale: float = 1.0) -> Callable[[Row], str]:
    """A figure of a row, empty where it is not known."""

    def show(row: Row) -> str:
        value = row.get(name)
        return "" if value is None else str(value) if not form else format(value / scale, form)

    return show


def _megabytes(name: str) -> Callable[[Row], str]:
    return _get(name, ",.1f", 1e6)


def _yes(name: str) -> Callable[[Row], str]:
    return lambda row: {None: "", True: "yes", False: "NO"}[row.get(name)]


def _middle(row: Row) -> str:
    return f"{statistics.median(row['ratios']):.3f}" if row.get("ratios") else ""


def _quartiles(row: Row) -> str:
    if len(row.get("ratios", ())) < 2:
        return ""
    low, _, high = statistics.quantiles(row["ratios"], n=4)
    return f"{low:.3f}-{high:.3f}"


def _held(row: Row) -> str:
    return _yes("held")({"held": row["peak"] <= row["budget"]} if "peak" in row and row.get("budget") else {})


def _area(row: Row) -> str:
    return f"{row['ratio'] ** 2:.2f}" if row.get("flat") and "ratio" in row else ""


def _compared(against: str) -> tuple[Column, ...]:
    return (
        Column("model", 11, _get("family")),
        Column("way", 28, _get("way")),
        Column("size", 6, _get("size")),
        Column("budget MB", 11, _megabytes("budget")),
        Column("predicted", 11, _megabytes("predicted")),
        Column("measured", 11, _megabytes("peak")),
        Column("activations MB", 16, _megabytes("activations")),
        Column("share", 8, _get("share", ".3f")),
        Column(f"time / {against}", 9 + len(against), _middle),
        Column("quartiles", 14, _quartiles),
    )


COLUMNS: dict[str, tuple[Column, ...]] = {
    "memory": _compared("written out"),
    "sdpa": _compared("SDPA"),
    "experts": _compared("baseline"),
    "longest": (
        Column("model", 11, _get("family")),
        Column("unit", 16, _get("unit")),
        Column("budget MB", 11, _megabytes("budget")),
        Column("written out", 13, _get("plain")),
        Column("ours", 8, _get("ours")),
        Column("ratio", 8, _get("ratio", ".2f")),
        Column("of areas", 10, _area),
        Column("predicted", 11, _megabytes("predicted")),
        Column("measured", 11, _megabytes("peak")),
        Column("held", 6, _held),
        Column("seconds", 9, _get("seconds", ".1f")),
    ),
    "budgets": (
        Column("model", 11, _get("family")),
        Column("step", 6, _get("step")),
        Column("share", 8, _get("share", ".3f")),
        Column("budget MB", 11, _megabytes("budget")),
        Column("predicted", 11, _megabytes("predicted")),
        Column("measured", 11, _megabytes("peak")),
        Column("held", 6, _yes("held")),
        Column("predicted s", 13, _get("predicted_seconds", ".3f")),
        Column("monotone", 10, _yes("monotone")),
    ),
    "planning": (
        Column("model", 11, _get("family")),
        Column("rewriting", 11, _yes("rewrite")),
        Column("layers", 8, _get("layers")),
        Column("budget MB", 11, _megabytes("budget")),
        Column("first s", 9, _get("first", ".2f")),
        Column("captures", 10, _get("captures")),
        Column("new lengths", 13, _get("new")),
        Column("usual ms", 10, _get("usual", ".1f", 1e-3)),
        Column("longest ms", 12, _get("longest", ".1f", 1e-3)),
    ),
    "rank": (
        Column("model", 11, _get("family")),
        Column("step", 6, _get("step")),
        Column("rewriting", 11, _yes("rewrite")),
        Column("parts x", 9, _get("finer")),
        Column("budget MB", 11, _megabytes("budget")),
        Column("predicted s", 13, _get("predicted_seconds", ".3f")),
        Column("measured s", 12, _get("seconds", ".3f")),
        Column("Spearman", 10, _get("spearman", ".3f")),
        Column("Pearson", 9, _get("pearson", ".3f")),
        Column("measured twice", 16, _get("repeated", ".3f")),
    ),
}
