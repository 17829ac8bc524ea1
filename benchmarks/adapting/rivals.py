"""What others would choose, told in our terms: a way for each call of a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neaptide.eager.choose import Choice, Rates, Weighed
from neaptide.eager.figures import Figures
from neaptide.eager.strengths import FULL, KEEP, Way


def told(figures: Figures, ways: Sequence[Way]) -> Choice:
    """A choice of given ways, with the level that it reaches."""
    return Weighed(figures, Rates()).told(ways)


def everything(figures: Figures) -> Choice:
    """Every block checkpointed, the last as well."""
    return told(figures, [FULL] * sum(call.is_block for call in figures.calls))


class Mimose:
    """Mimose's greedy as it is described: a quadratic in one scalar size for each block's bytes, blocks ranked into buckets of
    10 %, largest bucket first, earliest first in each, until the sum of bytes fits. Its buffer is raised until budgets hold."""

    def __init__(self, seen: Sequence[tuple[int, Figures]]) -> None:
        self._seen = seen[:10]

    def choice(self, size: int, figures: Figures, room: int) -> Choice:
        buffer = 0
        while True:
            found = self._greedy(size, figures, room - buffer)
            if found.level <= room or all(way is FULL for way in found.ways):
                return found
            buffer += room // 50

    def _greedy(self, size: int, figures: Figures, room: int) -> Choice:
        blocks = [call for call in figures.calls if call.is_block]
        sizes = [s for s, _ in self._seen]
        table = np.array([[c.saved for c in f.calls if c.is_block] for _, f in self._seen], float)
        degree = min(2, len(set(sizes)) - 1)
        guess = [float(np.polyval(np.polyfit(sizes, table[:, n], degree), size)) for n in range(len(blocks))]
        rest = sum(call.kept for call in figures.calls)
        excess = rest + sum(guess) - room
        order = sorted(range(len(blocks)), key=lambda n: (-round(10 * guess[n] / max(max(guess), 1)), n))
        ways: list[Way] = [KEEP] * len(blocks)
        for number in order:
            if excess <= 0:
                break
            ways[number] = FULL
            excess -= guess[number]
        return told(figures, ways)


def as_text(ways: Sequence[Way]) -> list[Any]:
    return [[way.strength, list(way.parts)] for way in ways]


def from_text(ways: Sequence[Any]) -> list[Way]:
    known = {"keep": KEEP, "full": FULL}
    return [known.get(strength) or Way(strength, tuple(parts)) for strength, parts in ways]
