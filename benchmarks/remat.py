"""Training inside a budget: peak against step time, beside PyTorch's own budget and block checkpointing.

Ways: eager, the library's own gradient checkpointing, `aot_eager` with `activation_memory_budget` from 1 to 0, and inductor too
with `--inductor`; ours with each distinct peak of those as its budget; ours with less than any of them; and the lowest that we
reach by recomputation alone (`alone`) and by all means (`ours`), beside eager. Peaks: in a process with
MALLOC_MMAP_THRESHOLD_=65536, the kernel's high-water mark of a step after two to warm up. Times: ours and theirs in one process
with the default allocator, steps taken in turns, the median ratio of the pairs.

With `--budgets`: three sizes of each model, budgets from what eager takes down to the smallest reachable and one below it,
each beside the peak that a step inside it takes.

    python benchmarks/remat.py [--only bert,vit] [--pairs 21] [--inductor] [--json remat.json] [--plot remat.svg] [--budgets]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.asking import AskError, ask_each, try_to_ask  # noqa: E402

NAMES = ("gpt2", "gpt2-eager", "llama", "bert", "vit", "unet")
SHARES = (1.0, 0.7, 0.5, 0.3, 0.1, 0.0)
SIZES = (1.0, 0.75, 0.5)
"""Of the batch, how much is taken: of the length of texts, of the number of images, of the side of what UNet reads."""
THEIRS = ("eager", "blocks", *(f"torch {share}" for share in SHARES))
FUSED = tuple(f"inductor {share}" for share in SHARES)
KINDS: dict[str, dict[str, Any]] = {
    "ours": {},
    "alone": {"exact": True, "offload": False},
    "lowered": {"inner": "inductor"},
    "free": {"budget": None, "inner": "inductor"},
}
"""Ours with all means, by recomputation alone, with fused kernels, and with those and no budget."""
BACKENDS = {"torch": "aot_eager", "inductor": "inductor"}
SAME = 0.0005
"""Peaks that differ by less are one peak."""
LESS = 0.7
"""What we are asked to do with, of the least activations that the other ways reach."""
WARM = 2
HEADS = f"{'model':<11}{'way':<26}{'budget MB':>10}{'peak MB':>11}{'activations':>14}{'time/its':>10}{'quartiles':>16}"
Row = dict[str, Any]


def build(name: str) -> tuple[Any, Any]:
    """A model in training and a batch; few words, so that the loss is not all there is."""
    import torch
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        ViTConfig,
        ViTForImageClassification,
    )

    torch.manual_seed(0)
    words = 2000
    ids = torch.randint(0, words, (4, 512))
    text = {"input_ids": ids, "labels": ids.clone()}
    wide: dict[str, Any] = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": words}
    match name:
        case "gpt2" | "gpt2-eager":
            form = "eager" if name == "gpt2-eager" else "sdpa"
            size: dict[str, Any] = {"n_layer": 6, "n_embd": 512, "n_head": 8, "vocab_size": words}
            made = GPT2LMHeadModel(
                GPT2Config(**size, bos_token_id=0, eos_token_id=0, use_cache=False, attn_implementation=form)
            )
            return made.train(), text
        case "llama":
            config = LlamaConfig(**wide, intermediate_size=1376, num_key_value_heads=4, use_cache=False)
            return LlamaForCausalLM(config).train(), text
        case "bert":
            return BertForMaskedLM(BertConfig(**wide, intermediate_size=2048)).train(), text
        case "vit":
            config = ViTConfig(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048)
            config.problem_type = "single_label_classification"  # it would find out in the first step, and be captured again
            return ViTForImageClassification(config).train(), {
                "pixel_values": torch.randn(8, 3, 224, 224),
                "labels": torch.zeros(8, dtype=torch.int64),
            }
        case _:
            from benchmarks.branches import conditional_unet

            return conditional_unet().train(), (torch.randn(2, 4, 64, 64), torch.tensor(10), torch.randn(2, 77, 128))


def sized(name: str, size: float) -> tuple[Any, Any]:
    """A model and its batch, cut to a part of its size."""
    model, inputs = build(name)
    if name == "unet":
        noise, *rest = inputs
        side = int(noise.shape[-1] * size)
        return model, (noise[..., :side, :side].contiguous(), *rest)
    if name == "vit":
        return model, {key: value[: int(len(value) * size)].contiguous() for key, value in inputs.items()}
    return model, {key: value[:, : int(value.shape[1] * size)].contiguous() for key, value in inputs.items()}


def prepare(name: str, way: str) -> tuple[Callable[[], None], int]:
    """A step of a model under another way (`eager`, `blocks`, `blocks inductor`, `torch SHARE`, `inductor SHARE`), and the
    bytes that are there whatever it keeps: parameters and gradients."""
    import torch

    model, inputs = build(name)
    call: Any = model
    kind, _, figure = way.partition(" ")
    if kind == "blocks":
        enable = getattr(model, "gradient_checkpointing_enable", None) or model.enable_gradient_checkpointing
        enable()
    if kind in BACKENDS or figure == "inductor":
        torch._functorch.config.activation_memory_budget = float(figure) if kind in BACKENDS else 1.0
        alone: Any = {"isolate_recompiles": True}  # another model of the same form would be given this one's code
        call = torch.compile(model, backend=BACKENDS.get(kind, figure), **alone)
    step = _step(call, model, inputs)
    for _ in range(WARM):
        step()
    torch._functorch.config.activation_memory_budget = 1.0
    return step, 2 * sum(p.nbytes for p in model.parameters())


def _step(call: Any, model: Any, inputs: Any) -> Callable[[], None]:
    from neaptide.dryrun import run_step

    def step() -> None:
        run_step(call, inputs, True)
        model.zero_grad()

    return step


class Ours:
    """A model under Neaptide, captured once, whatever budgets it is then asked to hold."""

    def __init__(self, name: str, kind: str) -> None:
        import neaptide

        model, inputs = build(name)
        self.handle = neaptide.compile(model, **{"budget": "min", **KINDS[kind]})
        self._step = _step(model, model, inputs)

    def inside(self, budget: int | str | None) -> Callable[[], None]:
        """A step inside a budget, its kernels made where any are."""
        self.handle.budget = budget
        for _ in range(2 * WARM):
            self._step()
        self.handle.wait()
        for _ in range(WARM):
            self._step()
        return self._step


def theirs(name: str, ways: Sequence[str]) -> Row:
    """What a step takes under each of some other ways."""
    import gc

    import torch

    from neaptide.measurement import measure

    found: Row = {}
    for way in ways:
        step, fixed = prepare(name, way)
        found[way] = {"peak": measure(step).peak, "fixed": fixed}
        del step
        torch._dynamo.reset()
        gc.collect()
    return found


def ours(name: str, kind: str, budgets: Sequence[int | str | None]) -> Row:
    """What a step takes inside each of some budgets."""
    from neaptide.errors import BudgetError
    from neaptide.measurement import measure

    own = Ours(name, kind)
    found = []
    for budget in budgets:
        try:
            taken = measure(own.inside(budget)).peak
            found.append({"peak": taken, "predicted": own.handle.plan.peak, "planning": own.handle.stats.planning_seconds})
        except BudgetError as error:
            found.append({"failed": str(error).splitlines()[0], "smallest": error.smallest})
    return {"found": found}


def budgets(name: str, size: float) -> Row:
    """Peaks of steps at one size inside budgets from what eager takes to the smallest reachable, and what is said below it."""
    import neaptide
    from neaptide.dryrun import run_step
    from neaptide.errors import BudgetError

    model, inputs = sized(name, size)
    plain = neaptide.estimate(model, inputs).peak
    handle = neaptide.compile(model, budget="min")

    def taken(budget: int | str) -> tuple[int, int]:
        handle.budget = budget
        for _ in range(WARM):
            run_step(model, inputs, True)
            model.zero_grad()
        peak = neaptide.measure(run_step, model, inputs, True).peak
        model.zero_grad()
        return peak, handle.plan.peak

    _, least = taken("min")
    limits = [int(least + share * (plain - least)) for share in SHARES]
    found = [(limit, *taken(limit)) for limit in limits]
    try:
        taken(int(least * 0.97))
        below = None
    except BudgetError as error:
        below = str(error)
    return {"plain": plain, "least": least, "found": found, "below": below}


def turns(name: str, kind: str, pairs: int, beside: Sequence[tuple[str, int | str | None]]) -> Iterator[Row]:
    """Seconds of the steps of each of the other ways and of ours inside a budget, in turns."""
    own = Ours(name, kind)
    known: dict[str, Callable[[], None]] = {}
    for way, budget in beside:
        step = known[way] = known.get(way) or prepare(name, way)[0]
        seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        both = [("ours", own.inside(budget)), ("theirs", step)]
        for pair in range(pairs):
            for who, run in both if pair % 2 else both[::-1]:
                begin = time.perf_counter()
                run()
                seconds[who].append(time.perf_counter() - begin)
        yield seconds


def rows_of(name: str, pairs: int, others: Sequence[str] = THEIRS) -> Iterator[Row]:
    """Every way; then ours inside the peak of each, with our time beside its; then the lowest, beside eager."""
    taken = asked("theirs", name, others)
    if "failed" in taken:
        yield {"model": name, "way": "others", **taken}
        return
    ways = {way: row for way, row in taken.items() if is_new(way, taken)}
    fixed = taken["eager"]["fixed"]
    less = int(fixed + LESS * (min(taken[way]["peak"] for way in THEIRS if way in taken) - fixed))
    beside: list[tuple[str, int | str | None]] = [(way, row["peak"]) for way, row in ways.items()]
    beside += [("eager", less), ("eager", "min")]
    own = rows_beside(name, "ours", pairs, beside)
    for way, row in taken.items():
        yield {"model": name, "way": way, **row}
        if way in ways:
            yield {"model": name, "way": "  ours inside it", "fixed": fixed, "budget": row["peak"], **next(own)}
    yield {"model": name, "way": f"ours, {LESS:.0%} of the least", "fixed": fixed, "budget": less, **next(own)}
    yield {"model": name, "way": "ours min", "fixed": fixed, **next(own)}
    yield {"model": name, "way": "alone min", "fixed": fixed, **next(rows_beside(name, "alone", pairs, [("eager", "min")]))}


def rows_beside(name: str, kind: str, pairs: int, beside: Sequence[tuple[str, int | str | None]]) -> Iterator[Row]:
    """Our peaks and seconds inside budgets, each beside another way."""
    peaks = asked("ours", name, kind, [budget for _, budget in beside])
    rows = peaks.get("found") or [peaks] * len(beside)
    todo = [pair for pair, row in zip(beside, rows, strict=True) if "failed" not in row]
    seconds = timed(name, kind, pairs, todo) if pairs and todo else repeat({})
    for row in rows:
        yield row if "failed" in row else {**row, "seconds": next(seconds)}


def timed(*args: Any) -> Iterator[Row]:
    """Seconds beside each of the others as soon as they are there; or why there are none, or no more."""
    try:
        yield from ask_each(__file__, "--case", json.dumps(["turns", *args]), measuring=False)
    except AskError as failed:
        yield from repeat({"failed": str(failed)})


def asked(case: str, *args: Any, measuring: bool = True) -> Row:
    return try_to_ask(__file__, "--case", json.dumps([case, *args]), measuring=measuring)


def is_new(way: str, taken: Row) -> bool:
    """Whether none of the ways before one takes the same."""
    before = list(taken.values())[: list(taken).index(way)]
    return all(abs(row["peak"] / taken[way]["peak"] - 1) > SAME for row in before)


def line(row: Row) -> str:
    cells = [f"{row['model']:<11}{row['way']:<26}"]
    if "failed" in row:
        return cells[0] + row["failed"]
    budget = f"{row['budget'] / 1e6:,.1f}" if "budget" in row else ""
    cells.append(f"{budget:>10}{row['peak'] / 1e6:>11,.1f}{(row['peak'] - row['fixed']) / 1e6:>14,.1f}")
    seconds = row.get("seconds", {})
    if "ours" in seconds:
        ratios = [a / b for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        cells.append(f"{middle:>10.3f}{f'{low:.3f}-{high:.3f}':>16}")
    elif "failed" in seconds:
        cells.append(f"  {seconds['failed']}")
    return "".join(cells)


def held(name: str) -> Iterator[Row]:
    """Budgets and the peaks inside them, at three sizes."""
    for size in SIZES:
        yield {"model": name, "size": size, **asked("budgets", name, size)}


def held_line(row: Row) -> str:
    begin = f"{row['model']:<11}{row['size']:<6}"
    if "failed" in row:
        return begin + row["failed"]
    peaks = [peak for _, peak, _ in row["found"]]
    most = max(peak / limit for limit, peak, _ in row["found"])
    off = max(abs(planned / peak - 1) for _, peak, planned in row["found"])
    rises = max(later / earlier for earlier, later in pairwise(peaks))
    cells = " ".join(f"{peak / limit:.3f}" for limit, peak, _ in row["found"])
    figures = f"{row['plain'] / 1e6:>9,.1f}{row['least'] / 1e6:>10,.1f}{most:>8.3f}{rises:>8.3f}{off:>8.2%}  {cells}"
    return f"{begin}{figures}  {'says what is smallest' if row['below'] else 'NO ERROR BELOW'}"


CASES: dict[str, Callable[..., Row | Iterator[Row]]] = {"theirs": theirs, "ours": ours, "turns": turns, "budgets": budgets}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), help="models, with commas")
    parser.add_argument("--pairs", type=int, default=21, help="how many times the two take turns; 0 for peaks alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there, after each of them")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw peaks and times: .svg or .html")
    parser.add_argument("--inductor", action="store_true", help="inductor's budgets too, which take minutes to compile")
    parser.add_argument("--budgets", action="store_true", help="whether budgets hold, instead")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case, *args = json.loads(options.case)
        told = CASES[case](*args)
        for row in [told] if isinstance(told, dict) else told:
            print(json.dumps(row), flush=True)
        return
    heads = HEADS
    if options.budgets:
        heads = f"{'model':<11}{'size':<6}{'eager MB':>9}{'least MB':>10}{'most':>8}{'rises':>8}{'off':>8}  peak / budget"
    print(heads)
    found, others = [], (*THEIRS, *FUSED) if options.inductor else THEIRS
    for name in options.only.split(","):
        for row in held(name) if options.budgets else rows_of(name, options.pairs, others):
            found.append(row)
            print(held_line(row) if options.budgets else line(row), flush=True)
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.plot and not options.budgets:
        from benchmarks.common.drawing import write
        from benchmarks.common.tradeoff import draw

        print(f"The picture is in {write(options.plot, 'Training inside a budget', draw(found)).resolve()}")


if __name__ == "__main__":
    main()
