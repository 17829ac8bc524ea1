"""One way to run one family, and what a process can say about it: its peak, its times in turns, its plan.

Every function here answers in JSON's types. It runs in a process of its own: peaks with MALLOC_MMAP_THRESHOLD_=65536, so
that freed tensors go back to the kernel, times with the default allocator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

WARM = 2
LENGTHS = (1.0, 0.9, 0.97, 0.81, 0.93, 0.85, 0.99, 0.87, 0.95)


@dataclass(frozen=True, slots=True)
class Variant:
    """A family at a size, in a form, run in a way: `plain`, `inductor`, `ours` (inside a budget), or as an expert would."""

    family: str
    size: int
    layers: int
    form: str = "eager"
    way: str = "plain"
    budget: int | str | None = None
    rewrite: bool = True

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ready:
    """A variant that can be called."""

    step: Callable[[], Any]
    model: Any
    inputs: Any
    handle: Any = None

    def predicted(self) -> dict[str, Any]:
        """What the plan of the latest call says; nothing for other ways."""
        if self.handle is None:
            return {}
        plan = self.handle.plan
        what = [(graph.rewrites, graph.regions) for graph in plan.graphs]
        return {"predicted": plan.peak, "predicted_seconds": plan.seconds, "what": repr(what)}


def prepare(variant: Variant) -> Ready:
    import torch
    from benchmarks.chunking.experts import EXPERTS
    from benchmarks.chunking.families import make

    import neaptide
    from neaptide.dryrun import run_step

    model, inputs = make(variant.family, variant.size, variant.layers, variant.form)
    call: Any = model
    handle = None
    if variant.way == "inductor":
        call = torch.compile(model)
    elif variant.way == "ours":
        call = handle = neaptide.compile(model, budget=variant.budget, rewrite=variant.rewrite)
    elif variant.way != "plain":
        EXPERTS[variant.way].change(model)
    return Ready(lambda: run_step(call, inputs, False), model, inputs, handle)


def peak(variant: Variant) -> dict[str, Any]:
    """The high-water mark of a call after one to warm up, and what is there without activations."""
    from neaptide.measurement import measure

    ready = prepare(variant)
    resident = held((*ready.model.parameters(), *ready.model.buffers()), ready.inputs, ready.step())
    taken = measure(ready.step)
    return {"peak": taken.peak, "resident": resident, "seconds": taken.seconds, **ready.predicted()}


def sweep(variants: Sequence[Variant]) -> dict[str, Any]:
    """The high-water marks of variants that differ in their budget, one after the other in one process, from one capture."""
    from neaptide.measurement import measure

    ready = prepare(variants[0])

    def taken(variant: Variant) -> dict[str, Any]:
        ready.handle.budget = variant.budget
        ready.step()
        return {"peak": measure(ready.step).peak, **ready.predicted()}

    return {"found": [_guarded(lambda variant=variant: taken(variant)) for variant in variants]}


def turns(variants: Sequence[Variant], rounds: int) -> dict[str, Any]:
    """Seconds of each variant in each round; rounds go forwards and backwards by turns.

    `differences` are of each result from the first variant's, relative to its largest value.
    """
    ready = [prepare(variant) for variant in variants]
    results = [numbers(each.step()) for each in ready]
    largest = results[0].abs().max().item()
    differences = [(result - results[0]).abs().max().item() / largest for result in results]
    del results
    for _ in range(WARM - 1):
        for each in ready:
            each.step()
    seconds: list[list[float]] = [[] for _ in ready]
    for turn in range(rounds):
        order = range(len(ready)) if turn % 2 else range(len(ready) - 1, -1, -1)
        for position in order:
            begin = time.perf_counter()
            ready[position].step()
            seconds[position].append(time.perf_counter() - begin)
    return {"seconds": seconds, "differences": differences, "plans": [each.predicted() for each in ready]}


def plan(variant: Variant) -> dict[str, Any]:
    """What Neaptide would do and take, with nothing executed."""
    from benchmarks.chunking.families import make

    import neaptide

    model, inputs = make(variant.family, variant.size, variant.layers, variant.form)
    begin = time.perf_counter()
    made = neaptide.plan(model, inputs, budget=variant.budget, rewrite=variant.rewrite)
    took = time.perf_counter() - begin
    return {"predicted": made.peak, "predicted_seconds": made.seconds, "took": took}


def planning(variant: Variant) -> dict[str, Any]:
    """What planning takes at one length after the other, shares of the longest, of which a first one does not fit whole."""
    import torch
    from benchmarks.chunking.families import make

    import neaptide
    from neaptide.dryrun import run_step

    model, inputs = make(variant.family, variant.size, variant.layers, variant.form)
    budget = int(0.6 * neaptide.estimate(model, inputs, train=False).peak)
    handle = neaptide.compile(model, budget=budget, rewrite=variant.rewrite)
    taken: list[tuple[int, float]] = []
    for share in LENGTHS:
        length, before = int(share * variant.size), handle.stats.planning_seconds
        shorter = {name: torch.tensor(given[:, :length].tolist()) for name, given in inputs.items()}  # not a view: one capture
        run_step(handle, shorter, False)
        taken.append((length, handle.stats.planning_seconds - before))
    return {"budget": budget, "taken": taken, "captures": handle.stats.captures}


def estimate(variant: Variant) -> dict[str, Any]:
    """What plain eager PyTorch would take, with nothing executed."""
    from benchmarks.chunking.families import make

    import neaptide

    model, inputs = make(variant.family, variant.size, variant.layers, variant.form)
    return {"predicted": neaptide.estimate(model, inputs, train=False).peak}


def held(*trees: Any) -> int:
    """Bytes of all tensors in nested things, each storage once."""
    from neaptide.accounting import storages, tensors_in

    found = {storage.data_ptr(): storage.nbytes() for tensor in tensors_in(trees) for storage in storages(tensor)}
    return sum(found.values())


def numbers(output: Any) -> Any:
    """The first tensor of floating-point numbers in an output."""
    from neaptide.accounting import tensors_in

    return next(tensor for tensor in tensors_in(output) if tensor.is_floating_point())


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """What a process of its own was asked; an error is an answer too."""
    variants = [Variant(**each) for each in question["variants"]]
    match question["what"]:
        case "turns":
            return _guarded(lambda: turns(variants, question["rounds"]))
        case "sweep":
            return _guarded(lambda: sweep(variants))
        case "rank":
            from benchmarks.chunking.candidates import rank

            return _guarded(lambda: rank(variants, question["rounds"]))
        case what:
            return _guarded(lambda: {"peak": peak, "plan": plan, "planning": planning, "estimate": estimate}[what](variants[0]))


def _guarded(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer, or why there is none, with the budget that would have worked."""
    from neaptide.errors import BudgetError

    try:
        return ask()
    except BudgetError as error:
        return {"failed": _first_line(error), "smallest": error.smallest}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {_first_line(error)}"}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")
