"""The honest no: what a step needs, what it may take, and the largest batch that would fit."""

from __future__ import annotations

from neaptide.eager.figures import Figures
from neaptide.errors import BudgetError
from neaptide.report import format_bytes


def refusal(limit: int, base: int, level: int, figures: Figures, batch: int | None) -> BudgetError:
    """The error for a step whose lowest choice reaches `level` beyond what is there."""
    smallest = base + level
    there = 0
    held = ("", 0)
    for call in figures.calls:
        high = there + max(call.entry + call.forward, call.back_entry + max(call.again, call.back))
        held = max(held, (call.name or "what lies outside blocks", high), key=lambda pair: pair[1])
        there += call.kept
    fits = f", or batches of at most {batch}" if batch else ""
    return BudgetError(
        f"needs {format_bytes(smallest)}, budget {format_bytes(limit)}; that is the smallest reachable peak, "
        f"{format_bytes(base)} of it there before the step (held by {held[0]}). Try budget={smallest}{fits}, or split=True.",
        need=smallest,
        limit=limit,
        smallest=smallest,
    )
