"""Peak against step time as a drawing: for each model one square, our plans a line, the others' points beside it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

from benchmarks.common.drawing import WIDTH, sheet, text

Row = dict[str, Any]
Point = tuple[float, float]
COLOURS = {"eager": "#98a2ad", "blocks": "#7f9fc6", "torch": "#b58bc9", "inductor": "#6fae8f", "ours": "#d9603f"}
ACROSS, SIDE, GAP, TOP = 3, 280, 30, 40


def draw(rows: Sequence[Row]) -> str:
    """The drawing of the rows of `remat.py`."""
    lines = [text(10, 20, "Peak (to the right) and seconds of a step (upwards)", "title")]
    lines += [text(WIDTH - 325 + 65 * i, 20, name, fill=colour) for i, (name, colour) in enumerate(COLOURS.items())]
    place = -1
    for place, (model, group) in enumerate(groupby(rows, key=lambda row: row["model"])):
        left, low = 10 + (SIDE + GAP) * (place % ACROSS), TOP + (SIDE + GAP) * (place // ACROSS) + SIDE
        lines += _square(model, points(group), left, low)
    return sheet(lines, TOP + (SIDE + GAP) * (place // ACROSS + 1))


def points(rows: Iterable[Row]) -> dict[str, list[Point]]:
    """Peak and usual seconds of every way that has both."""
    found: dict[str, list[Point]] = {name: [] for name in COLOURS}
    for before, row in pairwise([{}, *rows]):
        seconds = row.get("seconds", {})
        if "ours" not in seconds:
            continue
        found["ours"].append((row["peak"], statistics.median(seconds["ours"])))
        if "peak" in before and "budget" in row:
            found[before["way"].partition(" ")[0]].append((before["peak"], statistics.median(seconds["theirs"])))
    return found


def _square(model: str, found: dict[str, list[Point]], left: int, low: int) -> list[str]:
    every = [point for group in found.values() for point in group]
    lines = [f'<rect x="{left}" y="{low - SIDE}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#dfe4ea"/>']
    if not every:
        return lines
    widest, slowest = (1.1 * max(point[i] for point in every) for i in (0, 1))
    lines.append(text(left + 6, low - SIDE + 15, f"{model}, up to {widest / 1e6:,.0f} MB and {slowest:.2f} s"))
    for name, group in found.items():
        spots = [(left + SIDE * x / widest, low - SIDE * y / slowest) for x, y in sorted(group)]
        if name == "ours":
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
            lines.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[name]}"/>' for x, y in spots]
    return lines
