"""What a piece takes with stretches of it fused.

In: a program, the kernels of stretches of a piece, sizes. Out: the peak of each stretch: the level at its beginning, which the
program's own timeline tells, and how far the kernels' own code lets it rise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from neaptide.inner.compiler import Kernels
from neaptide.inner.foresee import rise
from neaptide.inner.straight import Stretch
from neaptide.memory import envelope, executed
from neaptide.program import Program


def peaks(program: Program, begin: int, kernels: Sequence[Kernels], dims: Sequence[int]) -> list[int]:
    """Bytes at the highest point of each stretch of the piece that begins at a step, beyond what is lent."""
    whole = envelope(program)
    before = [0, *accumulate(executed(step) for step in program.steps)]
    places = [before[begin + each.stretch.first] for each in kernels]
    return [whole.there(dims, at) + rise(k, dims, owned(k.stretch)) for at, k in zip(places, kernels, strict=True)]


def owned(stretch: Stretch) -> frozenset[int]:
    """The storages that go with a stretch: given to it, lent by nobody, and read by nobody after it."""
    graph = stretch.graph
    lent = {graph.values[v].storage for v in (*graph.inputs, *graph.constants)}
    later = {graph.values[v].storage for v in stretch.after}
    given = {graph.values[v].storage for v in stretch.given}
    return frozenset(s for s in given - lent - later if s is not None)
