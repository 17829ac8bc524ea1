"""A real step under observation, where a dry run cannot tell: from the call of the model to the next, or to the optimizer.

In: an adapter. Out: figures, for its fitted predictor. Every block of the step is checkpointed. Ops are seen by a mode that
stays in force while the caller computes the loss and runs the backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from neaptide.accounting import tensors_in
from neaptide.eager.course import Situation
from neaptide.eager.figures import figures_of
from neaptide.eager.observe import Observer
from neaptide.eager.predict import Fitted
from neaptide.eager.record import FORWARD

if TYPE_CHECKING:
    from neaptide.eager.adapt import Adapter


class RealStep:
    """A real step under observation: from the call of the model to the next one, or to where the optimizer begins."""

    def __init__(self, adapter: Adapter, situation: Situation, inputs: Any) -> None:
        self._adapter, self._situation = adapter, situation
        self._observer = Observer(real=True)
        self._parameters = [p for p in adapter.model.parameters() if p.requires_grad]
        self._before = [p.grad is not None for p in self._parameters]
        accounting = self._observer.accounting
        held = (*adapter.model.parameters(), *adapter.model.buffers(), *tensors_in(inputs))
        for tensor in held:
            accounting.resident(tensor, "", "parameter")
        for parameter in self._parameters:
            if parameter.grad is not None:
                accounting.resident(parameter.grad, "", "gradient")
        optimizer = adapter.optimizer() if adapter.optimizer is not None else None
        for state in optimizer.state.values() if optimizer is not None else ():
            for tensor in tensors_in(state):
                accounting.resident(tensor, "", "optimizer")
        self._hook = register_optimizer_step_pre_hook(lambda *_: adapter.end_observation())

    def begin(self) -> None:
        self._adapter.stats.probes += 1
        self._adapter.observer = self._observer
        self._observer.accounting.__enter__()

    def drop(self) -> None:
        self._adapter.observer = None
        self._hook.remove()
        self._observer.accounting.__exit__(None, None, None)

    def end(self) -> None:
        self.drop()
        adapter, family = self._adapter, self._adapter.planner.family(self._situation)
        marks = self._observer.trail.marks
        turn = next((n for n, mark in enumerate(marks) if mark[1] != FORWARD), None)
        if turn is None or not isinstance(family.predictor, Fitted):
            return
        made = [p.grad for p, had in zip(self._parameters, self._before, strict=True) if not had]
        record = self._observer.record(turn, made)
        family.predictor.learn(self._situation.shapes, figures_of(record))
        adapter.stats.predictor, adapter.stats.why = family.predictor.kind, family.predictor.why
