"""What `compile` would do, and take, before anything is executed.

In: a model, inputs, a budget. Out: a `Plan`. The model is captured and its programs are planned just as `compile` does it,
on fake twins of its tensors: real graphs, no data. The optimizer's own step follows the backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from neaptide.budget import Budget, parse_budget
from neaptide.accounting import Accounting
from neaptide.dryrun import Loss, register, run_step
from neaptide.errors import InputError
from neaptide.handle import Handle, device_of
from neaptide.optimizers import twin_optimizer
from neaptide.plans import Plan
from neaptide.runtime.compose import make_plan
from neaptide.runtime.session import Session
from neaptide.timeline import Timeline
from neaptide.twins import Twins, fake_twins


def plan(
    model: Callable[..., Any],
    inputs: Any,
    budget: Budget | str | int | float | None = None,
    train: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Loss | None = None,
) -> Plan:
    """The plan that `compile(model, budget)` would make for these inputs, with nothing executed or changed.

    With `train`, the step is that of `neaptide.dryrun.run_step`: forward, loss, backward and `optimizer.step()`.

    >>> layer = torch.nn.Linear(256, 256)
    >>> made = plan(layer, torch.ones(64, 256))
    >>> made.parts["parameter"], made.parts["input"], made.parts["output"]
    (267264, 69632, 69632)
    """
    if not callable(model):
        raise InputError(f"plan takes a torch.nn.Module or a function, not {type(model).__name__}")
    with fake_twins(model, inputs) as twins, twins.mode, torch.compiler.set_stance("default"):
        stepper = twin_optimizer(optimizer, twins.twin) if train and optimizer is not None else None
        session = Session(Budget(), twins.modules, stepper)
        resident = session.ledger.resident()
        handle = Handle(model, session)
        call = handle if not isinstance(model, torch.nn.Module) else model
        try:
            run_step(call, twins.kwargs or twins.args, train, None, loss)
        finally:
            handle.release()
        session.budget = parse_budget(budget, device_of(twins.modules))
        made = make_plan(session, resident)
        if stepper is None:
            return made
        return replace(made, timeline=made.timeline.then([_optimizer_step(twins, stepper)]))


def _optimizer_step(twins: Twins, stepper: torch.optim.Optimizer) -> Timeline:
    """The optimizer's own step, with its temporaries, on the gradients that the backward left."""
    accounting = Accounting(twins.modules)
    register(accounting, twins, stepper)
    with accounting:
        stepper.step()
    return accounting.timeline()
