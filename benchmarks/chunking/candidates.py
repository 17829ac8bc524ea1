"""Plans side by side in one process: those that budgets choose, and the same regions in more parts, which were not chosen.

What is chosen is the fastest by prediction, so that the plans of neighbouring budgets take nearly the same; what was passed
over tells as much about whether predictions can be trusted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.chunking.variants import Variant, prepare

FINER = (1, 4, 16)
"""How many times as many parts as were chosen."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program of a captured model; `take_over` has the next calls run it."""

    variant: int
    finer: int
    predicted: float
    step: Callable[[], Any]
    take_over: Callable[[], None]

    def taken(self) -> float:
        self.take_over()
        self.step()
        begin = time.perf_counter()
        self.step()
        return time.perf_counter() - begin


def rank(variants: Sequence[Variant], rounds: int) -> dict[str, Any]:
    """Predicted and measured seconds of the candidates of some variants that differ in budget and rewriting."""
    found = [each for rewrite in (True, False) for each in _of_capture(variants, rewrite)]
    seconds: list[list[float]] = [[] for _ in found]
    for turn in range(rounds):
        order = range(len(found)) if turn % 2 else range(len(found) - 1, -1, -1)
        for position in order:
            seconds[position].append(found[position].taken())
    rows = zip(found, seconds, strict=True)
    return {"found": [{"of": c.variant, "finer": c.finer, "predicted_seconds": c.predicted, "all": all_} for c, all_ in rows]}


def _of_capture(variants: Sequence[Variant], rewrite: bool) -> Iterator[Candidate]:
    """The distinct programs of the variants that share one capture."""
    own = [i for i, variant in enumerate(variants) if variant.rewrite is rewrite]
    if not own:
        return
    ready = prepare(variants[own[0]])
    seen: set[object] = set()
    for index in own:
        ready.handle.budget = variants[index].budget
        ready.step()
        (unit,) = ready.handle._session.units
        yield from _finer(index, variants[index].budget, ready, unit, seen)


def _finer(index: int, budget: Any, ready: Any, unit: Any, seen: set[object]) -> Iterator[Candidate]:
    """What a budget chose, and the same with more parts."""
    from neaptide.emit import emit_inference
    from neaptide.inner.swap import Piece
    from neaptide.steps import Loop
    from neaptide.timing import seconds

    (call,) = unit.chosen.values()
    rung = call.rung
    for finer in FINER:
        steps = [replace(s, chunk=max(1, s.chunk // finer)) if isinstance(s, Loop) else s for s in rung.program.steps]
        program = replace(rung.program, steps=tuple(steps))
        if program.steps in seen:
            continue
        seen.add(program.steps)
        piece = Piece(program, 0, partial(emit_inference, program))

        def take_over(piece: Any = piece) -> None:
            ready.handle.budget = budget
            unit._pieces[rung.number] = piece

        yield Candidate(index, finer, seconds(program, call.dims), ready.step, take_over)
