"""One way for each call of a step: what is found is what trying everything finds."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from neaptide.search.chain import Link, Take, fastest, lowest

BYTES = st.integers(0, 30)


def take(front: int, back: int, kept: int, seconds: int, outputs: int) -> Take:
    return Take(max(front, kept), back, kept, seconds, min(outputs, back, kept))


TAKES = st.builds(take, BYTES, BYTES, BYTES, BYTES, BYTES)
WAYS = st.lists(TAKES, min_size=1, max_size=4)
LINKS = st.lists(st.builds(Link, WAYS, st.integers(0, 5), BYTES, st.booleans()), min_size=1, max_size=4)


def levels(links: list[Link], ways: tuple[Take, ...]) -> list[int]:
    """How high each call reaches: beside what is there by then, and in its backward beside what later calls made, with what it
    handed to them gone."""
    there, found = 0, []
    for link, way in zip(links, ways, strict=True):
        there += link.fresh
        found.append(there + max(way.front, way.back - link.gone * way.outputs + link.later))
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


@given(st.lists(TAKES, min_size=1, max_size=3), st.lists(BYTES, min_size=8, max_size=9), st.booleans(), st.integers(0, 260))
def test_a_run_of_the_same_ways_is_as_good_as_trying_everything(
    takes: list[Take], later: list[int], gone: bool, limit: int
) -> None:
    ways = tuple(takes)
    links = [Link([Take(3, 3, 2)]), *(Link(ways, 0, made, gone) for made in sorted(later, reverse=True)), Link([Take(5, 5, 0)])]
    every = [(chosen, levels(links, chosen)) for chosen in product(*(link.ways for link in links))]
    fitting = [sum(way.seconds for way in chosen) for chosen, found in every if max(found) <= limit]
    fast = fastest(links, limit)
    if fast is not None:
        assert fitting
        assert fast.peak <= limit
        assert list(fast.levels) == levels(links, fast.ways)
    if fast is None and fitting:  # two ways at most in a run: a third may be needed where room is scarcest
        assert len(_distinct(ways)) > 2
    if fast is not None and len(_distinct(ways)) <= 2:
        assert sum(way.seconds for way in fast.ways) <= 2 * min(fitting) + max(way.seconds for way in ways)
    assert lowest(links).peak >= min(max(found) for _, found in every)


def _distinct(ways: tuple[Take, ...]) -> set[Take]:
    return set(ways)


def test_a_run_fills_the_room_there_is() -> None:
    ways = (Take(40, 40, 30), Take(12, 45, 2, 1.0), Take(40, 42, 20, 0.4))
    links = [Link([Take(5, 5, 5)]), *(Link(ways, 0, 100 - n) for n in range(100)), Link([Take(60, 60, 0)])]
    low, high = lowest(links), fastest(links, 1 << 40)
    assert high is not None
    for share in (0.1, 0.3, 0.5, 0.9):
        limit = int(low.peak + share * (high.peak - low.peak))
        found = fastest(links, limit)
        assert found is not None
        assert 0.95 * limit <= found.peak <= limit
