"""What plain eager PyTorch will take, with nothing executed: a step on fake tensors with storage accounting.

In: a model, inputs, and for training an optimizer and a loss. Out: an `Estimate`: the timeline of one step in the
course of training (or one forward), its peak and who holds it. `run_step` is that same step for real. The idea of
predicting a method's memory before it runs is PAPAYA's (arXiv 2303.14633); the figures here come from a dry run
instead of a fitted line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from neaptide import away
from neaptide.accounting import Accounting, tensors_in
from neaptide.errors import CaptureError, InputError
from neaptide.hardware import Machine
from neaptide.memory import fresh_pages
from neaptide.optimizers import parameters_of, twin_optimizer
from neaptide.timeline import Predicted, Timeline
from neaptide.twins import Twins, as_if_real, fake_twins, split_inputs

Loss = Callable[[Any], torch.Tensor]
RESIDENT = ("parameter", "buffer", "optimizer", "input", "other")
"""What is there before a step."""


@dataclass(frozen=True)
class Estimate(Predicted):
    """The memory of one step, predicted. `notes` says what had to be assumed.

    >>> made = estimate(torch.nn.Linear(256, 256), torch.ones(64, 256), train=False)
    >>> made.parts["parameter"], made.parts["input"], made.parts["output"]
    (267264, 69632, 69632)
    >>> Estimate.from_json(made.to_json()) == made
    True
    """

    timeline: Timeline
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    """What the step takes on the machine that was asked about; None where none was."""

    def to_json(self) -> dict[str, Any]:
        told = {"timeline": self.timeline.to_json(), "notes": list(self.notes), "seconds": self.seconds}
        return {"peak": self.peak, **told}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Estimate:
        return Estimate(Timeline.from_json(data["timeline"]), tuple(data["notes"]), data.get("seconds"))

    def __str__(self) -> str:
        from neaptide.report import format_bytes

        lines = [f"peak {format_bytes(self.peak)} at {self.timeline.steps[self.timeline.peak_step]}"]
        lines += [f"  {kind:<11}{format_bytes(size):>12}" for kind, size in self.parts.items() if size]
        lines += ["held by"]
        lines += [
            f"  {format_bytes(life.bytes):>12}  {life.name}" + (f"  {life.path}" if life.path else "")
            for life in self.held_by[:5]
        ]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


def run_step(
    model: Callable[..., Any],
    inputs: Any,
    train: bool = True,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Loss | None = None,
) -> Any:
    """Run for real the step that `estimate` predicts, and return the model's output.

    Inference runs under `no_grad`. Training runs forward, loss, backward and, if given, `optimizer.step()`; gradients
    are not cleared, neither before nor after. The output is held until the step ends, as by a training loop that looks
    at it. The model's training flag is left as it is. The loss is `loss(output)`, else the output's own `loss`, else
    the sum of all its floating-point tensors that need a gradient.

    >>> layer = torch.nn.Linear(2, 1)
    >>> run_step(layer, torch.ones(3, 2), optimizer=torch.optim.SGD(layer.parameters(), 0.1)).shape
    torch.Size([3, 1])
    >>> layer.bias.grad
    tensor([3.])
    """
    args, kwargs = split_inputs(inputs)
    if not train:
        with torch.no_grad():
            return model(*args, **kwargs)
    output = model(*args, **kwargs)
    loss_of(output, loss).backward()
    if optimizer is not None:
        optimizer.step()
    return output


def loss_of(output: Any, loss: Loss | None = None) -> torch.Tensor:
    """The scalar that a training step goes back from.

    >>> loss_of({"loss": torch.tensor(2.0), "logits": torch.ones(3)})
    tensor(2.)
    >>> loss_of((torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True))).item()
    5.0
    """
    if loss is not None:
        return loss(output)
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    sums = [t.sum() for t in tensors_in(output) if t.is_floating_point() and t.requires_grad]
    if not sums:
        raise InputError("no output needs a gradient: pass train=False, or a loss that does")
    total = sums[0]
    for part in sums[1:]:
        total = total + part
    return total


def estimate(
    model: Callable[..., Any],
    inputs: Any,
    train: bool = True,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Loss | None = None,
) -> Estimate:
    """What `run_step` with the same arguments will take, with nothing executed and nothing of the user's changed.

    It is a step in the course of training: the optimizer's state is there from the start, gradients are there if they
    are there now. The model may be on the meta device.

    >>> with torch.device("meta"):
    ...     model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.Linear(4096, 4096))
    >>> made = estimate(model, torch.empty(8, 4096, device="meta"), optimizer=torch.optim.AdamW(model.parameters()))
    >>> made.parts["parameter"] // 2**20, made.parts["optimizer"] // 2**20
    (128, 256)
    """
    if not callable(model):
        raise InputError(f"model is a {type(model).__name__}: pass a torch.nn.Module or a function")
    return dry_run(model, inputs, train, optimizer, loss)


Around = Callable[[Sequence[torch.nn.Module], torch.optim.Optimizer | None], AbstractContextManager[Any]]
"""Switches a way to run on, for the modules of a step and its optimizer, for as long as it lasts."""


def dry_run(
    model: Callable[..., Any],
    inputs: Any,
    train: bool,
    optimizer: torch.optim.Optimizer | None,
    loss: Loss | None,
    machine: Machine | None = None,
    around: Around | None = None,
) -> Estimate:
    """The step on fake tensors, with a way to run it switched on `around` it; on a `machine`, with its seconds."""
    with fake_twins(model, inputs) as twins, as_if_real(), twins.mode:
        stepper = twin_optimizer(optimizer, twins.twin) if train and optimizer is not None else None
        untouched = replace(machine, touch=0.0) if machine is not None and train else machine
        accounting = Accounting(twins.modules, machine=untouched)
        with nullcontext() if around is None else around(twins.modules, stepper), away.counting() as moved:
            line = account(accounting, accounting.watching(), model, twins, train, stepper, loss)
    if machine is None:
        return Estimate(line, tuple(accounting.values.notes))
    seconds = accounting.seconds + moved.bytes * machine.away
    if train:
        seconds += _touched(line) * machine.touch
    return Estimate(line, tuple(accounting.values.notes), seconds)


def _touched(line: Timeline) -> int:
    """Bytes of fresh pages in a step of training."""
    made = [(life.born, life.dies, life.bytes) for life in line.lives if life.kind not in RESIDENT]
    begins, stops, amounts = np.array(made, dtype=np.int64).reshape(-1, 3).T
    return fresh_pages(begins, stops, amounts, len(line.steps) + 1)


def account(
    accounting: Accounting,
    watching: AbstractContextManager[Any],
    call: Callable[..., Any],
    twins: Twins,
    train: bool,
    stepper: torch.optim.Optimizer | None,
    loss: Loss | None,
) -> Timeline:
    """The timeline of one step of `call` on the twins; `watching` is what lets the accounting see its ops."""
    trained = register(accounting, twins, stepper)
    try:
        with watching:
            held = _dry_step(accounting, call, twins, train, stepper, loss)
    except RuntimeError as error:
        if not any(phrase in str(error) for phrase in ("tensor subclasses", "FakeTensor")):
            raise
        raise CaptureError(f"the model needs real values: {error}; measure a real step instead") from error
    for entry in accounting.entries_of([tensor.grad for tensor in trained]):
        if entry.kind == "temporary":
            entry.kind = "gradient"
    for entry in accounting.alive():
        if entry.kind in ("temporary", "activation"):
            entry.kind = "output"
    line = accounting.timeline()
    del held
    return line


def register(accounting: Accounting, twins: Twins, stepper: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Tell the accounting what is there before the step; returns everything that can have a gradient."""
    named = [item for module in twins.modules for item in module.named_parameters()]
    for name, tensor in named:
        accounting.resident(tensor, name, "parameter")
    for module in twins.modules:
        for name, tensor in module.named_buffers():
            accounting.resident(tensor, name, "buffer")
    given = list(tensors_in((twins.args, twins.kwargs)))
    for position, tensor in enumerate(given):
        accounting.resident(tensor, f"input {position}", "input")
    if stepper is not None:
        named += [(f"parameter {position}", tensor) for position, tensor in enumerate(parameters_of(stepper))]
        for name, tensor in named:
            accounting.resident(tensor, name, "parameter")
            for key, state in stepper.state.get(tensor, {}).items():
                for held in tensors_in(state):
                    accounting.resident(held, f"{name}.{key}", "optimizer")
    for name, tensor in (*named, *((f"input {position}", tensor) for position, tensor in enumerate(given))):
        if tensor.is_leaf and tensor.grad is not None:
            accounting.resident(tensor.grad, f"{name}.grad", "gradient")
    return [*(tensor for _, tensor in named), *(tensor for tensor in given if tensor.is_leaf)]


def _dry_step(
    accounting: Accounting,
    model: Callable[..., Any],
    twins: Twins,
    train: bool,
    stepper: torch.optim.Optimizer | None,
    loss: Loss | None,
) -> Any:
    """`run_step` on the twins; marks what each phase leaves behind. Returns what the caller of a step still holds."""
    if not train:
        with torch.no_grad():
            return model(*twins.args, **twins.kwargs)
    output = model(*twins.args, **twins.kwargs)
    scalar = loss_of(output, loss)
    outputs = set(map(id, accounting.entries_of(output)))
    for entry in accounting.alive():
        if entry.kind == "temporary":
            entry.kind = "output" if id(entry) in outputs else "activation"
    accounting.backward = True
    scalar.backward()
    accounting.backward = False
    if stepper is not None:
        stepper.step()
    return output, scalar
