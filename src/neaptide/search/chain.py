"""A step of several calls: one way to run each of them, such that the whole step fits and takes least time.

In: for each call, in order, the ways there are to run it. Out: one of them for each. Forwards run in order and each leaves
something behind; backwards run in reverse, and each finds there what earlier calls left behind and what later ones made
(gradients). So what a call leaves behind is dear, and the earlier the dearer. What it hands to a later call is gone by then.

Beginnings of a chain are extended by every way of the next call; of those with as much there, the cheapest is followed. A
long run of calls with the very same ways is one step of that: so many of it run one way, the rest another, and where that
leaves room, single calls are then run faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LABELS = 64
"""How many beginnings of a chain are followed at most."""
LONG = 8
"""A run of so many calls with the same ways is taken at once."""
PAIRS = 1 << 13
"""How many beginnings and ways of a run are tried together at most."""


@dataclass(frozen=True, slots=True)
class Take:
    """What a way to run a call takes: bytes beyond what is there before it, and seconds beyond those of the fastest."""

    front: int
    back: int
    """The peaks of its forward and of its backward."""
    kept: int
    """What its forward leaves behind."""
    seconds: float = 0.0
    outputs: int = 0
    """Of that, what it hands out and does not need itself: there throughout the backward, if somebody holds it."""

    @property
    def peak(self) -> int:
        """The peak, with what is handed out held to the end."""
        return max(self.front, self.back)

    def level(self, later: int, gone: bool) -> int:
        """How high it reaches, with what is there by the time of its backward, and what it handed out gone or not.

        >>> Take(50, 80, 40, outputs=10).level(0, False), Take(50, 80, 40, outputs=10).level(5, True)
        (80, 75)
        """
        return max(self.front, self.back + later - (self.outputs if gone else 0))


@dataclass(frozen=True, slots=True)
class Link:
    """One call: its ways, what is new there from it on, what later calls will have made when its backward runs, and whether
    what it handed out is gone then."""

    ways: Sequence[Take]
    fresh: int = 0
    later: int = 0
    gone: bool = False

    def level(self, way: Take) -> int:
        return way.level(self.later, self.gone)


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
    found = _followed(links, math.inf, for_peak=True)
    assert found is not None
    return found


def fastest(links: Sequence[Link], limit: int) -> Chain | None:
    """The chain that takes least time among those that reach no higher than `limit`.

    >>> small, fast = Take(9, 9, 1, 1.0), Take(6, 6, 5)
    >>> [fastest([Link([small, fast]), Link([small, fast])], limit).levels for limit in (10, 11)]
    [(9, 7), (6, 11)]
    >>> fastest([Link([small, fast]), Link([small, fast])], 8)
    """
    found = _followed(links, limit, for_peak=False)
    return found if found is None or len(links) < LONG else _filled(links, found, limit)


@dataclass(frozen=True, eq=False, slots=True)
class _Options:
    """What can be done with a link, or with a run of them: how high each reaches, what it leaves behind, and its seconds."""

    high: np.ndarray
    kept: np.ndarray
    seconds: np.ndarray
    choices: np.ndarray
    """For each: the way of the first links of a run, how many those are, and the way of the rest."""
    ways: Sequence[Take]
    length: int

    def decoded(self, number: int) -> list[Take]:
        first, count, rest = self.choices[number]
        return [self.ways[first]] * int(count) + [self.ways[rest]] * int(self.length - count)


def _followed(links: Sequence[Link], limit: float, for_peak: bool) -> Chain | None:
    there, cost = np.zeros(1, dtype=np.int64), np.zeros(1)
    steps: list[tuple[_Options, np.ndarray, np.ndarray]] = []
    for options in _options(links):
        if len(there) > 8 and len(there) * len(options.high) > PAIRS:
            few = _evenly(there, max(PAIRS // len(options.high), 8))
            there, cost = there[few], cost[few]
            steps[-1] = (steps[-1][0], steps[-1][1][few], steps[-1][2][few])
        level = there[:, None] + options.high
        price = np.maximum(cost[:, None], level) if for_peak else cost[:, None] + options.seconds
        fits = np.flatnonzero(level.ravel() <= limit)
        if not len(fits):
            return None
        after, price = (there[:, None] + options.kept).ravel()[fits], price.ravel()[fits]
        best = _best(after, price)
        there, cost, taken = after[best], price[best], fits[best]
        steps.append((options, taken // len(options.high), taken % len(options.high)))
    return _traced(links, steps, int(np.argmin(cost)))


def _best(there: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Those of which no other has less there at no higher cost; where there are too many, some of them, evenly."""
    order = np.lexsort((cost, there))
    lined = cost[order]
    lower = np.ones(len(order), dtype=bool)
    lower[1:] = lined[1:] < np.minimum.accumulate(lined)[:-1]
    found = order[lower]
    return found if len(found) <= LABELS else found[_evenly(there[found], LABELS)]


def _evenly(there: np.ndarray, count: int) -> np.ndarray:
    marks = np.linspace(there[0], there[-1], count)
    return np.unique(np.minimum(np.searchsorted(there, marks), len(there) - 1))


def _traced(links: Sequence[Link], steps: Sequence[tuple[_Options, np.ndarray, np.ndarray]], last: int) -> Chain:
    found: list[list[Take]] = []
    for options, before, number in reversed(steps):
        found.append(options.decoded(number[last]))
        last = int(before[last])
    ways = [way for part in reversed(found) for way in part]
    return Chain(tuple(ways), tuple(_levels(links, ways)))


def _levels(links: Sequence[Link], ways: Sequence[Take]) -> Iterator[int]:
    there = 0
    for link, way in zip(links, ways, strict=True):
        there += link.fresh
        yield there + link.level(way)
        there += way.kept


def _options(links: Sequence[Link]) -> Iterator[_Options]:
    start = 0
    while start < len(links):
        stop, first = start + 1, links[start]
        while stop < len(links) and links[stop].ways is first.ways and _about(links[stop]) == _about(first):
            stop += 1
        if stop - start < LONG:
            stop = start + 1
        yield _run(links[start:stop])
        start = stop


def _about(link: Link) -> tuple[int, bool]:
    return link.fresh, link.gone


def _run(links: Sequence[Link]) -> _Options:
    """One link, or a run of links that have the same ways."""
    fresh, length = links[0].fresh, len(links)
    ways = _undominated(links)
    front, back, kept = (np.array([getattr(way, name) for way in ways]) for name in ("front", "back", "kept"))
    if links[0].gone:
        back = back - np.array([way.outputs for way in ways])
    seconds = np.array([way.seconds for way in ways], dtype=float)
    high = np.maximum(front[:, None], back[:, None] + np.array([link.later for link in links])) + fresh
    step = kept + fresh
    if length == 1:
        numbers = np.arange(len(ways))
        return _Options(high[:, 0], step, seconds, np.stack([numbers, numbers * 0 + 1, numbers], 1), ways, 1)
    along = np.arange(length)
    reach = high + step[:, None] * along
    nothing = np.full((len(ways), 1), -(1 << 62))
    first = np.concatenate([nothing, np.maximum.accumulate(reach, 1)], 1)
    rest = np.concatenate([np.maximum.accumulate(reach[:, ::-1], 1)[:, ::-1], nothing], 1)
    count = np.arange(length + 1)
    before = step[:, None, None] * count[None, :, None]
    shifted = rest.T[None] + before - step[None, None, :] * count[None, :, None]
    level = np.maximum(first[:, :, None], np.where(rest.T[None] == -(1 << 62), -(1 << 62), shifted))
    after = before + step[None, None, :] * (length - count)[None, :, None]
    time = seconds[:, None, None] * count[None, :, None] + seconds[None, None, :] * (length - count)[None, :, None]
    shape = np.indices(level.shape).reshape(3, -1).T
    return _Options(level.ravel(), after.ravel(), time.ravel(), shape, ways, length)


def _undominated(links: Sequence[Link]) -> list[Take]:
    """The ways of which no other reaches no higher, leaves no more and takes no longer, in any of the links."""
    ways, first = links[0].ways, links[0]
    alone = len(links) == 1
    highs = [first.level(way) for way in ways]
    backs = [way.back - (way.outputs if first.gone else 0) for way in ways]
    kept: list[int] = []
    for n in sorted(range(len(ways)), key=lambda n: (highs[n], ways[n].kept, ways[n].seconds)):
        one = ways[n]
        if not any(
            ways[k].kept <= one.kept
            and ways[k].seconds <= one.seconds
            and (alone or (ways[k].front <= one.front and backs[k] <= backs[n]))
            for k in kept
        ):
            kept.append(n)
    return [ways[n] for n in kept]


def _filled(links: Sequence[Link], found: Chain, limit: float) -> Chain:
    """The chain with single links run faster where there is room, the last first."""
    ways, levels = list(found.ways), list(found.levels)
    spare = math.inf
    moved = False
    for at in range(len(links) - 1, -1, -1):
        link, now = links[at], ways[at]
        there = levels[at] - link.level(now)
        for way in sorted(link.ways, key=lambda way: way.seconds):
            if way.seconds >= now.seconds:
                break
            more = way.kept - now.kept
            if there + link.level(way) <= limit and more <= spare:
                ways[at], moved = way, True
                levels[at] = there + link.level(way)
                spare -= max(more, 0)
                break
        spare = min(spare, limit - levels[at])
    return Chain(tuple(ways), tuple(_levels(links, ways))) if moved else found
