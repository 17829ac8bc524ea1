"""The handle on a model that runs under Neaptide: callable like the model, says what it does, and can let go of it.

In: a model or a function, and a budget. Out: a `Handle`. The model is compiled in place: the same object, class, module
tree and `state_dict` keys; `release` puts back the call it had before.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from neaptide._torch import TorchDynamoException, dynamo_skips
from neaptide.budget import Budget, parse_budget
from neaptide.capture import capture, capturing
from neaptide.errors import InputError, NeaptideError
from neaptide.plans import Plan
from neaptide.runtime.recover import ran_out, whole_step
from neaptide.runtime.session import Session, Stats
from neaptide.twins import modules_of

T = TypeVar("T")
RECOMPILES = 64


class Handle:
    """A model under Neaptide.

    >>> layer = nn.Linear(4, 2)
    >>> handle = compile(layer)
    >>> with torch.no_grad():
    ...     layer(torch.ones(3, 4)).shape, handle(torch.ones(3, 4)).shape
    (torch.Size([3, 2]), torch.Size([3, 2]))
    >>> handle.stats.captures
    1
    >>> handle.release()
    """

    def __init__(self, target: Callable[..., Any], session: Session) -> None:
        self._session = session
        self._target = target
        self._compiled = _Compiled(target, session)
        self._before: Any = None
        if isinstance(target, nn.Module):
            self._before = target._compiled_call_impl
            target._compiled_call_impl = self._compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    @property
    def budget(self) -> Budget:
        """The budget. Set another one at any time: plans are made anew, nothing is captured again.

        >>> layer = nn.Linear(4, 2)
        >>> handle = compile(layer, budget="2GiB")
        >>> handle.budget = "1GiB"
        >>> print(handle.budget)
        1 GiB
        """
        return self._session.budget

    @budget.setter
    def budget(self, budget: Budget | str | int | float | None) -> None:
        parsed = parse_budget(budget, device_of(modules_of(self._target)))
        if not self._session.bounded and (parsed.smallest or parsed.limit is not None):
            raise InputError(
                "compiled without a budget, so nothing was prepared for one: call neaptide.compile(..., budget=...)"
            )
        self._session.replan(parsed)

    @property
    def plan(self) -> Plan:
        """How the latest calls ran, and what a step of them takes."""
        return self._session.plan()

    @property
    def stats(self) -> Stats:
        """What happened so far."""
        return self._session.stats

    def step(self, closure: Callable[[], T]) -> T:
        """Run one whole step (forward, backward, optimizer) and return what `closure` returns.

        Where memory runs out before the optimizer begins, all is put back as it was and the step is run again, planned tighter.

        >>> layer = nn.Linear(2, 1, bias=False)
        >>> handle = compile(layer)
        >>> handle.step(lambda: layer(torch.ones(1, 2)).sum().backward())
        >>> layer.weight.grad
        tensor([[1., 1.]])
        """
        modules = [self._target] if isinstance(self._target, nn.Module) else modules_of(self._target)
        return whole_step(self._session, closure, modules)

    def release(self) -> None:
        """Put back the call that the model had before, and forget all that was captured. May be called twice."""
        if isinstance(self._target, nn.Module) and self._target._compiled_call_impl is self._compiled:
            if self._before is None:
                self._target.__dict__.pop("_compiled_call_impl", None)
            else:
                self._target._compiled_call_impl = self._before
        self._compiled.release()

    def __repr__(self) -> str:
        return f"Handle({type(self._target).__name__}, budget {self._session.budget}, {self._session.stats.captures} captures)"


class _Compiled:
    """The compiled call of a model or function, under Dynamo's settings for a capture."""

    def __init__(self, target: Callable[..., Any], session: Session) -> None:
        self._plain = _traceable(target) if isinstance(target, nn.Module) else target
        self._session = session
        self._told = False
        self._call: Callable[..., Any] | None = self._compile(dynamic=True)
        if not isinstance(target, nn.Module):
            functools.update_wrapper(self, target)

    def _compile(self, dynamic: bool) -> Callable[..., Any]:
        def backend(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            return capture(gm, inputs, self._session)

        own: Any = {"recompile_limit": RECOMPILES, "isolate_recompiles": True}
        return torch.compile(self._plain, backend=backend, dynamic=dynamic, **own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._call is None:
            return self._plain(*args, **kwargs)
        with capturing():
            try:
                result = self._call(*args, **kwargs)
                self._say_if_nothing_is_captured()
                return result
            except TorchDynamoException as error:
                cause = getattr(error, "inner_exception", error.__cause__)  # of a backend that failed; of a trace that did
                if isinstance(cause, NeaptideError):
                    raise cause from None
                if self._session.fixed_sizes or ran_out(error):
                    raise
                self._give_up_free_sizes(error)
                return self._call(*args, **kwargs)

    def _say_if_nothing_is_captured(self) -> None:
        """A budget binds what is captured: where nothing is, say so once."""
        if self._session.bounded and not self._session.units and not self._told:
            self._told = True
            warnings.warn(
                "nothing of this call could be captured as a graph, so it runs as plain PyTorch and its budget does not bind;"
                " TORCH_LOGS=graph_breaks shows why",
                stacklevel=4,
            )

    def _give_up_free_sizes(self, error: Exception) -> None:
        """Capture once per size from now on, where PyTorch cannot capture once for all sizes."""
        self._session.fixed_sizes = True
        self._call = self._compile(dynamic=False)
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        warnings.warn(
            f"this model cannot be captured once for all sizes, so each size is captured apart: {first}", stacklevel=4
        )

    def release(self) -> None:
        self._call = None

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of a compiled model is a plain model."""
        return


def _traceable(module: nn.Module) -> Callable[..., Any]:
    """The module's own call, as something that Dynamo traces: frames of torch's own modules it only enters from another."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    return call if dynamo_skips(module.forward) else module._call_impl


def compile(
    model: Callable[..., Any],
    budget: Budget | str | int | float | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    reserve: str | int = 0,
    exact: bool = False,
    rewrite: bool = True,
    offload: bool = True,
) -> Handle:
    """Let a model (in place) or a function run as planned programs inside a budget of bytes.

    `optimizer` is counted with its state; `reserve` is set aside for what only the caller knows. `exact=True` forbids
    whatever may differ from eager in the last bit; `rewrite=False` forbids putting one op in for several of the same meaning;
    `offload=False` forbids writing values to an unnamed file between forward and backward.

    >>> layer = nn.Linear(4, 2)
    >>> handle = compile(layer, budget="1GiB")
    >>> handle
    Handle(Linear, budget 1 GiB, 0 captures)
    >>> handle.release()
    """
    if not callable(model):
        raise InputError(f"compile takes a torch.nn.Module or a function, not {type(model).__name__}")
    if isinstance(model, nn.Module) and isinstance(model._compiled_call_impl, _Compiled):
        raise InputError("this model runs under neaptide already: call release() on its handle first")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer takes a torch.optim.Optimizer, not {type(optimizer).__name__}")
    reserved = (parse_budget(reserve).limit or 0) if reserve else 0
    modules = modules_of(model)
    limit = parse_budget(budget, device_of(modules))
    return Handle(model, Session(limit, modules, optimizer, reserved, exact, rewrite, offload=offload))


def device_of(modules: Sequence[nn.Module]) -> torch.device:
    """Where modules live: the device of their first parameter, else the CPU."""
    first = next((p for module in modules for p in module.parameters()), None)
    return first.device if first is not None else torch.device("cpu")
