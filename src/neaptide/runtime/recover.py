"""A step that ran out of memory is run again, tighter, as if nothing had happened.

In: a session, and a forward or a whole step. Out: what it returns. PyTorch says when an allocation fails on an accelerator, or
on the CPU where the process has a limit. A forward changes nothing until it is done, so that the runtime repeats it by itself.
A backward may have added to gradients, and a step may have changed buffers: `whole_step` puts back what was there, and repeats
all of it. Each time the plan is tightened by what was seen; where nothing smaller exists, a `BudgetError` says so.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import nn

from neaptide import away, generator
from neaptide._torch import current_backward
from neaptide.errors import BudgetError

if TYPE_CHECKING:
    from neaptide.budget import Budget
    from neaptide.runtime.session import Session

T = TypeVar("T")


class Repeatable(Protocol):
    """What can run a step again, tighter."""

    @property
    def budget(self) -> Budget: ...
    def begin_step(self) -> None: ...
    def tighten(self) -> bool: ...


FAILED_TO_ALLOCATE = ("DefaultCPUAllocator", "std::bad_alloc", "not enough memory")
"""What the message says where PyTorch raises a plain RuntimeError."""


def ran_out(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is memory that could not be had."""
    if error is None:
        return False
    if isinstance(error, BudgetError):
        return ran_out(error.__cause__)
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in FAILED_TO_ALLOCATE)


def forward(session: Session, run: Callable[[list[Any]], T], args: list[Any], random: Sequence[str]) -> T:
    """Run a forward; where memory runs out, again with a tighter plan. `random`: devices that it draws numbers on.

    Inside a backward, where a checkpoint repeats a forward, it has to save what it saved then.
    """
    if session.budget.limit is None or current_backward() != -1:
        return run(args)
    given = list(args)
    states = {device: generator.state(device) for device in random}
    while True:
        try:
            return run(args)
        except Exception as error:
            _tighten(session, error)
        for device, state in states.items():
            generator.restore(state, device)
        args[:] = given


def whole_step(session: Repeatable, closure: Callable[[], T], modules: Sequence[nn.Module]) -> T:
    """Run a step; where memory runs out, put back what was there before, and run it again with a tighter plan."""
    session.begin_step()
    if session.budget.limit is None:  # there is nothing to tighten
        return closure()
    before = _Before(modules)
    while True:
        try:
            return closure()
        except Exception as error:
            if not before.parameters_are_untouched():
                raise
            _tighten(session, error)
        before.put_back()


def _tighten(session: Repeatable, error: Exception) -> None:
    """Plan for less, if memory ran out and there is less to plan for; otherwise the error goes on."""
    if not ran_out(error):
        raise error
    try:
        tightened = session.tighten()
    except BudgetError as nothing_smaller:
        raise nothing_smaller from error
    if not tightened:
        raise error


class _Before:
    """What a step may change before its optimizer does: random numbers, buffers, gradients."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        parameters = [p for module in modules for p in module.parameters()]
        self._parameters = [(p, p._version) for p in parameters]
        devices = dict.fromkeys(["cpu", *(p.device.type for p in parameters)])
        self._states = {device: generator.state(device) for device in devices if device != "meta"}
        self._buffers = [(b, b.clone()) for module in modules for b in module.buffers()]
        self._store = away.Store()
        self._gradients = [(p, self._copy(str(number), p.grad)) for number, p in enumerate(parameters)]

    def parameters_are_untouched(self) -> bool:
        """Whether the optimizer has not begun: a half-done update cannot be put back."""
        return all(p._version == version for p, version in self._parameters)

    @torch.no_grad()
    def put_back(self) -> None:
        for device, state in self._states.items():
            generator.restore(state, device)
        for buffer, held in self._buffers:
            buffer.copy_(held)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient()

    def _copy(self, name: str, gradient: torch.Tensor | None) -> Callable[[], torch.Tensor | None]:
        """Has a gradient as it was. They are as large as the parameters: copies are sent away, where that can be, and what the
        step lets go of is gone meanwhile."""
        if gradient is None:
            return lambda: None
        itself = weakref.ref(gradient)
        dense = gradient.layout is torch.strided and gradient.is_contiguous()
        if not dense or not away.takes(gradient.device) or gradient.nbytes < away.SMALL:
            held = gradient.clone()
            fetch = held.clone
        else:
            self._store.send(name, gradient)
            fetch = partial(self._store.fetch, name, None)
        return lambda: fetch() if (there := itself()) is None else there.copy_(fetch())
