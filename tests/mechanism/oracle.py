"""Eager PyTorch is the oracle: a scenario runs on a plain and a compiled model, and what a user can see is equal."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import neaptide
from neaptide import Handle
from neaptide.plans import Plan
from neaptide.runtime.session import Session

POINTS = ("everything", "min-cut", "nothing", "lowest")


class Forced:
    """Takes the choice of a rung away from sessions: by its name, or by the batch size (the first free size)."""

    def __init__(self) -> None:
        self.name = POINTS[0]
        self.by_size: dict[int, str] = {}

    def choose(self, session: Session, unit: Any, dims: tuple[int, ...]) -> Any:
        session.stats.plans += 1
        wanted = self.by_size.get(dims[0], self.name) if dims else self.name
        if not unit.graph.trains:
            return unit.rungs[0]
        found = {rung.name: rung for rung in unit.rungs}
        assert set(found) == set(POINTS) - {"lowest"}
        return unit.tighter(dims, None) if wanted == "lowest" else found[wanted]

    def take(self, name: str, handle: Handle) -> None:
        """From now on `handle` runs on the rung of this name."""
        self.name = name
        for unit in handle._session.units:
            unit.forget()


@dataclass
class Seen:
    """What a scenario left behind, and how the compiled model ran."""

    results: Any
    captures: int
    plan: Plan


@dataclass
class Oracle:
    """Compares a compiled model with a plain one on every rung."""

    forced: Forced

    def __call__(
        self,
        make: Callable[[], Any],
        scenario: Callable[[Any], Any],
        captures: int | None = 1,
        oracle: str = "eager",
        fresh: bool = False,
    ) -> dict[str, Seen]:
        """Run a scenario on two models made alike, one of them compiled: the same to the bit, and nothing left saved.

        `make` returns a module or a function; the scenario is given it and returns what it wants compared. Gradients,
        buffers and the random state at the end are compared too. The rungs share one capture unless `fresh`. The oracle
        may be another backend of torch.compile.
        """
        theirs = _run(_made(make), scenario, None if oracle == "eager" else oracle)
        seen: dict[str, Seen] = {}
        model = _made(make)
        before = copy.deepcopy(model.state_dict()) if isinstance(model, nn.Module) else {}
        handle = neaptide.compile(model)
        for name in POINTS:
            if isinstance(model, nn.Module):
                model.load_state_dict(before)
                model.zero_grad()
            self.forced.take(name, handle)
            ours = _run(model if isinstance(model, nn.Module) else handle, scenario)
            assert_same(ours, theirs, name)
            seen[name] = Seen(ours, handle.stats.captures, handle.plan)
            assert captures in (None, handle.stats.captures), f"{handle.stats.captures} captures"
            assert_nothing_saved(handle)
            if fresh:
                handle.release()
                torch._dynamo.reset()
                handle = neaptide.compile(model)
        handle.release()
        return seen


def _made(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return make()


def _run(model: Any, scenario: Callable[[Any], Any], backend: str | None = None) -> Any:
    torch.manual_seed(1)
    call = model if backend is None else torch.compile(model, backend=backend)
    results = detached(scenario(call))
    state = torch.get_rng_state()
    if not isinstance(model, nn.Module):
        return results, state
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    return results, state, gradients, {name: b.clone() for name, b in model.named_buffers()}


def assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    """Equal to the bit, with equal types, all through a tree."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{where}: {m}")


def assert_nothing_saved(handle: Handle) -> None:
    gc.collect()
    assert handle._session.ledger.saved == 0, "something is still entered as saved"


def train(model: Any, *inputs: Any) -> Any:
    """One forward and backward; each output has its own part in the loss. Returns outputs and the inputs' gradients."""
    outputs = model(*inputs)
    total(outputs).backward()
    return detached((outputs, [x.grad for x in inputs if isinstance(x, torch.Tensor)]))


def total(outputs: Any) -> torch.Tensor:
    """A loss in which no two elements count alike."""
    flowing = [t for t in tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    weighed = ((t.float() * torch.linspace(0.5, 1.5, t.numel()).view(t.shape)).sum() for t in flowing)
    return sum((w * i for i, w in enumerate(weighed, 1)), torch.zeros(()))


def detached(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)
