"""The fastest way through a graph inside a budget: a shortest path over its ops, each run whole or inside a region.

In: weighed regions, and the bytes and seconds of each op run whole. Out: regions that do not overlap, each with its chunk. What
is alive between two regions does not depend on what they are, so that each step of the path is judged by itself and the best
path is found exactly; identical layers cannot stall it. The smallest reachable peak is the path whose highest step is lowest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neaptide.search.chunk.kinds import Kinds
from neaptide.search.chunk.regions import Region
from neaptide.search.chunk.weigh import Scales

AS_FAST = 1.1
"""What changes no bit is taken where it costs no more than this of what does."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Regions and their chunks, in order; `late` ops are made again for each use outside of them."""

    chosen: tuple[tuple[Region, int], ...]
    late: frozenset[int]
    peak: int
    seconds: float


class Paths:
    """Every way through a graph at one size."""

    def __init__(self, scales: Scales, kinds: Kinds) -> None:
        self.late = scales.forms.late
        self.count = scales.forms.count
        self.plain: list[int] = scales.plain.tolist()
        self.seconds: list[float] = scales.seconds.tolist()
        self.edges, self.options = kinds.edges, scales.weigh(kinds)

    def fastest(self, limit: int, exact: bool) -> Selection | None:
        """The fastest way on which no step takes more than `limit`."""
        best = [math.inf] * (self.count + 1)
        back: list[Any] = [None] * (self.count + 1)
        best[0] = 0.0
        chunks = self.options.fastest(limit)
        for op in range(self.count):
            paid = best[op]
            if paid == math.inf:
                continue
            if self.plain[op] <= limit and paid + self.seconds[op] <= best[op + 1]:
                best[op + 1], back[op + 1] = paid + self.seconds[op], (op, None, 0, self.plain[op])
            for stop, is_exact, kind, region in self.edges[op]:
                found = chunks[kind]
                if found is not None and paid + found[0] < best[stop] and (is_exact or not exact):
                    seconds, chunk, peak = found
                    best[stop], back[stop] = paid + seconds, (op, region, chunk, peak)
        return self._walk(best, back)

    def lowest(self, exact: bool) -> int:
        """The smallest peak that any way has."""
        best: list[int | None] = [None] * (self.count + 1)
        best[0] = 0
        lowest = self.options.lowest()
        for op in range(self.count):
            here = best[op]
            if here is None:
                continue
            steps = [(op + 1, self.plain[op])]
            steps += [(stop, lowest[kind]) for stop, is_exact, kind, _ in self.edges[op] if is_exact or not exact]
            for stop, peak in steps:
                reached, known = max(here, peak), best[stop]
                if known is None or reached < known:
                    best[stop] = reached
        return best[self.count] or 0

    def _walk(self, best: list[float], back: list[Any]) -> Selection | None:
        if best[self.count] == math.inf:
            return None
        chosen: list[tuple[Region, int]] = []
        position, highest = self.count, 0
        while position > 0:
            position, region, chunk, peak = back[position]
            highest = max(highest, peak)
            if region is not None:
                chosen.append((region, chunk))
        return Selection(tuple(reversed(chosen)), self.late, highest, best[self.count])


def select(paths: Sequence[Paths], limit: int, exact: bool) -> Selection | None:
    """The fastest selection inside `limit` over several sets of ways; one that changes no bit if it is nearly as fast."""
    safe, fast = (
        min(filter(None, (p.fastest(limit, strict) for p in paths)), key=lambda s: (s.seconds, s.peak), default=None)
        for strict in (True, exact)
    )
    return safe if safe is not None and (fast is None or safe.seconds <= fast.seconds * AS_FAST) else fast
