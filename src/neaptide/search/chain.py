"""A step of several calls: one way to run each of them, such that the whole step fits and takes least time.

In: for each call, in order, the ways there are to run it. Out: one of them for each. Forwards run in order and each leaves
something behind; backwards run in reverse, and each finds there what earlier calls left behind and what later ones made
(gradients). So what a call leaves behind is dear, and the earlier the dearer.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LABELS = 64
"""How many beginnings of a chain are followed at most."""


@dataclass(frozen=True, slots=True)
class Take:
    """What a way to run a call takes: bytes beyond what is there before it, and seconds beyond those of the fastest."""

    peak: int
    back: int
    """The peak of its backward alone."""
    kept: int
    """What its forward leaves behind."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """One call: its ways, what is new there from it on, and what later calls will have made when its backward runs."""

    ways: Sequence[Take]
    fresh: int = 0
    later: int = 0


@dataclass(frozen=True, slots=True)
class Chain:
    """A way for each call, and how high each reaches."""

    ways: tuple[Take, ...]
    levels: tuple[int, ...]

    @property
    def peak(self) -> int:
        return max(self.levels)


def lowest(links: Sequence[Link]) -> Chain:
    """The chain with the lowest peak.

    >>> small, fast = Take(9, 9, 1, 1.0), Take(6, 6, 5)
    >>> lowest([Link([small, fast]), Link([small, fast])]).levels
    (9, 7)
    """
    found = _followed(links, math.inf, lambda cost, level, _: max(cost, level))
    assert found is not None
    return found


def fastest(links: Sequence[Link], limit: int) -> Chain | None:
    """The chain that takes least time among those that reach no higher than `limit`.

    >>> small, fast = Take(9, 9, 1, 1.0), Take(6, 6, 5)
    >>> [fastest([Link([small, fast]), Link([small, fast])], limit).levels for limit in (10, 11)]
    [(9, 7), (6, 11)]
    >>> fastest([Link([small, fast]), Link([small, fast])], 8)
    """
    return _followed(links, limit, lambda cost, _, way: cost + way.seconds)


@dataclass(frozen=True, slots=True)
class _Label:
    """The beginning of a chain."""

    there: int
    cost: float
    way: Take | None = None
    level: int = 0
    before: _Label | None = None


def _followed(links: Sequence[Link], limit: float, price: Callable[[float, int, Take], float]) -> Chain | None:
    labels = [_Label(0, 0.0)]
    for link in links:
        ways = _undominated(link)
        found: list[_Label] = []
        for label in labels:
            there = label.there + link.fresh
            for way, high in ways:
                level = there + high
                if level <= limit:
                    found.append(_Label(there + way.kept, price(label.cost, level, way), way, level, label))
        labels = _best(found)
        if not labels:
            return None
    last: _Label | None = min(labels, key=lambda label: label.cost)
    ways, levels = [], []
    while last is not None and last.way is not None:
        ways.append(last.way)
        levels.append(last.level)
        last = last.before
    return Chain(tuple(reversed(ways)), tuple(reversed(levels)))


def _undominated(link: Link) -> list[tuple[Take, int]]:
    """The ways of which no other reaches no higher, leaves no more and takes no longer; each with how high it reaches."""
    lined = sorted((max(w.peak, w.back + link.later), w.kept, w.seconds, n) for n, w in enumerate(link.ways))
    kept: list[tuple[int, int, float, int]] = []
    for one in lined:
        if not any(k <= one[1] and s <= one[2] for _, k, s, _ in kept):
            kept.append(one)
    return [(link.ways[n], high) for high, _, _, n in kept]


def _best(labels: list[_Label]) -> list[_Label]:
    """Labels of which no other has less there at no higher cost; where there are too many, some of them, evenly."""
    found: list[_Label] = []
    for label in sorted(labels, key=lambda one: (one.there, one.cost)):
        if not found or label.cost < found[-1].cost:
            found.append(label)
    if len(found) <= LABELS:
        return found
    theres = [label.there for label in found]
    least, most = theres[0], theres[-1]
    marks = (least + (most - least) * step / (LABELS - 1) for step in range(LABELS))
    return [found[n] for n in sorted({min(bisect_left(theres, mark), len(found) - 1) for mark in marks})]
