"""What is already there when a graph is called: the budget is the step's, and a step may be many graphs.

In: the model and its optimizer; each forward that saves something. Out: resident bytes (parameters, buffers, gradients,
optimizer state, each storage once), and what earlier graphs of the step have saved and not yet consumed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from neaptide.accounting import storages, tensors_in
from neaptide.allocator import allocated
from neaptide.timeline import KINDS, Kind


class Ledger:
    """The books of one session.

    >>> books = Ledger(nn.Linear(4, 4, bias=False))
    >>> books.resident()["parameter"]
    64
    """

    def __init__(
        self, model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, reserve: int = 0
    ) -> None:
        self._model = weakref.ref(model) if model is not None else lambda: None
        self._optimizer = weakref.ref(optimizer) if optimizer is not None else lambda: None
        self.reserve = reserve
        self._saved: dict[int, int] = {}
        self._calls = 0

    @property
    def saved(self) -> int:
        """Bytes that forwards have saved and no backward has consumed."""
        return sum(self._saved.values())

    def save(self, header: torch.Tensor, nbytes: int) -> None:
        """Enter what a forward saved, for as long as `header`, which it saved with it, lives."""
        self._calls += 1
        self._saved[self._calls] = nbytes
        weakref.finalize(header, self._saved.pop, self._calls, None).atexit = False

    def resident(self) -> dict[Kind, int]:
        """Bytes by kind that are there whatever graph runs."""
        found: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        seen: set[int] = set()
        for kind, tensor in self._held():
            for storage in storages(tensor):
                if storage._cdata not in seen:
                    seen.add(storage._cdata)
                    found[kind] += allocated(storage.nbytes(), storage.device.type)
        found["other"] += self.reserve
        return found

    def _held(self) -> Iterator[tuple[Kind, torch.Tensor]]:
        model, optimizer = self._model(), self._optimizer()
        if model is not None:
            yield from (("parameter", p) for p in model.parameters())
            yield from (("buffer", b) for b in model.buffers())
            yield from (("gradient", p.grad) for p in model.parameters() if p.grad is not None)
        if optimizer is not None:
            yield from (("optimizer", t) for t in _tensors(dict(optimizer.state)))


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    yield from tensors_in(tree)
