"""A sheltered step on fake tensors: what a step of some size takes, with nothing executed.

In: a model whose blocks have switches, its arguments, a loss. Out: a `Record`. The step is that of `dryrun.py`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from neaptide.accounting import Accounting, tensors_in
from neaptide.dryrun import Loss, loss_of, register
from neaptide.eager.observe import Observer
from neaptide.eager.record import Record
from neaptide.errors import CaptureError
from neaptide.optimizers import parameters_of, twin_optimizer
from neaptide.twins import as_if_real, fake_twins


class Watched(Protocol):
    """Whose blocks have switches."""

    model: nn.Module
    observer: Observer | None

    def plain(self, *args: Any, **kwargs: Any) -> Any: ...


def probe(adapter: Watched, inputs: tuple[tuple[Any, ...], dict[str, Any]], loss: Loss | None) -> Record:
    """Run a step on fakes. A `CaptureError`, or what the model raises, says why that cannot be done."""
    model = adapter.model
    observer = Observer(real=False)
    with fake_twins(model, {"given": (inputs[0], inputs[1])}) as twins, as_if_real(), twins.mode:
        register(observer.accounting, twins, None)
        args, kwargs = twins.kwargs["given"]
        trained = [p for p in model.parameters() if p.requires_grad]
        for parameter in trained:
            parameter.grad = None
        adapter.observer = observer
        try:
            with observer.accounting, torch.enable_grad():
                output = adapter.plain(*args, **kwargs)
                scalar = loss_of(output, loss)
                outputs = [next(observer.accounting.entries_of(tensor), None) for tensor in tensors_in(output)]
                del output  # who holds on to it is not known here: its lives are those without
                turn = len(observer.accounting.steps)
                scalar.backward()
        finally:
            adapter.observer = None
        record = observer.record(turn, [p.grad for p in trained], outputs)
        del scalar
    if observer.accounting.values.notes:
        raise CaptureError(f"what its ops do depends on the data: {next(iter(observer.accounting.values.notes))}")
    return record


def optimizer_need(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes that an optimizer's step takes beside parameters and gradients: its whole state, and what it makes on its way."""
    some = next(model.parameters())
    with fake_twins(model, (some,)) as twins, twins.mode:
        stepper = twin_optimizer(optimizer, twins.twin)
        accounting = Accounting()
        for parameter in parameters_of(stepper):
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
            accounting.resident(parameter, "", "parameter")
            if parameter.grad is not None:
                accounting.resident(parameter.grad, "", "gradient")
        state = list(tensors_in([tuple(held.values()) for held in stepper.state.values()]))
        for tensor in state:
            accounting.resident(tensor, "", "optimizer")
        with accounting.watching():
            stepper.step()
        line = accounting.timeline()
        held = sum(tensor.nbytes for tensor in state)
    return held + line.peak - (line.bytes[0] if line.bytes else 0)
