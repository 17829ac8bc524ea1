"""One model, plain and in parts: what comes out, what it takes, how it was planned.

In: the name of an entry. Out: a row, as a dict of plain figures. The plain model runs first; then the model under the smallest
peak that can be reached, at every size of the entry with the same handle; then under no budget, for the peak of the program
as it was captured.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from benchmarks.zoo import ZOO, Entry
from torch import nn

import neaptide
from neaptide.budget import Budget
from neaptide.runtime.inference import Inference

NEAR = 1e-4
LENT = ("parameter", "buffer", "input")


def try_out(name: str) -> dict[str, Any]:
    """A row about one model; `failed` says what went wrong, and where."""
    return reported(name, _row)


def reported(name: str, fill: Callable[[str, dict[str, Any]], None]) -> dict[str, Any]:
    """A row as it is filled; `failed` says what is wrong with the results, or what went wrong, in which step, and where."""
    row: dict[str, Any] = {"name": name, "step": "plain"}
    try:
        warnings.simplefilter("ignore")
        fill(name, row)
        row["failed"] = _wrong(row)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = str(error).strip().splitlines() or [""]
        where = f"({last.filename.rpartition('/')[2]}:{last.lineno})"
        row["failed"] = f"{row['step']}: {type(error).__name__}: {said[-1].strip()} {where}"
        row["traceback"] = traceback.format_exc()
    return row


def _row(name: str, row: dict[str, Any]) -> None:
    entry = ZOO[name]
    model = entry.model()
    with torch.no_grad():
        expected = [list(tensors(model(**entry.given(size)))) for size in entry.sizes]
    row["step"] = "min"
    handle = neaptide.compile(model, budget="min")
    row |= _in_parts(entry, model, handle, expected)
    row["step"] = "no budget"
    row |= _whole(entry, model, handle, expected[0])
    row["saved"] = 1 - row["least"] / row["whole"]


def _whole(entry: Entry, model: nn.Module, handle: neaptide.Handle, expected: list[torch.Tensor]) -> dict[str, Any]:
    """What the program takes as it was captured, and how far its results are from the plain ones."""
    handle._session.replan(Budget())
    with torch.no_grad():
        made = list(tensors(model(**entry.given(entry.sizes[0]))))
    return {"whole": beyond_lent(handle.plan), "whole_apart": apart(made, expected)}


def _in_parts(entry: Entry, model: nn.Module, handle: neaptide.Handle, expected: list[list[torch.Tensor]]) -> dict[str, Any]:
    found: dict[str, Any] = {"apart": []}
    plan = None
    for size, plain in zip(entry.sizes, expected, strict=True):
        with torch.no_grad():
            made = list(tensors(model(**entry.given(size))))
        found["apart"].append(apart(made, plain))
        plan = plan or handle.plan
    assert plan is not None
    units = [unit for unit in handle._session.units if isinstance(unit, Inference)]
    return {
        **found,
        "least": beyond_lent(plan),
        "held": [(life.name, life.kind, life.bytes) for life in plan.held_by if life.kind not in LENT][:4],
        "at": plan.timeline.steps[plan.timeline.peak_step] if plan.timeline.steps else "",
        "unlisted": sorted({op for unit in units for op in unit._chunking.net.unlisted}),
        **planned(handle, plan),
    }


def planned(handle: neaptide.Handle, plan: neaptide.Plan) -> dict[str, Any]:
    """How a model was captured and planned, in figures."""
    return {
        "graphs": len(plan.graphs),
        "ops": sum(graph.ops for graph in plan.graphs),
        "regions": sum(len(graph.regions) for graph in plan.graphs),
        "rewrites": sum(len(graph.rewrites) for graph in plan.graphs),
        "captures": handle.stats.captures,
        "planning": handle.stats.planning_seconds,
        "plans": handle.stats.plans,
        "fixed_sizes": handle._session.fixed_sizes,
        "breaks": sum(torch._dynamo.utils.counters["graph_break"].values()),
    }


def _wrong(row: Mapping[str, Any]) -> str | None:
    """What is wrong with the results, if anything is."""
    if row["whole_apart"] > NEAR:
        return f"no budget: results are {row['whole_apart']:.1e} of their scale apart"
    for number, far in enumerate(row["apart"], 1):
        if far > NEAR:
            return f"min: results at size {number} are {far:.1e} of their scale apart"
    return None


def beyond_lent(plan: neaptide.Plan) -> int:
    """The peak of a plan less what the caller lends."""
    return plan.peak - sum(plan.parts.get(kind, 0) for kind in LENT)


def apart(made: list[torch.Tensor], expected: list[torch.Tensor], least: float = 1e-30) -> float:
    """The largest difference as a share of the scale of what is expected, or of a `least` scale; infinite where shapes, types
    or infinities differ."""
    if [(t.shape, t.dtype) for t in made] != [(t.shape, t.dtype) for t in expected]:
        return float("inf")
    return max((_distance(a, b, least) for a, b in zip(made, expected, strict=True)), default=0.0)


def _distance(a: torch.Tensor, b: torch.Tensor, least: float) -> float:
    if not b.is_floating_point():
        return 0.0 if torch.equal(a, b) else float("inf")
    finite = b.isfinite()
    if not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()) or not a[finite].isfinite().all():
        return float("inf")
    if not finite.any():
        return 0.0
    return ((a[finite] - b[finite]).abs().max() / b[finite].abs().max().clamp_min(least)).item()


def tensors(output: Any) -> Iterator[torch.Tensor]:
    """The tensors of whatever a model gives back."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for each in output.values():
            yield from tensors(each)
    elif isinstance(output, list | tuple):
        for each in output:
            yield from tensors(each)
    elif hasattr(output, "parameters") and hasattr(output, "sample"):  # a distribution over latents
        yield output.parameters
