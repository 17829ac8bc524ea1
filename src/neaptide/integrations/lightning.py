"""`adapt` inside Lightning.

In: a budget, which module inside the LightningModule is called (`module="model"`), and the options of `neaptide.adapt`. Out: a
callback for `Trainer(callbacks=[...])`. A step that runs out of memory before its optimizer begins is repeated, tighter.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback
from torch import nn

from neaptide.errors import InputError
from neaptide.handle import Handle, adapt


class AdaptCallback(Callback):
    """Runs a LightningModule's model under `adapt` while it is fitted, and lets go of it afterwards.

    >>> AdaptCallback(budget="2GiB").handle is None
    True
    """

    def __init__(self, budget: Any, module: str | None = None, **options: Any) -> None:
        self._budget, self._module, self._options = budget, module, options
        self.handle: Handle | None = None
        self._owner: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        optimizers = trainer.optimizers
        optimizer = optimizers[0] if len(optimizers) == 1 else None
        handle = self.handle = adapt(self._found(pl_module), self._budget, optimizer=optimizer, **self._options)
        plain = pl_module.optimizer_step

        def optimizer_step(epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            closure = optimizer_closure and (lambda: handle.step(optimizer_closure))
            plain(epoch, batch_idx, optimizer, closure)

        pl_module.optimizer_step = optimizer_step
        self._owner = pl_module

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._let_go()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self.handle is not None:
            self.handle.release()
            self.handle = None
            vars(self._owner).pop("optimizer_step", None)

    def _found(self, pl_module: nn.Module) -> nn.Module:
        if self._module is not None:
            return pl_module.get_submodule(self._module)
        trained = [child for _, child in pl_module.named_children() if any(p.requires_grad for p in child.parameters())]
        if len(trained) != 1:
            raise InputError("say which module inside the LightningModule is called: AdaptCallback(..., module='model')")
        return trained[0]
