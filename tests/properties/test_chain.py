"""One way for each call of a step: what is found is what trying everything finds."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from neaptide.search.chain import Link, Take, fastest, lowest

BYTES = st.integers(0, 30)


def take(peak: int, back: int, kept: int, seconds: int) -> Take:
    return Take(max(peak, back, kept), back, kept, seconds)


TAKES = st.builds(take, BYTES, BYTES, BYTES, BYTES)
LINKS = st.lists(st.builds(Link, st.lists(TAKES, min_size=1, max_size=4), st.integers(0, 5), BYTES), min_size=1, max_size=4)


def levels(links: list[Link], ways: tuple[Take, ...]) -> list[int]:
    """How high each call reaches: beside what is there by then, and in its backward beside what later calls made."""
    there, found = 0, []
    for link, way in zip(links, ways, strict=True):
        there += link.fresh
        found.append(there + max(way.peak, way.back + link.later))
        there += way.kept
    return found


@given(LINKS, st.integers(0, 120))
def test_the_chain_is_the_best_there_is(links: list[Link], limit: int) -> None:
    every = [(ways, levels(links, ways)) for ways in product(*(link.ways for link in links))]
    low = lowest(links)
    assert low.peak == min(max(found) for _, found in every)
    assert list(low.levels) == levels(links, low.ways)
    fitting = [sum(way.seconds for way in ways) for ways, found in every if max(found) <= limit]
    fast = fastest(links, limit)
    assert (fast is None) == (not fitting)
    if fast is not None:
        assert fast.peak <= limit
        assert sum(way.seconds for way in fast.ways) == min(fitting)
        assert list(fast.levels) == levels(links, fast.ways)


def test_a_long_chain_of_many_ways_still_fits_and_takes_no_time() -> None:
    ways = [Take(100 + kept, 100 + kept, kept, 1 / (1 + kept)) for kept in range(0, 100, 5)]
    links = [Link(ways, 1, 10 * (60 - n)) for n in range(60)]
    tight = lowest(links)
    assert tight.peak == 100 + 600 + 1
    found = fastest(links, tight.peak + 50)
    assert found is not None
    assert found.peak <= tight.peak + 50
