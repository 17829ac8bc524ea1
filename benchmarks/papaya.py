"""The batch-size model on real GPUs' measurements: those that PAPAYA's authors published (benchmarks/data/papaya).

Each series is one model with one method on one V100 of 16 GB: peak memory and throughput by batch size. The model is fitted on
a few batch sizes and tested on all others; then it says, for every method of every model, whether it raises the best throughput
inside the card's memory, which the series themselves answer. PAPAYA's own forms (a line each, fitted on the smallest batches)
stand beside.

    python benchmarks/papaya.py [--points 4] [--data FOLDER] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from neaptide.batches import Line, Peaks, Scaling, Seconds, fit_peaks, fit_seconds, spread  # noqa: E402

DATA = ROOT / "benchmarks" / "data" / "papaya"
CARD = 16 << 30
USABLE = 0.8
"""The share of a card's bytes that peaks may take, as the paper has it: its driver and the allocator's gaps take the rest."""
ABOUT = ("network", "layer_num", "hidden_size", "fp16", "image_size", "grad_acc")
Series = dict[int, float]
Key = tuple[Any, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=4, help="batch sizes of a series that are fitted (default: 4)")
    parser.add_argument("--data", type=Path, default=DATA, help="another folder of *-mem.jsonl and *-speed.jsonl")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    asked = parser.parse_args()
    peaks, times = load(asked.data)
    told = {
        "memory": accuracy(peaks, asked.points, fit_peaks, PEAKS_BY_LINE),
        "time": accuracy(times, asked.points, fit_seconds, SECONDS_BY_LINE),
        "pays": decisions(peaks, times, asked.points),
    }
    for name in ("memory", "time"):
        for way, figures in told[name].items():
            print(f"{name:<8}{way:<32}" + "  ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    figures = told["pays"]
    print(
        f"pays    right in {figures['right']} of {figures['asked']} cases ({figures['right'] / max(figures['asked'], 1):.1%})"
    )
    for case in figures["wrong"]:
        print(f"        wrong: {case}")
    if asked.json:
        asked.json.write_text(json.dumps(told, indent=1))


def load(folder: Path) -> tuple[dict[Key, Series], dict[Key, Series]]:
    """Peaks in bytes and seconds a step, by batch size, for each model and method; of repeated runs the middle one."""
    peaks: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    times: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            key, batch = (path.name.split("-")[0], *series_of(row)), int(row["batch_size"])
            if path.stem.endswith("mem") and (row.get("peak") or 0) > 0:
                peaks[key][batch].append(row["peak"] if row["peak"] > 1e8 else row["peak"] * 2**20)
            elif path.stem.endswith("speed") and (row.get("ips") or 0) > 0:
                times[key][batch].append(batch / row["ips"])
    return (_middles(peaks), _middles(times))


def _middles(found: Mapping[Key, Mapping[int, list[float]]]) -> dict[Key, Series]:
    return {key: {batch: statistics.median(many) for batch, many in sorted(each.items())} for key, each in found.items()}


def series_of(row: Mapping[str, Any]) -> Iterator[Any]:
    """What is the same over a series: first the method, then the model."""
    method = row.get("algorithm", row.get("alg"))
    yield "_".join(filter(None, (method, "ckpt" if row.get("ckpt") is True else None))) or None
    yield tuple((name, row[name]) for name in ABOUT if row.get(name) not in (None, 1))


def PEAKS_BY_LINE(batches: list[int], taken: list[float]) -> Peaks:  # noqa: N802
    return Peaks((_straight(batches, taken),))


def SECONDS_BY_LINE(batches: list[int], taken: list[float]) -> Seconds:  # noqa: N802
    return Seconds(0.0, _straight(batches, taken))


def _straight(batches: list[int], taken: list[float]) -> Line:
    each, fixed = np.polyfit(batches, taken, 1)
    return Line(float(fixed), float(each))


def accuracy(
    series: Mapping[Key, Series], points: int, fit: Callable[..., Any], line: Callable[..., Any]
) -> dict[str, dict[str, float]]:
    """How well batch sizes that were not fitted are predicted."""
    ways: dict[str, tuple[Callable[..., Any], Callable[[list[int]], list[int]]]] = {
        f"ours, {points} sizes": (fit, lambda known: spread(known, points)),
        f"a line, {points} sizes": (line, lambda known: spread(known, points)),
        "a line, the smallest 3": (line, lambda known: known[:3]),
    }
    return {way: _tested(series, made, chosen, points) for way, (made, chosen) in ways.items()}


def _tested(
    series: Mapping[Key, Series], fit: Callable[..., Any], chosen: Callable[[list[int]], list[int]], points: int
) -> dict[str, float]:
    pairs = []
    used = 0
    for known in series.values():
        if len(known) <= points:
            continue
        used += 1
        few = chosen(list(known))
        made = fit(few, [known[b] for b in few])
        pairs += [(made(b), taken) for b, taken in known.items() if b not in few]
    predicted, measured = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    wrong = np.abs(predicted / measured - 1)
    left = float(((predicted - measured) ** 2).sum() / ((measured - measured.mean()) ** 2).sum())
    return {
        "series": used,
        "tested": len(pairs),
        "R2": 1 - left,
        "median": float(np.median(wrong)),
        "largest": float(wrong.max()),
    }


def decisions(peaks: Mapping[Key, Series], times: Mapping[Key, Series], points: int) -> dict[str, Any]:
    """Whether each method raises the best throughput: as fitted, and as all measurements say."""
    right, wrong = 0, []
    for key, measured in times.items():
        plain = (key[0], None, key[2])
        if key[1] is None or plain not in times or min(len(measured), len(times[plain])) < 3:
            continue
        fitted = [_scaling(peaks.get(each), times[each], points) for each in (key, plain)]
        if None in fitted:
            continue
        ours, theirs = fitted
        truly = max(b / t for b, t in measured.items()) > max(b / t for b, t in times[plain].items())
        if ours.pays(theirs, USABLE * CARD) == truly:
            right += 1
        else:
            ratio = max(b / t for b, t in measured.items()) / max(b / t for b, t in times[plain].items())
            wrong.append(f"{key[0]} {key[1]} {dict(key[2])}: measured {ratio:.3f}x the plain best")
    return {"right": right, "asked": right + len(wrong), "wrong": wrong}


def _scaling(peaks: Series | None, times: Series, points: int) -> Scaling | None:
    if peaks is None or len(peaks) < 2 or len(times) < 2:
        return None
    some = spread(list(peaks), points), spread(list(times), points)
    return Scaling(
        fit_peaks(some[0], [peaks[b] for b in some[0]]),
        fit_seconds(some[1], [times[b] for b in some[1]]),
    )


if __name__ == "__main__":
    main()
