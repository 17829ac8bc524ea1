"""Programs made ahead, so that a new size waits for none.

In: the choices at a size, each weighed. Out: of which to make programs, and one that is there in place of one that is not.
Making a program of a large graph takes as long as planning several sizes (docs/decisions/0015).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from neaptide.runtime.recomputing import Weighed
from neaptide.runtime.runner import Rung
from neaptide.runtime.version import Crossing

LARGE = 1000
"""Ops from which on programs are made ahead."""
AS_FAST = 0.015
"""The share of a step's time by which programs made ahead differ, and by which a new size may be slower to have one at once."""
PATIENT = 2
"""How often a size runs a program that was made for others; then it gets its own."""
MOST = 16
"""How many programs are made ahead at most."""


def worth_making(found: Iterable[Weighed], whole: float) -> list[Crossing]:
    """For each further share of the `whole` step's seconds that running again may take, the choice with the lowest peak."""
    rest = sorted(found, key=lambda w: w.order)
    inside = ([w for w in rest if w.take.seconds <= part * AS_FAST * whole] for part in range(MOST))
    return list(dict.fromkeys(min(some, key=lambda w: w.take.peak).crossing for some in inside if some))


def about_as_fast(
    crossing: Crossing,
    found: Sequence[Weighed],
    made: Mapping[Crossing, Rung],
    whole: float,
    fits: Callable[[Rung], bool],
) -> Rung | None:
    """The fastest rung that is there and fits, unless it is slower than a choice by what matters."""
    limit = next(w.take.seconds for w in found if w.crossing == crossing) + AS_FAST * whole
    for weighed in sorted(found, key=lambda w: w.order):
        rung = made.get(weighed.crossing)
        if rung is not None and weighed.take.seconds <= limit and fits(rung):
            return rung
    return None
