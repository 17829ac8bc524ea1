"""The fake twin of an optimizer: its own step on fake parameters, with fake state, the real one untouched.

In: an optimizer and a way to get tensors' twins. Out: one that steps inside a `FakeTensorMode`. State that isn't there
yet is made by a first step that nobody counts, so that the counted one is a step in the course of training.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neaptide.accounting import Accounting
from neaptide.errors import InputError

Twin = Callable[[torch.Tensor], torch.Tensor]


def twin_optimizer(optimizer: torch.optim.Optimizer, twin: Twin) -> torch.optim.Optimizer:
    """An optimizer of the same kind over the twins of its parameters and state. To be called inside the fake mode.

    Hooks of the user's are left out, and so is a scheduler's wrapper around `step`: they belong to the real one.
    """
    fake = copy.copy(optimizer)
    fake.__dict__ = {name: value for name, value in vars(optimizer).items() if name != "step"}
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        fake.__dict__[hooks] = OrderedDict()
    fake.param_groups = [
        {name: value if name == "params" else _twin_tree(value, twin) for name, value in group.items()}
        for group in optimizer.param_groups
    ]
    for group in fake.param_groups:
        group["params"] = [twin(parameter) for parameter in group["params"]]
    fake.state = defaultdict(dict)
    for parameter, held in optimizer.state.items():
        key = twin(parameter) if isinstance(parameter, torch.Tensor) else parameter
        fake.state[key] = _twin_tree(copy.copy(held), twin)
    _make_state(fake)
    return fake


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Every parameter that an optimizer steps.

    >>> [p.shape for p in parameters_of(torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=1))]
    [torch.Size([1, 2]), torch.Size([1])]
    """
    for group in optimizer.param_groups:
        yield from group["params"]


def _twin_tree(tree: Any, twin: Twin) -> Any:
    return pytree.tree_map_only(torch.Tensor, twin, tree)


def _make_state(fake: torch.optim.Optimizer) -> None:
    fresh = [p for p in parameters_of(fake) if p.requires_grad and p not in fake.state]
    if not fresh:
        return
    before = {p: p.grad for p in parameters_of(fake)}
    for parameter in before:
        parameter.grad = torch.empty_like(parameter) if parameter in set(fresh) else None
    try:
        with Accounting():
            fake.step()
    except TypeError as error:
        raise InputError(f"{type(fake).__name__}.step() needs arguments: estimate without optimizer=") from error
    finally:
        for parameter, gradient in before.items():
            parameter.grad = gradient
