"""The rows as a drawing.

Peaks beside written-out attention as bars with their times, what a sweep of budgets came to as lines, and the longest
inputs as bars. A section without rows is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from benchmarks.common.drawing import WIDTH, sheet, text

Row = dict[str, Any]
LABELS, BAR, GAP = 250, 18, 12
COLOURS = {
    "written out": "#98a2ad",
    "SDPA": "#7f9fc6",
    "torch.compile": "#b58bc9",
    "ours": "#d9603f",
    "predicted": "#e39b3b",
    "measured": "#3b6ea8",
}
WEIGHTS = {"predicted": 5, "measured": 2}
"""Widths of lines: what is drawn later must leave what is under it to be seen."""


def draw(rows: dict[str, list[Row]]) -> str:
    """The drawing of the rows of `chunk.py`, by section."""
    parts: list[str] = []
    top = 10
    for section, chart in (("memory", _bars), ("budgets", _lines), ("longest", _lengths)):
        good = [row for row in rows.get(section, ()) if "failed" not in row]
        if good:
            lines, top = chart(good, top)
            parts += lines
    return sheet(parts, top)


def _bars(rows: list[Row], top: int) -> tuple[list[str], int]:
    """Activations as a share of the written-out model's, with the share and the time beside each bar."""
    lines = [text(10, top + 14, "Activations beside written-out attention (1.00), and time", "title")]
    top += 30
    for family, group in _by_family(rows):
        lines.append(text(10, top + 13, family, "title"))
        for row in group:
            share = row.get("share", 1.0)
            note = f"{share:.2f}, {row['activations'] / 1e6:,.0f} MB"
            if row.get("ratios"):
                note += f", {statistics.median(row['ratios']):.2f}x time"
            lines += _bar(top, row["way"], share, note)
            top += BAR + 3
        top += GAP
    return lines, top


def _lengths(rows: list[Row], top: int) -> tuple[list[str], int]:
    lines = [text(10, top + 14, "Longest input inside what written-out attention takes", "title")]
    top += 30
    most = max(row["ratio"] for row in rows)
    for row in rows:
        note = f"{row['ratio']:.1f}x: {row['ours']:,} {row['unit']} instead of {row['plain']:,}"
        lines += [text(10, top + 13, row["family"], "title"), *_bar(top, "ours", row["ratio"] / most, note)]
        top += BAR + 3
    return lines, top + GAP


def _lines(rows: list[Row], top: int) -> tuple[list[str], int]:
    """For each family a small square: budgets to the right, predicted and measured upwards, the budget itself dashed."""
    lines = [text(10, top + 14, "Activations inside a sweep of budgets (dashed)", "title")]
    for position, name in enumerate(WEIGHTS):
        lines.append(text(WIDTH - 180 + 90 * position, top + 14, name, fill=COLOURS[name]))
    top += 30
    across, side, gap = 3, 280, 30
    place = -1
    for place, (family, group) in enumerate(_by_family(rows)):
        left, low = 10 + (side + gap) * (place % across), top + (side + gap) * (place // across) + side
        points = sorted(group, key=lambda row: row["budget"])
        most = max(max(row["budget"], row["peak"]) - row["resident"] for row in points)
        lines.append(f'<rect x="{left}" y="{low - side}" width="{side}" height="{side}" fill="none" stroke="#dfe4ea"/>')
        lines.append(text(left + 6, low - side + 15, f"{family}, up to {most / 1e6:,.0f} MB"))
        dashed = f'x1="{left}" y1="{low}" x2="{left + side}" y2="{low - side}" stroke="#98a2ad" stroke-dasharray="4"'
        lines.append(f"<line {dashed}/>")
        for name, key in (("predicted", "predicted"), ("measured", "peak")):
            spots = [
                (left + side * _above(row, "budget") / most, low - side * _above(row, key) / most)
                for row in points
                if key in row
            ]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
            lines.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="{WEIGHTS[name]}"/>')
            lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{WEIGHTS[name] + 1}" fill="{COLOURS[name]}"/>' for x, y in spots]
    return lines, top + (side + gap) * (place // across + 1)


def _above(row: Row, key: str) -> float:
    return row[key] - row["resident"]


def _by_family(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    for family, group in groupby(rows, key=lambda row: row["family"]):
        yield family, list(group)


def _bar(top: int, name: str, share: float, note: str) -> list[str]:
    """A bar from the left, its name before it and its figures after it."""
    room = WIDTH - LABELS - 260
    length = max(1.0, room * min(share, 1.2) / 1.2)
    colour = COLOURS.get(name) or COLOURS["ours"]
    return [
        text(LABELS - 6, top + 13, name, "soft", anchor="end"),
        f'<rect x="{LABELS}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2" fill="{colour}"/>',
        text(LABELS + length + 6, top + 13, note),
    ]
