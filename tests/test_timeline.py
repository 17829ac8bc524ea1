import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide.timeline import KINDS, Life, Timeline

STEPS = 6


@st.composite
def lives(draw):
    born = draw(st.integers(0, STEPS - 1))
    return Life(
        draw(st.text(max_size=5)),
        draw(st.sampled_from(KINDS)),
        draw(st.integers(0, 1 << 40)),
        born,
        draw(st.integers(born, STEPS)),
        draw(st.text(max_size=5)),
    )


timelines = st.lists(lives(), max_size=12).map(lambda made: Timeline(tuple("abcdef"), tuple(made)))


@given(timelines)
def test_each_step_holds_exactly_what_is_alive_in_it(line):
    assert line.bytes == tuple(sum(life.bytes for life in line.at(step)) for step in range(STEPS))
    assert line.peak == max(line.bytes)
    assert line.bytes[line.peak_step] == line.peak
    assert line.peak not in line.bytes[: line.peak_step]


@given(timelines)
def test_the_parts_add_up_to_the_peak_and_every_kind_is_there(line):
    assert tuple(line.parts) == KINDS
    assert sum(line.parts.values()) == line.peak == sum(life.bytes for life in line.held_by)


@given(timelines)
def test_a_timeline_goes_to_json_and_back(line):
    assert Timeline.from_json(json.loads(json.dumps(line.to_json()))) == line


@given(timelines, timelines)
def test_one_run_after_another_has_the_bytes_of_both_in_turn(first, second):
    both = first.then([second])
    assert both.bytes == first.bytes + second.bytes
    assert both.steps == first.steps + second.steps
    assert both.peak == max(first.peak, second.peak)


def test_the_largest_holder_comes_first():
    line = Timeline(("a",), (Life("small", "input", 1, 0, 1), Life("large", "output", 9, 0, 1)))
    assert [life.name for life in line.held_by] == ["large", "small"]


def test_an_empty_run_has_a_peak_of_nothing():
    line = Timeline((), ())
    assert (line.peak, line.peak_step, line.held_by) == (0, 0, ())


def test_a_life_cannot_be_changed():
    with pytest.raises(AttributeError):
        Life("x", "input", 1, 0, 1).bytes = 2  # type: ignore[misc]
