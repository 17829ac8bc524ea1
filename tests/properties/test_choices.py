"""What to keep: the replay says what the timeline says, and what is chosen fits, is fast, and needs nothing undone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from neaptide.apply import recompute, usually_absent, without, write_in_place
from neaptide.hardware import this_machine
from neaptide.memory import envelope
from neaptide.runtime.version import Version
from neaptide.search.recompute import Choice, Chooser, Cutter, Judge, Scene, keep_all
from neaptide.search.recompute.replay import Storages
from tests.properties.test_recompute import Block, Conv, captured

SIZES = [(3, 5), (2, 70), (9, 17)]


def scene(kind: type[nn.Module], sizes: tuple[int, int], absent: frozenset[int] = frozenset()) -> Scene:
    graph, _, dims = captured(kind, sizes)
    return Scene(Judge(Version(graph).everything(absent), graph.mutated), dims, this_machine("cpu"))


@settings(max_examples=60)
@given(st.data())
@pytest.mark.parametrize("kind", [Block, Conv])
def test_the_replay_of_a_choice_says_what_the_timeline_says(kind: type[nn.Module], data: Any) -> None:
    graph, _, dims = captured(kind, data.draw(st.sampled_from(SIZES)))
    absent = frozenset(data.draw(st.sets(st.sampled_from(graph.tangents), max_size=len(graph.tangents) - 1)))
    judge = Judge(Version(graph).everything(absent), graph.mutated)
    keep = frozenset(data.draw(st.sets(st.sampled_from(Cutter(judge).storages))))
    away = frozenset(data.draw(st.sets(st.sampled_from(Cutter(judge).storages)))) - keep
    program = recompute(graph, judge.values(keep), graph.mutated, judge.values(away))
    program = write_in_place(without(program, absent) if absent else program)
    take = Scene(judge, dims, this_machine("cpu")).play(Choice(keep, away)).take
    front, back, _, outputs = envelope(program).figures(dims)
    assert (take.front, take.back, take.outputs) == (front, back, outputs)


@pytest.mark.parametrize("kind", [Block, Conv])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_choice_is_inside_its_target_and_as_fast_as_any(kind: type[nn.Module], sizes: tuple[int, int]) -> None:
    at = scene(kind, sizes)
    best = every_choice(at)
    chooser = Chooser(at, Cutter(at.judge), [])
    top, bottom = best[0][0], best[-1][0]
    for share in (0.9, 0.7, 0.5, 0.3, 0.1, 0.0):
        target = int(bottom + share * (top - bottom))
        found = chooser.fastest(target)
        assert found is not None
        assert found.peak <= target
        fastest = min(seconds for peak, seconds in best if peak <= target)
        assert found.seconds <= 1.1 * fastest + 0.01 * sum(at.seconds.values())
    assert chooser.lowest().peak <= 1.01 * bottom


def every_choice(at: Scene) -> list[tuple[int, float]]:
    """Peak and seconds of all choices that nothing beats, from the fastest to the lowest."""
    chosen = [s for s in Cutter(at.judge).storages if at.bytes[s] > max(at.bytes) / 32]
    small = frozenset(Cutter(at.judge).storages) - set(chosen)
    kept: list[tuple[int, float]] = []
    played = (at.play(Choice(small | frozenset(each))) for each in subsets(chosen[:11]))
    for peak, seconds in sorted(((p.peak, p.seconds) for p in played), key=lambda found: (found[1], found[0])):
        if not kept or peak < kept[-1][0]:
            kept.append((peak, seconds))
    return kept


def subsets(of: list[int]) -> list[Storages]:
    return [frozenset(each) for count in range(len(of) + 1) for each in itertools.combinations(of, count)]


def test_what_is_kept_by_eager_is_what_the_replay_begins_with() -> None:
    graph, _, dims = captured(Block, (2, 70))
    judge = Judge(Version(graph).everything(usually_absent(graph)), graph.mutated)
    at = Scene(judge, dims, this_machine("cpu"))
    assert at.play(Choice(judge.storages(keep_all(graph)))).seconds == 0
    assert at.play(Choice(judge.storages(keep_all(graph)))).peak == at.play(Choice(judge.wanted)).peak
