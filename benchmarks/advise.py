"""Advice beside the truth: each method's peak and step time as predicted, with nothing executed, and as measured.

Peaks: in a process with MALLOC_MMAP_THRESHOLD_=65536, the kernel's high-water mark of a step after one to warm up. Times: in a
process with the default allocator, each method's steps in turns with plain ones, the median. Beside ours: PAPAYA's line through
the plain peaks at the three smallest batches, torch's own `MemTracker` (plain steps), and accelerate's rule of thumb for
training with Adam. "known" times are scaled by one plain step's, as after two steps of a run.

    python benchmarks/advise.py [--only gpt2,vit] [--batches 1,2,4,8,16,32] [--runs 5] [--json advise.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.asking import try_to_ask  # noqa: E402

NAMES = ("gpt2", "bert", "llama", "vit", "resnet")
METHODS = (
    "plain",
    "checkpoint blocks",
    "checkpoint selectively",
    "offload activations",
    "int8 activations",
    "step in backward",
)
LARGE = 200e6
"""Peaks below this are not asked to be exact."""
APART = 1.1
"""Times of two methods that differ by less are as good as each other."""
Row = dict[str, Any]


def build(name: str, batch: int) -> tuple[Any, Any]:
    """A model in training, and a batch for it."""
    import torch

    torch.manual_seed(0)
    words, length = 4000, 256
    ids = torch.randint(0, words, (batch, length))
    text = {"input_ids": ids, "labels": ids.clone()}
    wide: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "vocab_size": words}
    match name:
        case "gpt2":
            from transformers import GPT2Config, GPT2LMHeadModel

            config = GPT2Config(
                n_layer=6, n_embd=384, n_head=6, vocab_size=words, bos_token_id=0, eos_token_id=0, use_cache=False
            )
            return GPT2LMHeadModel(config).train(), text
        case "bert":
            from transformers import BertConfig, BertForMaskedLM

            return BertForMaskedLM(BertConfig(**wide, intermediate_size=1536)).train(), text
        case "llama":
            from transformers import LlamaConfig, LlamaForCausalLM

            config = LlamaConfig(**wide, intermediate_size=1024, num_key_value_heads=3, use_cache=False)
            return LlamaForCausalLM(config).train(), text
        case "vit":
            from transformers import ViTConfig, ViTForImageClassification

            config = ViTConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536)
            config.problem_type = "single_label_classification"
            labels = torch.zeros(batch, dtype=torch.int64)
            return ViTForImageClassification(config).train(), {
                "pixel_values": torch.randn(batch, 3, 224, 224),
                "labels": labels,
            }
        case _:
            from transformers import ResNetConfig, ResNetForImageClassification

            model = ResNetForImageClassification(ResNetConfig(depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512]))
            return model.train(), {
                "pixel_values": torch.randn(batch, 3, 128, 128),
                "labels": torch.zeros(batch, dtype=torch.int64),
            }


def around(method: str) -> Any:
    """What switches a method on."""
    from neaptide.methods import method_named

    found = method_named(method)
    assert found is not None, method
    return found.around


def case(name: str, batch: int) -> tuple[Any, Any, Any, Callable[[], None]]:
    """A model, its batch, its optimizer with state, and a step."""
    import torch

    from neaptide.dryrun import run_step

    model, inputs = build(name, batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        run_step(model, inputs, True, optimizer)
        optimizer.zero_grad()

    step()
    return model, inputs, optimizer, step


def peaks(name: str, batch: int, methods: Sequence[str]) -> Row:
    """Predicted and measured peaks at one batch size."""
    from neaptide.dryrun import dry_run
    from neaptide.measurement import measure

    model, inputs, optimizer, step = case(name, batch)
    found: Row = {}
    for method in methods:
        start = time.perf_counter()
        predicted = dry_run(model, inputs, True, optimizer, None, around=around(method)).peak
        took = time.perf_counter() - start
        with around(method)([model], optimizer):
            step()
            found[method] = {"predicted": predicted, "peak": measure(step).peak, "took": took}
    return {
        "found": found,
        "tracked": _tracked(model, inputs, optimizer),
        "thumb": 4 * sum(p.nbytes for p in model.parameters()),
    }


def _tracked(model: Any, inputs: Any, optimizer: Any) -> int | None:
    """What torch's own tracker says of a plain step, on fake tensors."""
    try:
        import torch
        from torch.distributed._tools.mem_tracker import MemTracker

        from neaptide.dryrun import loss_of
        from neaptide.optimizers import twin_optimizer
        from neaptide.twins import fake_twins

        with fake_twins(model, inputs) as twins, twins.mode:
            stepper = twin_optimizer(optimizer, twins.twin)
            tracker = MemTracker()
            tracker.track_external(model, stepper, *twins.args, *twins.kwargs.values())
            with tracker:
                loss_of(model(*twins.args, **twins.kwargs)).backward()
                stepper.step()
            return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])
    except Exception:  # it is private, and another's
        return None


def times(name: str, batch: int, methods: Sequence[str], runs: int) -> Row:
    """Predicted and measured seconds at one batch size."""
    from neaptide.dryrun import dry_run
    from neaptide.hardware import this_machine
    from neaptide.pace import pace

    model, inputs, optimizer, step = case(name, batch)
    found: Row = {}

    def timed() -> float:
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    for method in methods:
        predicted = dry_run(model, inputs, True, optimizer, None, this_machine(), around(method)).seconds * pace()
        own, plain = [], []
        for _ in range(runs):
            plain.append(timed())
            with around(method)([model], optimizer):
                own.append(timed())
        found[method] = {"predicted": predicted, "seconds": statistics.median(own[1:]), "plain": statistics.median(plain[1:])}
    return {"found": found}


def rows_of(name: str, batches: Sequence[int], methods: Sequence[str], runs: int) -> Iterator[Row]:
    for batch in batches:
        taken = _asked("peaks", name, batch, methods)
        if "failed" in taken:
            yield {"model": name, "batch": batch, "method": "all", **taken}
            continue
        told = _asked("times", name, batch, methods, runs, measuring=False) if runs else {}
        for method in methods:
            row = {"model": name, "batch": batch, "method": method, **taken["found"][method]}
            timed = told.get("found", {}).get(method, {})
            row |= {"expected": timed.get("predicted"), "seconds": timed.get("seconds"), "plain": timed.get("plain")}
            if method == "plain":
                row |= {"tracked": taken["tracked"], "thumb": taken["thumb"]}
            yield row


def _asked(what: str, *args: Any, measuring: bool = True) -> Row:
    return try_to_ask(__file__, "--case", json.dumps([what, *args]), measuring=measuring, limit=1800)


def line(row: Row) -> str:
    begin = f"{row['model']:<8}{row['batch']:>5}  {row['method']:<24}"
    if "failed" in row:
        return begin + row["failed"]
    off = row["predicted"] / row["peak"] - 1
    cells = f"{row['predicted'] / 1e6:>10,.1f}{row['peak'] / 1e6:>10,.1f}{off:>8.2%}"
    if row.get("seconds"):
        cells += f"{row['expected'] * 1e3:>11,.1f}{row['seconds'] * 1e3:>11,.1f}{row['expected'] / row['seconds'] - 1:>8.1%}"
    return begin + cells


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """How well peaks and times are predicted, and by others."""
    from neaptide.advice import CALIBRATED_OFF, MEASURED_OFF, PEAK_OFF

    good = [row for row in rows if "failed" not in row]
    peaks = [(r["predicted"], r["peak"]) for r in good]
    yield _told("peak", peaks, [pair for pair in peaks if pair[1] > LARGE], PEAK_OFF)
    plain = [row for row in good if row["method"] == "plain"]
    yield _told("  MemTracker, plain", [(r["tracked"], r["peak"]) for r in plain if r.get("tracked")])
    yield _told("  four times the parameters, plain", [(r["thumb"], r["peak"]) for r in plain])
    yield _told("  a line through three batches, plain", list(_lines(plain)))
    timed = [row for row in good if row.get("seconds")]
    yield _told("time, calibration alone", [(r["expected"], r["seconds"]) for r in timed], interval=CALIBRATED_OFF)
    scale = {(r["model"], r["batch"]): r["seconds"] / r["expected"] for r in timed if r["method"] == "plain"}
    known = [(r["expected"] * scale[r["model"], r["batch"]], r["seconds"]) for r in timed if r["method"] != "plain"]
    yield _told("time, a plain step known", known, interval=MEASURED_OFF)
    right = asked = 0
    for one, other in combinations(timed, 2):
        same = (one["model"], one["batch"]) == (other["model"], other["batch"])
        ratio = one["seconds"] / other["seconds"]
        if same and not 1 / APART < ratio < APART:
            asked += 1
            right += (one["expected"] > other["expected"]) == (ratio > 1)
    yield f"methods in the right order: {right} of {asked} pairs that differ by over 10 %"


def _lines(plain: Sequence[Row]) -> Iterator[tuple[float, float]]:
    import numpy as np

    for name in dict.fromkeys(row["model"] for row in plain):
        own = sorted((row["batch"], row["peak"]) for row in plain if row["model"] == name)
        if len(own) > 3:
            each, fixed = np.polyfit(*zip(*own[:3], strict=True), 1)
            yield from ((fixed + each * batch, peak) for batch, peak in own[3:])


def _told(
    what: str, pairs: Sequence[tuple[float, float]], large: Sequence[tuple[float, float]] = (), interval: float = 0.0
) -> str:
    if len(pairs) < 2:
        return f"{what}: too few"
    mean = statistics.fmean(measured for _, measured in pairs)
    left = sum((p - m) ** 2 for p, m in pairs) / sum((m - mean) ** 2 for _, m in pairs)
    off = [abs(p / m - 1) for p, m in pairs]
    over = f", largest over 200 MB {max(abs(p / m - 1) for p, m in large):.2%}" if large else ""
    errors = f"median error {statistics.median(off):.2%}, largest {max(off):.2%}{over}"
    inside = f", {sum(o <= interval for o in off)} inside ±{interval:.0%}" if interval else ""
    return f"{what}: R2 {1 - left:.4f}, {errors}{inside} ({len(pairs)} cases)"


CASES: dict[str, Callable[..., Row]] = {"peaks": peaks, "times": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), help="models, with commas")
    parser.add_argument("--batches", default="1,2,4,8,16,32", help="batch sizes, with commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="methods, with commas")
    parser.add_argument("--runs", type=int, default=5, help="steps of each method that are timed; 0 for peaks alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there, after each of them")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        what, *args = json.loads(options.case)
        print(json.dumps(CASES[what](*args)))
        return
    figures = f"{'predicted':>10}{'peak MB':>10}{'off':>8}{'predicted':>11}{'step ms':>11}{'off':>8}"
    print(f"{'model':<8}{'batch':>5}  {'method':<24}{figures}")
    found: list[Row] = []
    for name in options.only.split(","):
        for row in rows_of(name, [int(b) for b in options.batches.split(",")], options.methods.split(","), options.runs):
            found.append(row)
            print(line(row), flush=True)
            if options.json:
                options.json.write_text(json.dumps(found))
    for told in summary(found):
        print(told)


if __name__ == "__main__":
    main()
