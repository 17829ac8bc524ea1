"""Which call of a block runs in which way: the least time of those that fit.

In: figures, a limit, seconds per byte. Out: a `Choice`. The calls are a chain (`search/chain.py`), as the graphs of a compiled
step are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from neaptide.eager.figures import CallFigures, Figures
from neaptide.eager.strengths import AWAY, FULL, KEEP, SELECTIVE, Way
from neaptide.generator import STATE_BYTES
from neaptide.search import chain
from neaptide.search.chain import Chain, Link, Take

POINTWISE = 0.75
"""The share of a forward's time that is left to do again where the results of products are kept."""
PER_BYTE = 1e-9
"""Seconds of a block's forward for each byte that it saves, until its time is known."""


@dataclass
class Rates:
    """Seconds of forwards per byte saved, as ordinary steps showed them: of blocks by likeness, of parts by likeness and
    name."""

    blocks: dict[int, float] = field(default_factory=dict)
    parts: dict[tuple[int, str], float] = field(default_factory=dict)
    away: float | None = None
    """Seconds for a byte there and back; None where nothing may be sent away."""
    selective: bool = False
    """Whether selective checkpointing is weighed: it fails where something is written into a result that it keeps."""
    only_whole: bool = False
    """Whether blocks are kept or made again as a whole, and nothing else."""

    def whole(self, call: CallFigures) -> float:
        """Seconds to make a call of a block again."""
        return self.blocks.get(call.alike, PER_BYTE) * call.saved

    def seen(self, alike: int, part: str, seconds: float, nbytes: int) -> None:
        """A forward took so long. The fastest is the truest, but what changes is followed."""
        if nbytes <= 0:
            return
        rate = seconds / nbytes
        known: dict = self.parts if part else self.blocks
        key = (alike, part) if part else alike
        before = known.get(key)
        known[key] = rate if before is None else min(rate, 0.9 * before + 0.1 * rate)


@dataclass(frozen=True)
class Choice:
    """How each call of a block runs, and how high the step reaches: bytes beyond what is there before it."""

    ways: tuple[Way, ...]
    level: int
    kept: int
    """What is left behind by the forwards of the whole step."""
    seconds: float
    found: Chain

    @property
    def counts(self) -> Mapping[str, int]:
        """How many calls run in each way."""
        counts: dict[str, int] = {}
        for way in self.ways:
            counts[str(way)] = counts.get(str(way), 0) + 1
        return counts


class Weighed:
    """Figures as links of a chain."""

    def __init__(self, figures: Figures, rates: Rates) -> None:
        self.figures = figures
        self._rates = rates
        self._shared: dict[tuple, tuple[tuple[Take, ...], tuple[Way, ...]]] = {}
        self._ways: list[tuple[Way, ...] | None] = []
        self.links: list[Link] = []
        for call in figures.calls:
            takes, ways = self._takes(call)
            self.links.append(Link(takes, 0, call.back_entry))
            self._ways.append(ways if call.is_block else None)

    def _takes(self, call: CallFigures) -> tuple[tuple[Take, ...], tuple[Way, ...]]:
        """The ways to run a call; calls that differ in nothing but what is there when their backward begins share them."""
        key = (call.name if not call.is_block else call.alike, call.entry, call.kept, call.saved, call.plain, call.again)
        key += (call.forward, call.back, call.given)
        found = self._shared.get(key)
        if found is None:
            pairs = list(_ways(call, self._rates))
            found = self._shared[key] = (tuple(take for take, _ in pairs), tuple(way for _, way in pairs))
        return found

    def fastest(self, limit: int) -> Choice | None:
        """The fastest choice that reaches no higher than `limit`."""
        found = chain.fastest(self.links, limit - self.figures.margin)
        return None if found is None else self._choice(found)

    def lowest(self) -> Choice:
        """The choice that reaches least high, and of those the fastest."""
        low = chain.lowest(self.links)
        return self._choice(chain.fastest(self.links, low.peak) or low)

    def told(self, ways: Sequence[Way]) -> Choice:
        """The choice of given ways, one for each call of a block; one that a call does not have is to keep all."""
        chosen, given = [], iter(ways)
        for link, known in zip(self.links, self._ways, strict=True):
            way = next(given) if known is not None else None
            chosen.append(link.ways[known.index(way) if known is not None and way in known else 0])
        there, levels = 0, []
        for link, take in zip(self.links, chosen, strict=True):
            levels.append(there + max(take.peak, take.back + link.later))
            there += take.kept
        return self._choice(Chain(tuple(chosen), tuple(levels)))

    def _choice(self, found: Chain) -> Choice:
        ways = []
        for link, take, known in zip(self.links, found.ways, self._ways, strict=True):
            if known is not None:
                ways.append(known[next(n for n, one in enumerate(link.ways) if one is take)])
        kept, seconds = sum(take.kept for take in found.ways), sum(take.seconds for take in found.ways)
        return Choice(tuple(ways), found.peak + self.figures.margin, kept, seconds, found)


def _ways(call: CallFigures, rates: Rates) -> Sequence[tuple[Take, Way]]:
    if not call.is_block or not (call.saved or call.again):
        return [(Take(call.entry + call.forward, call.back, call.kept), KEEP)]
    whole = rates.whole(call)
    plain, forward = call.entry + call.plain, call.entry + call.forward
    back = max(call.back, call.again)
    found = [
        (Take(plain, call.back, call.kept + call.saved), KEEP),
        (Take(forward, back + call.given, call.kept + call.given, whole), FULL),
    ]
    if rates.only_whole:
        return found
    for one in call.parts:
        share = sum(rates.parts.get((call.alike, part), 0.0) for part in one.parts) * call.saved
        seconds = min(share or whole * one.saved / max(call.saved, 1), whole)
        kept = call.kept + call.saved - one.saved + len(one.parts) * STATE_BYTES
        take = Take(call.entry + one.plain, one.back, kept, seconds)
        found.append((take, Way("parts", one.parts)))
    if rates.selective and 0 < call.products < call.saved:
        take = Take(plain, back + call.unsaved + call.given, call.kept + call.products + call.given, whole * POINTWISE)
        found.append((take, SELECTIVE))
    if rates.away is not None and call.small < call.saved:
        take = Take(forward + call.small, call.back, call.kept + call.small, rates.away * (call.saved - call.small))
        found.append((take, AWAY))
    return found
