"""`adapt` inside transformers' Trainer.

In: a budget and the options of `neaptide.adapt`. Out: a callback for `Trainer(callbacks=[...])`, or, with `adapt_trainer`,
a trainer whose steps are also repeated, tighter, where memory runs out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback

from neaptide.handle import Handle, adapt


class AdaptCallback(TrainerCallback):
    """Runs a Trainer's model under `adapt` while it trains, and lets go of it afterwards.

    >>> AdaptCallback(budget="2GiB").handle is None
    True
    """

    def __init__(self, budget: Any, **options: Any) -> None:
        self._budget, self._options = budget, options
        self.handle: Handle | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.handle is None:
            model, optimizer = _unwrapped(given["model"]), given.get("optimizer")
            optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper holds the one that steps
            known = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
            self.handle = adapt(model, self._budget, optimizer=known, **self._options)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.handle is not None:
            self.handle.release()
            self.handle = None


def adapt_trainer(trainer: Trainer, budget: Any, **options: Any) -> AdaptCallback:
    """Have a trainer run under `adapt`, each of its steps repeated, tighter, where memory runs out."""
    callback = AdaptCallback(budget, **options)
    trainer.add_callback(callback)
    plain = trainer.training_step

    def training_step(*args: Any, **kwargs: Any) -> torch.Tensor:
        handle = callback.handle
        return plain(*args, **kwargs) if handle is None else handle.step(lambda: plain(*args, **kwargs))

    trainer.training_step = training_step
    return callback


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside what DDP put around it."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
