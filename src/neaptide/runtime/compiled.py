"""A model or a function as captured graphs: its compiled call, in place of its own.

In: a target and a `Session`. Out: what a `Handle` drives. The model is the same object, class, module tree and `state_dict`
keys; `release` puts back the call it had before.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from neaptide._torch import TorchDynamoException, dynamo_skips
from neaptide.budget import Budget
from neaptide.capture import capture, capturing
from neaptide.errors import InputError, NeaptideError
from neaptide.plans import Plan
from neaptide.runtime.recover import ran_out
from neaptide.runtime.session import Session, Stats

RECOMPILES = 64


class Compiled:
    """The engine behind `compile`."""

    def __init__(self, target: Callable[..., Any], session: Session) -> None:
        self.session = session
        self._target = target
        self._call = CompiledCall(target, session)
        self._before: Any = None
        if isinstance(target, nn.Module):
            self._before = target._compiled_call_impl
            target._compiled_call_impl = self._call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    @property
    def budget(self) -> Budget:
        return self.session.budget

    @property
    def stats(self) -> Stats:
        return self.session.stats

    def plan(self) -> Plan:
        return self.session.plan()

    def begin_step(self) -> None:
        self.session.begin_step()

    def tighten(self) -> bool:
        return self.session.tighten()

    def replan(self, budget: Budget) -> None:
        """Go on with another budget."""
        if not self.session.bounded and (budget.smallest or budget.limit is not None):
            raise InputError(
                "compiled without a budget, so nothing was prepared for one: call neaptide.compile(..., budget=...)"
            )
        self.session.replan(budget)

    def release(self) -> None:
        """Put back the call that the model had before, and forget all that was captured."""
        if isinstance(self._target, nn.Module) and self._target._compiled_call_impl is self._call:
            if self._before is None:
                self._target.__dict__.pop("_compiled_call_impl", None)
            else:
                self._target._compiled_call_impl = self._before
        self._call.release()
        if self.session.lowering is not None:
            self.session.lowering.stop()

    def wait(self, seconds: float | None) -> bool:
        """Wait until what is compiled in the background is there."""
        return self.session.lowering is None or self.session.lowering.wait(seconds)

    def __repr__(self) -> str:
        return f"{self.session.stats.captures} captures"


class CompiledCall:
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
