"""What `compile` would do, and take, before anything is executed.

In: a model, inputs, a budget. Out: a `Plan`. The model is captured and planned just as `compile` does it, on fake twins of its
tensors; then the step runs on the twins, with every storage accounted for: what the programs make, what happens between
graphs and outside them, and the optimizer's own step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from neaptide._torch import DataDependentOutputException, FakeTensorMode
from neaptide.accounting import Accounting
from neaptide.budget import Budget, parse_budget
from neaptide.dryrun import Loss, account, run_step
from neaptide.errors import CaptureError, InputError
from neaptide.handle import Handle, device_of
from neaptide.loops import LAST
from neaptide.optimizers import twin_optimizer
from neaptide.plans import Plan
from neaptide.runtime.compiled import Compiled
from neaptide.runtime.compose import make_plan
from neaptide.runtime.session import Session
from neaptide.timeline import Life, Timeline
from neaptide.twins import Twins, fake_twins
from neaptide.writer import Emitted


def plan(
    model: Callable[..., Any],
    inputs: Any,
    budget: Budget | str | int | float | None = None,
    train: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Loss | None = None,
    exact: bool = False,
    rewrite: bool = True,
    offload: bool = True,
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
    with fake_twins(model, inputs, _WatchedMode) as twins, twins.mode:
        stepper = twin_optimizer(optimizer, twins.twin) if train and optimizer is not None else None
        allowed = {"exact": exact, "rewrite": rewrite, "offload": offload}
        session = Session(Budget(), twins.modules, stepper, bounded=budget is not None, inner=None, **allowed)
        handle = Handle(model, Compiled(model, session))
        call = model if isinstance(model, torch.nn.Module) else handle
        try:
            with _gradients_put_back(twins), _watched(twins.mode, Accounting(twins.modules)):
                run_step(call, twins.kwargs or twins.args, train, None, loss)  # captures, and learns what flows back
            session.replan(parse_budget(budget, device_of(twins.modules)))
            accounting = Accounting(twins.modules)
            session.run = _told(accounting)
            line = account(accounting, _watched(twins.mode, accounting), call, twins, train, stepper, loss)
            line = _with_aside(line, session)
        except DataDependentOutputException as error:
            raise CaptureError(
                f"the model needs a value that only a real run knows ({error}); measure a real step instead"
            ) from error
        finally:
            handle.release()
        made = make_plan(session, ())
        notes = made.notes if made.graphs else ("nothing could be captured: the model runs as plain eager PyTorch",)
        return replace(made, timeline=line, notes=(*notes, *accounting.values.notes))


def _with_aside(line: Timeline, session: Session) -> Timeline:
    """A timeline with what is set aside over all of it, as the session counts it."""
    held = session.ledger.resident()
    aside = [each for each in held if each.kind == "other"]
    lives = (Life(each.name, each.kind, each.bytes, 0, len(line.steps)) for each in aside)
    return Timeline(line.steps, (*line.lives, *lives))


class _WatchedMode(FakeTensorMode):
    """A fake mode that lets an accounting see its ops. Dynamo leaves models alone under any other kind of mode."""

    accounting: Accounting | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        accounting = self.accounting
        if accounting is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        self.accounting = None
        try:
            with self:
                return accounting.__torch_dispatch__(func, types, args, kwargs)
        finally:
            self.accounting = accounting


@contextmanager
def _watched(mode: Any, accounting: Accounting) -> Iterator[None]:
    mode.accounting = accounting
    try:
        yield
    finally:
        mode.accounting = None


@contextmanager
def _gradients_put_back(twins: Twins) -> Iterator[None]:
    held = [(p, p.grad) for module in twins.modules for p in module.parameters()]
    yield
    for parameter, gradient in held:
        parameter.grad = gradient


def _told(accounting: Accounting) -> Callable[[Emitted, list[Any]], Sequence[Any]]:
    """Runs a piece op by op, telling the accounting where in the model each op comes from."""

    class Told(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            accounting.where.told = n.meta.get("place", ("", ""))
            return super().run_node(n)

        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            loop = self.fetch_attr(target)
            return loop.function(lambda given: Told(loop.module).boxed_run(given), LAST, *args)

    def run(piece: Emitted, args: list[Any]) -> Sequence[Any]:
        engine, accounting.backward = accounting.backward, False
        try:
            return Told(piece.module).boxed_run(args)
        finally:
            accounting.where.told, accounting.backward = None, engine

    return run
