"""The methods that save memory in eager training, each switched on by one call, for real or on fake twins.

In: the modules of a step, and its optimizer. Out: contexts; while one lasts, steps run that way, and afterwards nothing is left
of it. `advise` predicts each by a dry run inside its context, and `Advice.apply` enters the same context for good.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import nn

from neaptide.dryrun import Around
from neaptide.eager.blocks import Call, Switch, Unit, find_blocks
from neaptide.eager.micro import batch_of, check_splits, run_in_parts
from neaptide.eager.strengths import FULL, SELECTIVE, Way, is_inside_another, run, sent_away
from neaptide.errors import InputError
from neaptide.packing import packing

Modules = Sequence[nn.Module]
Optimizer = torch.optim.Optimizer


@dataclass(frozen=True, slots=True)
class Method:
    """One way to save memory, or several together."""

    name: str
    around: Around
    lossy: bool = False
    """Whether results differ by more than the order of sums."""
    note: str = ""
    code: str = ""
    """How to have it without us."""

    def __add__(self, other: Method) -> Method:
        """Both at once.

        >>> (METHODS["autocast bf16"] + METHODS["checkpoint blocks"]).name
        'autocast bf16 + checkpoint blocks'
        """

        @contextmanager
        def both(modules: Modules, optimizer: Optimizer | None) -> Iterator[None]:
            with self.around(modules, optimizer), other.around(modules, optimizer):
                yield

        notes = "; ".join(filter(None, (self.note, other.note)))
        code = "\n".join(filter(None, (self.code, other.code)))
        return Method(f"{self.name} + {other.name}", both, self.lossy or other.lossy, notes, code)


def called(wrap: Callable[[Unit, tuple[Any, ...], dict[str, Any]], Any]) -> Around:
    """Calls of the modules themselves go through `wrap`."""

    @contextmanager
    def around(modules: Modules, optimizer: Optimizer | None) -> Iterator[None]:
        with switched([Unit("", module) for module in modules], wrap):
            yield

    return around


@contextmanager
def switched(units: Sequence[Unit], wrap: Call) -> Iterator[None]:
    """Calls of some units go through `wrap`."""
    with ExitStack() as stack:
        for unit in units:
            stack.callback(Switch(unit, wrap).release)
        yield


def blocks(way: Way) -> Around:
    """The blocks of the modules run in a way."""

    def wrap(unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled() or is_inside_another():
            return unit.plain(*args, **kwargs)
        return run(unit, way, args, kwargs)

    @contextmanager
    def around(modules: Modules, optimizer: Optimizer | None) -> Iterator[None]:
        found = [unit for module in modules for unit in find_blocks(module)]
        if not found:
            raise InputError("the model has no blocks that could be checkpointed")
        with switched(found, wrap):
            yield

    return around


def _in_bf16(unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first = next(unit.module.parameters(), None)
    with torch.autocast(first.device.type if first is not None else "cpu", torch.bfloat16):
        return unit.plain(*args, **kwargs)


def _away(unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not torch.is_grad_enabled():
        return unit.plain(*args, **kwargs)
    with sent_away(unit.module):
        return unit.plain(*args, **kwargs)


def _packed(bits: int) -> Around:
    seeds = count()  # each call rounds by other chances

    def wrap(unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled():
            return unit.plain(*args, **kwargs)
        with packing(unit.module, bits, next(seeds)):
            return unit.plain(*args, **kwargs)

    return called(wrap)


def accumulate(parts: int, size: int) -> Method:
    """Calls in so many smaller batches, whose gradients are added up; for models that return their loss.

    >>> accumulate(4, 2).name
    'accumulate 4 x 2'
    """

    def wrap(unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batch = batch_of((args, kwargs))
        if not torch.is_grad_enabled() or batch < parts:
            return unit.plain(*args, **kwargs)
        return run_in_parts(unit.module, unit.plain, -(-batch // parts), (args, kwargs), False)

    @contextmanager
    def around(modules: Modules, optimizer: Optimizer | None) -> Iterator[None]:
        for module in modules:
            check_splits(module)
        with called(wrap)(modules, optimizer):
            yield

    return Method(
        f"accumulate {parts} x {size}",
        around,
        note="gradients of smaller batches are added up; other results than the loss carry no gradient",
        code=f"for part in batch.chunk({parts}): (model(part).loss / {parts}).backward()",
    )


def method_named(name: str) -> Method | None:
    """A method, or several with " + " between them, by name; None where one is not known.

    >>> method_named("accumulate 2 x 8 + autocast bf16").lossy, method_named("magic")
    (True, None)
    """
    if name == PLAIN.name:
        return PLAIN
    found: Method | None = None
    for each in name.split(" + "):
        numbers = re.fullmatch(r"accumulate (\d+) x (\d+)", each)
        one = accumulate(int(numbers[1]), int(numbers[2])) if numbers else METHODS.get(each)
        if one is None:
            return None
        found = one if found is None else found + one
    return found


@contextmanager
def step_in_backward(modules: Modules, optimizer: Optimizer | None) -> Iterator[None]:
    """The optimizer steps each parameter as soon as its gradient is there, and lets go of the gradient.

    Its state stays its own. What looks at all gradients at once, such as clipping by their norm, finds none.
    """
    if optimizer is None:
        raise InputError("an optimizer is needed to step with")

    def step(parameter: torch.Tensor, group: dict[str, Any]) -> None:
        before = optimizer.param_groups
        optimizer.param_groups = [{**group, "params": [parameter]}]
        try:
            optimizer.step()
        finally:
            optimizer.param_groups = before
        parameter.grad = None

    with ExitStack() as stack:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    hook = parameter.register_post_accumulate_grad_hook(lambda p, group=group: step(p, group))
                    stack.callback(hook.remove)
        yield


@contextmanager
def with_gradients(modules: Modules, optimizer: Optimizer | None) -> Iterator[None]:
    """Gradients of an earlier batch are there, to be added to."""
    trained = [p for module in modules for p in module.parameters() if p.requires_grad]
    before = [p.grad for p in trained]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
    try:
        yield
    finally:
        for parameter, gradient in zip(trained, before, strict=True):
            parameter.grad = gradient


class nothing:  # noqa: N801  (used as a function is)
    """A context that does nothing."""

    def __init__(self, modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer | None) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


PLAIN = Method("plain", nothing)
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "checkpoint blocks",
            blocks(FULL),
            note="every block's forward runs again in the backward",
            code="for block in ...: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        ),
        Method(
            "checkpoint selectively",
            blocks(SELECTIVE),
            note="blocks keep their products and attention, the rest runs again",
            code="torch.utils.checkpoint.create_selective_checkpoint_contexts(policy)",
        ),
        Method(
            "offload activations",
            called(_away),
            note="what is saved waits on the disk (CPU) or in the host's memory (accelerator)",
            code="with torch.autograd.graph.save_on_cpu(pin_memory=True): ...  # on an accelerator",
        ),
        Method(
            "int8 activations",
            _packed(8),
            lossy=True,
            note="what is saved is rounded to 8 bits: neaptide.packing.gradient_error measures what that does to a gradient",
            code="with neaptide.packing.packing(model, bits=8): loss = model(...)",
        ),
        Method(
            "int4 activations",
            _packed(4),
            lossy=True,
            note="what is saved is rounded to 4 bits: neaptide.packing.gradient_error measures what that does to a gradient",
            code="with neaptide.packing.packing(model, bits=4): loss = model(...)",
        ),
        Method(
            "autocast bf16",
            called(_in_bf16),
            lossy=True,
            note="products in bfloat16",
            code="with torch.autocast(device_type, torch.bfloat16): loss = model(...)",
        ),
        Method(
            "step in backward",
            step_in_backward,
            note="no gradient outlives its parameter's step: nothing can clip them together",
            code="parameter.register_post_accumulate_grad_hook(step_and_clear)",
        ),
    )
}
