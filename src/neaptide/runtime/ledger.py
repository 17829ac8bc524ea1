"""What is already there when a graph is called: the budget is the step's, and a step may be many graphs.

In: the model and its optimizer; each forward that saves something. Out: resident bytes (parameters, buffers, gradients,
optimizer state, each storage once), and what earlier graphs of the step have saved and not yet consumed.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from neaptide._torch import running_ddp
from neaptide.accounting import storages, tensors_in
from neaptide.allocator import allocated
from neaptide.timeline import Kind

UNSEEN, PAGE = 256 << 10, 4096
"""Bytes that no tensor has, at most: what the C library and Python take while a step runs, by measurement."""


@dataclass(frozen=True, slots=True)
class Resident:
    """Something that is there whatever graph runs."""

    name: str
    kind: Kind
    bytes: int
    path: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Saved:
    """What a forward saved, and the memories of the parameters that its backward makes gradients of."""

    bytes: int
    parameters: Collection[int | None]


class Ledger:
    """The books of one session.

    >>> layer = nn.Linear(4, 4, bias=False)
    >>> books = Ledger([layer])
    >>> books.resident()
    (Resident(name='weight', kind='parameter', bytes=64, path=''),)
    """

    def __init__(
        self, modules: Sequence[nn.Module] = (), optimizer: torch.optim.Optimizer | None = None, reserve: int = 0
    ) -> None:
        self._modules = [weakref.ref(module) for module in modules]
        self._optimizer = weakref.ref(optimizer) if optimizer is not None else None
        self._reserve = reserve
        self.gathered = 0
        """What FSDP gathers for a while, beside what the parameters take when looked at."""
        self._saved: dict[weakref.ref[torch.Tensor], Saved] = {}
        self._backward = -1
        self._flowing: set[int | None] = set()
        """The number of the latest backward, and the parameters whose gradients autograd adds in it."""
        self._parallel: weakref.ref[nn.Module] | None = None
        self._trained: weakref.ref[torch.Tensor] | None = None

    @property
    def saved(self) -> int:
        """Bytes that forwards have saved and no backward has consumed."""
        return sum(saved.bytes for saved in self._saved.values())

    @property
    def accumulates(self) -> bool:
        """Whether gradients of an earlier backward are there, to which new ones will be added."""
        first = self._trained() if self._trained is not None else None
        if first is None:
            modules = filter(None, (reference() for reference in self._modules))
            first = next((p for module in modules for p in module.parameters() if p.requires_grad), None)
            self._trained = weakref.ref(first) if first is not None else None
        return first is not None and first.grad is not None

    def save(self, header: torch.Tensor, saved: Saved) -> None:
        """Enter what a forward saved, for as long as `header`, which it saved with it, lives."""
        self._saved[weakref.ref(header, self._saved.pop)] = saved

    def is_alone(self, saved: Saved, backward: int) -> bool:
        """Whether a call is the only one that makes gradients of its parameters in a backward, as far as is known."""
        if saved not in self._saved.values():  # a checkpoint let go of it, and had it made again
            return False
        mine = set(saved.parameters)
        others = [other.parameters for other in self._saved.values() if other is not saved]
        others += [self._flowing] if backward == self._backward else []
        return all(mine.isdisjoint(other) for other in others)

    def flows(self, saved: Saved, backward: int) -> None:
        """Gradients of a call's parameters are left to autograd to add, in a backward."""
        if backward != self._backward:
            self._backward = backward
            self._flowing.clear()
        self._flowing.update(saved.parameters)

    def resident(self) -> tuple[Resident, ...]:
        """Parameters, buffers, gradients and optimizer state, each storage once, DDP's buckets, and what was set aside."""
        found: list[Resident] = []
        seen: set[int] = set()
        for name, kind, tensor in self._held():
            for storage in storages(tensor):
                if storage._cdata not in seen:
                    seen.add(storage._cdata)
                    taken = allocated(storage.nbytes(), tensor.device.type)  # a fake storage says "meta"
                    found.append(Resident(name, kind, taken, name.rpartition(".")[0]))
        found += self._buckets()
        return (*found, *self._aside(found))

    def _aside(self, held: Sequence[Resident]) -> list[Resident]:
        """What is set aside beside all that is held: by the user, and for what no tensor has."""
        unseen = min(UNSEEN, sum(each.bytes for each in held if each.kind == "parameter") // 16 & -PAGE)
        found = (
            Resident("gathered by FSDP", "parameter", self.gathered),
            Resident("reserve", "other", self._reserve),
            Resident("small allocations", "other", unseen),
        )
        return [each for each in found if each.bytes]

    def _buckets(self) -> Iterator[Resident]:
        """What DDP sends gradients from: memory of its own, or where the gradients themselves are, or will be."""
        running = running_ddp()
        if running is not None:
            self._parallel = weakref.ref(running)
        parallel = self._parallel() if self._parallel is not None else None
        for module in {parallel, *(reference() for reference in self._modules)}:
            if isinstance(module, DistributedDataParallel):
                trained = [p for p in module.parameters() if p.requires_grad]
                lent = [p for p in trained if p.grad is not None] if module.gradient_as_bucket_view else []
                size = sum(p.nbytes for p in trained) - sum(p.nbytes for p in lent)
                yield Resident("DDP's buckets", "gradient", size)

    def _held(self) -> Iterator[tuple[str, Kind, torch.Tensor]]:
        names: dict[torch.Tensor, str] = {}
        for module in filter(None, (reference() for reference in self._modules)):
            for name, parameter in module.named_parameters():
                names[parameter] = name
                yield name, "parameter", parameter
            for name, buffer in module.named_buffers():
                yield name, "buffer", buffer
        for parameter, name in names.items():
            if parameter.grad is not None:
                yield f"{name}.grad", "gradient", parameter.grad
        optimizer = self._optimizer() if self._optimizer is not None else None
        for parameter, state in optimizer.state.items() if optimizer is not None else ():
            for key, held in state.items():
                for tensor in tensors_in(held):
                    yield f"{names.get(parameter, 'parameter')}.{key}", "optimizer", tensor
