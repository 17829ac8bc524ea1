"""The handle on a model that runs under Neaptide: callable like the model, says what it does, and can let go of it.

In: a model or a function, and a budget. Out: a `Handle`, whichever engine runs the model: captured graphs, or blocks that are
checkpointed as the input asks. The model is changed in place; `release` puts back what it had before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from neaptide.budget import Budget, parse_budget
from neaptide.dryrun import Loss
from neaptide.eager.adapt import Adapter
from neaptide.eager.blocks import Switch
from neaptide.errors import InputError
from neaptide.inner.swap import Inner
from neaptide.plans import Plan
from neaptide.runtime.compiled import Compiled, CompiledCall
from neaptide.runtime.recover import whole_step
from neaptide.runtime.session import Session
from neaptide.twins import modules_of

T = TypeVar("T")


class Engine(Protocol):
    """What runs a model: `Compiled` or `Adapter`."""

    session: Any

    @property
    def budget(self) -> Budget: ...
    @property
    def stats(self) -> Any: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def plan(self) -> Plan: ...
    def begin_step(self) -> None: ...
    def tighten(self) -> bool: ...
    def replan(self, budget: Budget) -> None: ...
    def release(self) -> None: ...
    def wait(self, seconds: float | None) -> bool: ...


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

    advice: Any = None
    """Why it runs as it does, where `fit` decided that."""

    def __init__(self, target: Callable[..., Any], engine: Engine) -> None:
        self._target = target
        self._engine = engine
        self._session = engine.session

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._engine(*args, **kwargs)

    @property
    def budget(self) -> Budget:
        """The budget. Set another one at any time: plans are made anew, nothing is captured again.

        >>> layer = nn.Linear(4, 2)
        >>> handle = compile(layer, budget="2GiB")
        >>> handle.budget = "1GiB"
        >>> print(handle.budget)
        1 GiB
        """
        return self._engine.budget

    @budget.setter
    def budget(self, budget: Budget | str | int | float | None) -> None:
        self._engine.replan(parse_budget(budget, device_of(modules_of(self._target))))

    @property
    def plan(self) -> Plan:
        """How the latest calls ran, and what a step of them takes."""
        return self._engine.plan()

    @property
    def stats(self) -> Any:
        """What happened so far: `Stats` under `compile`, `AdaptStats` under `adapt`."""
        return self._engine.stats

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
        return whole_step(self._engine, closure, modules)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the kernels that `inner` asked for are there; False where that takes longer than `seconds`.

        Nobody has to: until then the model runs without them.

        >>> compile(nn.Linear(4, 2)).wait()
        True
        """
        return self._engine.wait(seconds)

    def release(self) -> None:
        """Put back what the model had before, and forget all that was found out. May be called twice."""
        self._engine.release()

    def __repr__(self) -> str:
        return f"Handle({type(self._target).__name__}, budget {self._engine.budget}, {self._engine!r})"


def compile(
    model: Callable[..., Any],
    budget: Budget | str | int | float | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    reserve: str | int = 0,
    exact: bool = False,
    rewrite: bool = True,
    offload: bool = True,
    inner: Inner = "auto",
) -> Handle:
    """Let a model (in place) or a function run as planned programs inside a budget of bytes.

    `optimizer` is counted with its state; `reserve` is set aside for what only the caller knows. `exact=True` forbids
    whatever may differ from eager in the last bit; `rewrite=False` forbids putting one op in for several of the same meaning;
    `offload=False` forbids writing values to an unnamed file between forward and backward. `inner="inductor"` has inductor make
    fused kernels of the planned pieces, in the background; "auto" does so on an accelerator, unless `exact`, and None never.

    >>> layer = nn.Linear(4, 2)
    >>> handle = compile(layer, budget="1GiB")
    >>> handle
    Handle(Linear, budget 1 GiB, 0 captures)
    >>> handle.release()
    """
    if not callable(model):
        raise InputError(f"compile takes a torch.nn.Module or a function, not {type(model).__name__}")
    reserved = _checked(model, optimizer, reserve)
    modules = modules_of(model)
    limit = parse_budget(budget, device_of(modules))
    session = Session(limit, modules, optimizer, reserved, exact, rewrite, offload=offload, inner=inner)
    return Handle(model, Compiled(model, session))


def adapt(
    model: nn.Module,
    budget: Budget | str | int | float | None,
    optimizer: torch.optim.Optimizer | None = None,
    blocks: Sequence[str | type[nn.Module]] | None = None,
    loss: Loss | None = None,
    reserve: str | int = 0,
    split: bool | str = False,
    offload: bool = True,
    same_sizes: bool = False,
    selective: bool = False,
) -> Handle:
    """Let a model train eagerly (in place) inside a budget of bytes, each batch with as much checkpointing as its size needs.

    `blocks` names what is checkpointed (names, patterns or types), else the members of the model's outermost lists. `loss`
    is what the caller computes from the model's output; without it, its own `loss` or a sum is taken. `split=True` runs a
    batch that does not fit in smaller ones, where the model returns its loss (`"sum"` if that is one over samples).
    `offload=False` forbids the disk. `same_sizes=True` promises that all ranks have batches of one size.

    >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
    >>> handle = adapt(model, budget="1GiB")
    >>> model(torch.ones(2, 8)).sum().backward()
    >>> handle
    Handle(Sequential, budget 1 GiB, 3 blocks)
    >>> print(handle.plan)
    peak ... KiB, budget 1 GiB, 3 blocks: 3 keep
    >>> handle.release()
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"adapt takes a torch.nn.Module, not {type(model).__name__}")
    reserved = _checked(model, optimizer, reserve)
    limit = parse_budget(budget, device_of([model]))
    return Handle(model, Adapter(model, limit, optimizer, blocks, reserved, offload, same_sizes, loss, split, selective))


def _checked(model: Any, optimizer: Any, reserve: str | int) -> int:
    """Refuse what cannot be used; bytes to set aside."""
    if isinstance(model, nn.Module) and any(
        isinstance(call, (CompiledCall, Switch)) for call in (model._compiled_call_impl, vars(model).get("forward"))
    ):
        raise InputError("this model runs under neaptide already: call release() on its handle first")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer takes a torch.optim.Optimizer, not {type(optimizer).__name__}")
    return (parse_budget(reserve).limit or 0) if reserve else 0


def device_of(modules: Sequence[nn.Module]) -> torch.device:
    """Where modules live: the device of their first parameter, else the CPU."""
    first = next((p for module in modules for p in module.parameters()), None)
    return first.device if first is not None else torch.device("cpu")
