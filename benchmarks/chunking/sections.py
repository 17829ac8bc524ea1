"""The questions. Each section takes a `Bench` and a family, and yields rows as they become known.

Activations are the peak less parameters, buffers, inputs and outputs. Budgets are whole peaks, as a user writes them.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.chunking.experts import EXPERTS
from benchmarks.chunking.families import FAMILIES
from benchmarks.chunking.processes import Answer, Bench
from benchmarks.chunking.variants import Variant

Row = dict[str, Any]
BUDGETS = 8
TELLING = 1e-3
"""A relative difference of results above this is said in the row."""


def memory(bench: Bench, family: str) -> Iterator[Row]:
    """Written-out attention as the baseline: its kernel, PyTorch's compiler, and ours at a tenth of its activations."""
    plain = bench.variant(family)
    base = bench.peak(plain)
    yield _alone(plain, "written out", base)
    if "failed" in base:
        return
    yield _compare(bench, "SDPA", plain, replace(plain, form="sdpa"))
    yield _compare(bench, "torch.compile", plain, replace(plain, way="inductor"))
    yield _ours(bench, "ours, -90 %", plain, _share(base, 0.1))
    yield _ours(bench, "ours, no rewriting, -85 %", plain, _share(base, 0.15), rewrite=False)


def sdpa(bench: Bench, family: str) -> Iterator[Row]:
    """Fused attention as the baseline: what else there is to save."""
    plain = bench.variant(family, form="sdpa")
    base = bench.peak(plain)
    yield _alone(plain, "SDPA", base)
    if "failed" not in base:
        share = FAMILIES[family].over_sdpa
        yield _ours(bench, f"ours, -{100 * (1 - share):.0f} %", plain, _share(base, share))


def experts(bench: Bench, family: str) -> Iterator[Row]:
    """Each expert's time beside the plain model's; then its peak as our budget, and our time beside the expert's."""
    for name, expert in EXPERTS.items():
        if expert.family != family:
            continue
        plain = bench.variant(family, form=expert.form)
        by_hand = replace(plain, way=name)
        base, taken = bench.peak(plain), bench.peak(by_hand)
        if "failed" in base or "failed" in taken:
            yield _alone(by_hand, name, base if "failed" in base else taken)
            continue
        yield _compare(bench, name, plain, by_hand)
        for rewrite in (True, False) if expert.form == "eager" else (True,):
            way = "  ours inside it" if rewrite else "  ours, no rewriting"
            yield {**_ours(bench, way, plain, taken["peak"], rewrite, by_hand), "expert": name}


def longest(bench: Bench, family: str) -> Iterator[Row]:
    """The longest input that fits into what the written-out model takes at its base size: predicted, then run."""
    known = FAMILIES[family]
    base = bench.size or known.base
    budget = bench.estimate(bench.variant(family, base)).get("predicted")
    row: Row = {"family": family, "unit": known.unit, "flat": known.flat, "budget": budget, "plain": base}
    if budget is None:
        yield {**row, "failed": "no prediction of the plain peak"}
        return

    def fits(size: int) -> bool:
        made = bench.plan(bench.variant(family, size, way="ours", budget=budget))
        return made.get("predicted", budget + 1) <= budget

    size = largest(fits, base, known.step)
    taken = bench.peak(bench.variant(family, size, way="ours", budget=budget))
    measured = {key: taken[key] for key in ("peak", "seconds", "predicted", "failed") if key in taken}
    yield {**row, "ours": size, "ratio": size / base, **measured}


def budgets(bench: Bench, family: str) -> Iterator[Row]:
    """Budgets from the plain peak to the smallest reachable: whether each is held, and peaks fall with them (within 1 %)."""
    rows = _sweep(bench, family)
    if "failed" in rows[0]:
        yield rows[0]
        return
    told = bench.sweep(_of_sweep(bench, rows))
    if "failed" in told:
        yield {"family": family, "failed": told["failed"]}
        return
    before: Row = {}
    for row, taken in zip(rows, told["found"], strict=True):
        row |= taken
        if "failed" not in row:
            row["held"] = row["peak"] <= row["budget"]
            row["monotone"] = not before or row["peak"] <= 1.01 * before["peak"]
            before = row
        yield row


def rank(bench: Bench, family: str) -> Iterator[Row]:
    """Predicted and measured seconds of the plans of such sweeps, with rewriting and without, and of the same in more parts."""
    sweeps = [_sweep(bench, family, rewrite) for rewrite in (True, False)]
    failed = next((rows[0] for rows in sweeps if "failed" in rows[0]), None)
    rows = [row for sweep in sweeps for row in sweep]
    told = failed or bench.rank(_of_sweep(bench, rows))
    if "failed" in told:
        yield {"family": family, "failed": told["failed"]}
        return
    found = [{**rows[each.pop("of")], **each, "seconds": statistics.median(each.pop("all"))} for each in told["found"]]
    yield from found
    for name, those in (("chosen", [row for row in found if row["finer"] == 1]), ("all", found)):
        pairs = [(row["predicted_seconds"], row["seconds"]) for row in those]
        yield {"family": family, "step": name, "plans": len(pairs), **correlations(pairs), "repeated": repeated(those)}


def planning(bench: Bench, family: str) -> Iterator[Row]:
    """What the first plan of a model of 12 layers takes inside 60 % of its plain peak, and those of new lengths; texts only."""
    if FAMILIES[family].unit != "tokens":
        return
    for rewrite in (True, False):
        variant = replace(bench.variant(family, 2048, way="ours", rewrite=rewrite), layers=bench.layers or 12)
        told = bench.planning(variant)
        row: Row = {"family": family, "rewrite": rewrite, "layers": variant.layers, **told}
        if "failed" not in told:
            (_, row["first"]), *later = told["taken"]
            new = [seconds for _, seconds in later]
            row |= {"new": len(new), "usual": statistics.median(new), "longest": max(new)}
        yield row


SECTIONS: dict[str, Callable[[Bench, str], Iterator[Row]]] = {
    "memory": memory,
    "sdpa": sdpa,
    "experts": experts,
    "longest": longest,
    "budgets": budgets,
    "rank": rank,
    "planning": planning,
}


def largest(fits: Callable[[int], bool], start: int, step: int) -> int:
    """The largest size that fits, to a thirty-second of it or the step; `start` is taken to fit."""
    low, high = start, 2 * start
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(step, low // 32):
        middle = (low + high) // 2 // step * step
        if not low < middle < high:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def correlations(pairs: list[tuple[float, float]]) -> dict[str, float | None]:
    """Pearson's and Spearman's, where there is something to correlate."""
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return {"pearson": None, "spearman": None}
    return {"pearson": statistics.correlation(xs, ys), "spearman": statistics.correlation(_ranks(xs), _ranks(ys))}


def repeated(rows: Sequence[Row]) -> float | None:
    """How well measured seconds agree in rank with themselves: half of the rounds with the other half, however they are halved.
    Where the plans take nearly the same, no prediction can do better than that."""
    rounds = range(len(rows[0]["all"]))
    halves = list(itertools.combinations(rounds, len(rounds) // 2)) if len(rounds) > 1 else []
    found = []
    for half in halves:
        sides = (half, [turn for turn in rounds if turn not in half])
        first, second = ([statistics.median(row["all"][turn] for turn in side) for row in rows] for side in sides)
        found.append(correlations(list(zip(first, second, strict=True)))["spearman"])
    known = [each for each in found if each is not None]
    return statistics.mean(known) if known else None


def _ranks(values: list[float]) -> list[float]:
    """Places from the smallest on; equal values share the middle of theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def _sweep(bench: Bench, family: str, rewrite: bool = True) -> list[Row]:
    """Rows with the budgets of a sweep, each the same ratio of activations below the one before; or why there are none."""
    plain = bench.variant(family)
    base, least = bench.peak(plain), bench.plan(replace(plain, way="ours", budget="min", rewrite=rewrite))
    failed = base.get("failed") or least.get("failed")
    if failed:
        return [{"family": family, "failed": failed}]
    resident, bottom = base["resident"], least["predicted"]
    top = base["peak"] - resident
    ratio = max(1, bottom - resident) / top
    shares = [ratio ** (step / (BUDGETS - 1)) for step in range(BUDGETS)]
    limits = [resident + int(top * share) for share in shares[:-1]] + [bottom]
    return [
        {"family": family, "step": step, "share": share, "budget": limit, "resident": resident, "rewrite": rewrite}
        for step, (share, limit) in enumerate(zip(shares, limits, strict=True))
    ]


def _of_sweep(bench: Bench, rows: list[Row]) -> list[Variant]:
    return [bench.variant(row["family"], way="ours", budget=row["budget"], rewrite=row["rewrite"]) for row in rows]


def _share(base: Answer, share: float) -> int:
    """The budget that leaves a share of a case's activations."""
    return base["resident"] + int(share * (base["peak"] - base["resident"]))


def _alone(variant: Variant, way: str, taken: Answer) -> Row:
    row: Row = {
        "family": variant.family,
        "size": variant.size,
        "layers": variant.layers,
        "way": way,
        "variant": variant.to_json(),
    }
    if "failed" in taken:
        return {**row, "failed": taken["failed"]}
    return {**row, **taken, "activations": taken["peak"] - taken["resident"]}


def _compare(bench: Bench, way: str, plain: Variant, variant: Variant, baseline: Variant | None = None) -> Row:
    """The activations beside those of the plain model, the time beside the baseline's."""
    base, taken = bench.peak(plain), bench.peak(variant)
    row = _alone(variant, way, taken)
    if "failed" in row:
        return row
    row["activations"] = taken["peak"] - base["resident"]
    row["share"] = row["activations"] / (base["peak"] - base["resident"])
    told = bench.turns([baseline or plain, variant])
    if "failed" in told:
        return {**row, "note": f"no time: {told['failed']}"}
    first, second = told["seconds"]
    row["ratios"] = [ours / theirs for ours, theirs in zip(second, first, strict=True)]
    row["difference"] = told["differences"][1]
    if row["difference"] > TELLING:
        row["note"] = f"results differ by {row['difference']:.1e}"
    return row


def _ours(bench: Bench, way: str, plain: Variant, budget: int, rewrite: bool = True, baseline: Variant | None = None) -> Row:
    """Ours inside a budget, or inside the smallest that can be met, as the errors tell it."""
    inside = asked = replace(plain, way="ours", budget=budget, rewrite=rewrite)
    for told in (bench.plan, bench.peak):
        inside = replace(inside, budget=told(inside).get("smallest", inside.budget))
    row = {**_compare(bench, way, plain, inside, baseline), "asked": budget, "budget": inside.budget}
    if inside != asked:
        least = f"asked {budget / 1e6:,.1f} MB; this is the smallest reachable"
        row["note"] = "; ".join(filter(None, [least, row.get("note")]))
    return row
