"""One model in eager training under `adapt`: whether its gradients and statistics are those of the plain model, bit for bit.

In: the name of an entry. Out: a row, as a dict of plain figures. With the least memory at each size, then at half of the way
between that and the plain step, and after `release()`. Models in which no blocks are found are said to have none.
"""

from __future__ import annotations

import copy
from typing import Any

from benchmarks.zoo import ZOO
from benchmarks.zoo.training import differs, gradients
from benchmarks.zoo.trial import reported

import neaptide
from neaptide.errors import InputError

AMPLE = 1 << 40
HALF = 0.5


def try_adapting(name: str) -> dict[str, Any]:
    """A row about one model; `failed` says what went wrong, and where."""
    return reported(name, _row)


def _row(name: str, row: dict[str, Any]) -> None:
    entry = ZOO[name]
    model = entry.model().train()
    start, shown, keys = copy.deepcopy(model.state_dict()), repr(model), list(model.state_dict())
    expected = [gradients(entry, model, start, size) for size in entry.sizes]
    row |= {"step": "min", "apart": [], "whole_apart": 0.0}
    try:
        handle = neaptide.adapt(model, budget="min")
    except InputError as error:
        row |= {"saved": 0.0, "least": 0, "whole": 0, "remark": str(error).partition(":")[0]}
        return
    for size, plain in zip(entry.sizes, expected, strict=True):
        row["apart"].append(differs(gradients(entry, model, start, size), plain))
    row["step"] = "no limit"
    first, least = entry.sizes[0], {}
    for budget in ("min", AMPLE):
        handle.budget = budget
        row["whole_apart"] = max(row["whole_apart"], differs(gradients(entry, model, start, first), expected[0]))
        least[budget] = handle.plan.peak - sum(handle.plan.parts.get(kind, 0) for kind in ("parameter", "buffer", "gradient"))
    row |= {"least": least["min"], "whole": least[AMPLE], "saved": 1 - least["min"] / max(least[AMPLE], 1)}
    row["step"] = "half"
    there = handle.plan.peak - least[AMPLE]
    handle.budget = int(there + least["min"] + HALF * (least[AMPLE] - least["min"])) + 1
    row["whole_apart"] = max(row["whole_apart"], differs(gradients(entry, model, start, first), expected[0]))
    row |= {"planning": handle.stats.planning_seconds, "plans": handle.stats.plans, "remark": str(handle.stats.why)}
    row["step"] = "released"
    handle.release()
    row["whole_apart"] = max(row["whole_apart"], differs(gradients(entry, model, start, first), expected[0]))
    if repr(model) != shown or list(model.state_dict()) != keys:
        row["whole_apart"] = float("inf")
