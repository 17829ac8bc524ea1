"""The plan of a step under `adapt`, on one timeline: forwards in order, backwards in reverse.

In: what is resident, the latest choice. Out: a `Plan`.
"""

from __future__ import annotations

from collections.abc import Sequence

from neaptide.budget import Budget
from neaptide.eager.choose import Choice
from neaptide.eager.figures import Figures
from neaptide.eager.stats import AdaptStats
from neaptide.plans import BlockPlan, Plan
from neaptide.runtime.ledger import Resident
from neaptide.timeline import Life, Timeline

UNKNOWN = "nothing is predicted yet: only what is there before a step is counted"


def make_plan(
    budget: Budget,
    resident: Sequence[Resident],
    last: tuple[Choice, Figures, int] | None,
    stats: AdaptStats,
    stepping: int,
) -> Plan:
    """The plan of the latest call, and of the optimizer's step after it, in which so much is there."""
    if last is None:
        lives = tuple(Life(r.name, r.kind, r.bytes, 0, 1, r.path) for r in resident)
        return Plan(budget.limit, (), Timeline(("start",), lives), (UNKNOWN,))
    choice, figures, base = last
    calls = figures.calls
    end = 2 * len(calls)
    names = [call.name or "outside blocks" for call in calls]
    steps = [*(f"forward of {name}" for name in names), *(f"backward of {name}" for name in reversed(names))]
    there = sum(r.bytes for r in resident)
    over = end + (stepping > there)
    lives = [Life(r.name, r.kind, r.bytes, 0, over, r.path) for r in resident]
    lives.append(Life("inputs and earlier calls", "input", max(base - there, 0), 0, end))
    if over > end:
        steps.append("the optimizer's step")
        lives.append(Life("gradients, state and what the step makes", "optimizer", stepping - there, end, over))
    lives.append(Life("margin", "other", figures.margin, 0, end))
    blocks, ways = [], iter(choice.ways)
    for number, (call, take) in enumerate(zip(calls, choice.found.ways, strict=True)):
        back = end - 1 - number
        lives.append(Life("kept", "activation", take.kept, number + 1, back, call.name))
        lives.append(Life("forward", "temporary", take.front, number, number + 1, call.name))
        lives.append(Life("backward", "temporary", take.back + call.back_entry, back, back + 1, call.name))
        if call.is_block:
            blocks.append(BlockPlan(call.name, str(next(ways)), take.kept, take.seconds))
    line = Timeline(tuple(steps), tuple(life for life in lives if life.bytes and life.born < life.dies))
    notes = [f"predicted by {stats.predictor}" + (f": {stats.why}" if stats.why else "")]
    if figures.margin:
        notes.append(f"a margin of {figures.margin} bytes for what is not foretold")
    return Plan(budget.limit, (), line, tuple(notes), tuple(blocks))
