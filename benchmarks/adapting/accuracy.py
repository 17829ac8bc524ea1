"""How well the memory of blocks is foretold at sizes that never ran, by each of the two predictors.

In: a model of `streams.py`. Out: for each predictor, after ten steps of the stream, the share by which what a block leaves
behind between forward and backward differs from the truth at the sizes after them: of each block, and of all together. The
truth is a plain forward for real, every storage followed.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from benchmarks.adapting.streams import arguments, run
from torch import nn

import neaptide
from neaptide.accounting import Accounting, tensors_in
from neaptide.eager import planner
from neaptide.eager.blocks import find_blocks
from neaptide.eager.course import situation_of

STEPS = 10
KINDS = ("dry run", "fitted")


class Inside:
    """Which block a run is in."""

    def __init__(self) -> None:
        self.block = ""

    def place(self) -> tuple[str, str]:
        return self.block, ""

    def line(self) -> str:
        return ""


def left_behind(model: nn.Module, batch: Any) -> Counter[str]:
    """Bytes that each block of a plain model has made and that are there when the backward would begin."""
    inside = Inside()
    accounting = Accounting(where=inside, real=True)
    for tensor in (*model.parameters(), *model.buffers(), *tensors_in(arguments(batch))):
        accounting.resident(tensor, "", "parameter")
    hooks = []
    for unit in find_blocks(model):

        def enter(*_: Any, name: str = unit.name) -> None:
            inside.block = name

        def leave(*_: Any) -> None:
            inside.block = ""

        hooks += [unit.module.register_forward_pre_hook(enter), unit.module.register_forward_hook(leave)]
    try:
        with accounting:
            loss = run(model, batch)
            found: Counter[str] = Counter()
            for entry in accounting.alive():
                found[entry.path] += entry.bytes if entry.born else 0
            del loss
    finally:
        for hook in hooks:
            hook.remove()
    return found


@contextmanager
def only(kind: str) -> Iterator[None]:
    """With nothing known from earlier processes, and without dry runs if real steps are to be learnt from."""

    def refuse(*_: Any) -> Any:
        raise RuntimeError("not wanted here")

    kept = planner.probe
    if kind == "fitted":
        planner.probe = refuse
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"NEAPTIDE_CACHE": folder}):
        try:
            yield
        finally:
            planner.probe = kept


def errors(model: nn.Module, batches: list[Any], kind: str) -> dict[str, Any]:
    """How far a predictor is off at the sizes that come after the first steps."""
    plain = copy.deepcopy(model)
    with only(kind):
        handle = neaptide.adapt(model, budget="min")
        for batch in batches[:STEPS]:
            run(model, batch).backward()
            model.zero_grad()
        handle._session.end_observation()
        seen = {str(shapes(batch)) for batch in batches[:STEPS]}
        each, whole, looked = [], [], 0
        for batch in batches[STEPS:]:
            if str(shapes(batch)) in seen:
                continue
            seen.add(str(shapes(batch)))
            args, kwargs = arguments(batch)
            if handle._session._takes_cache:
                kwargs = {**kwargs, "use_cache": False}
            situation = situation_of(args, kwargs, False)
            told = handle._session.planner.family(situation).predictor.predict(situation.shapes, False, frozenset())
            if told is None:
                looked += 1
                continue
            truth, expected = left_behind(plain, batch), Counter[str]()
            for call in told.calls:
                expected[call.name] += call.kept + call.saved
            blocks = [name for name in truth if name and truth[name]]
            each += [abs(expected[name] / truth[name] - 1) for name in blocks]
            whole.append(abs(sum(expected[name] for name in blocks) / sum(truth[name] for name in blocks) - 1))
    stats = str(handle.stats)
    handle.release()
    each.sort()
    told_off = {"block": max(each, default=None), "usual block": each[len(each) // 2] if each else None}
    return {**told_off, "all": max(whole, default=None), "sizes": len(whole), "looked at": looked, "stats": stats}


def shapes(batch: Any) -> Any:
    args, kwargs = arguments(batch)
    return [tuple(t.shape) for t in tensors_in((args, kwargs))]
