"""Storage accounting: every op of a run on fake tensors, and every storage it brings to life, from birth to death.

In: ops, as PyTorch dispatches them. Out: a `Timeline`. Memory belongs to storages: a view costs nothing, and a
storage lives until its last alias dies, which a weak reference to it tells.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import nn

from neaptide._torch import FakeTensor, TorchDispatchMode, is_traceable_wrapper_subclass
from neaptide.allocator import allocated
from neaptide.hardware import Machine
from neaptide.pricing import is_causal, price, whole
from neaptide.timeline import Kind, Life, Timeline
from neaptide.values import Values
from neaptide.whereabouts import Whereabouts
from neaptide.workspaces import Spec, is_listed, retained, workspace

aten = torch.ops.aten
PLAIN = (FakeTensor, torch.Tensor, nn.Parameter)


@dataclass(slots=True)
class Entry:
    """A storage under observation; `dies` is -1 while it lives."""

    name: str
    kind: Kind
    bytes: int
    born: int
    path: str
    source: str
    dies: int = -1
    asked: int = 0
    """Bytes before the allocator's rounding."""


class Accounting(TorchDispatchMode):
    """Counts storages while it is the innermost mode above a `FakeTensorMode`, or, if it is told that ops are `real`, above
    none.

    `where` may be someone else who knows where a run is. With a `machine`, each op's seconds on it are counted too.
    """

    def __init__(
        self, modules: Sequence[nn.Module] = (), where: Any = None, real: bool = False, machine: Machine | None = None
    ) -> None:
        super().__init__()
        self.machine = machine
        self.seconds = 0.0
        self.where = Whereabouts(modules) if where is None else where
        self.values = Values(self.where.line)
        self.steps = ["start"]
        self.entries: list[Entry] = []
        self.backward = False
        self.reads: Callable[[Entry], None] | None = None
        """Told of each storage that an op of a backward reads."""
        self._alive: dict[int, tuple[Entry, weakref.ref[Any]]] = {}
        self._threads = torch.get_num_threads()
        self._sums: list[tuple[Entry, Entry]] = []
        self._run = _run_it if real else self.values.run

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See every op of an eager run, and which module it belongs to."""
        with self, self.where.following():
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in PLAIN for kind in types):
            return NotImplemented  # a wrapper subclass comes back as ops on the tensors inside it
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return args[0].fake_device if isinstance(args[0], FakeTensor) else args[0].device
        if func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        if func.is_view:
            self.seconds += 0.0 if self.machine is None else self.machine.view
            return self._run(func, args, kwargs)
        path, source = self.where.place()
        name = func._schema.name.removeprefix("aten::")
        self.steps.append(f"{name} ({path})" if path else name)
        step = len(self.steps) - 1
        for tensor in tensors_in(args):
            entry = self._see(tensor, "other", "other", 0, "", "")
            if self.backward and self.reads is not None and entry is not None:
                self.reads(entry)
        out = self._run(func, args, kwargs)
        hidden = self.values.take_hidden()
        if is_listed(func):
            hidden += workspace(func, *as_specs(args, kwargs), self._threads)
        if hidden:
            self.entries.append(Entry(name, "workspace", allocated(hidden), step, path, source, step + 1, hidden))
        results = list(tensors_in(out))
        larger = retained(func, args, results)
        if self.machine is not None:
            self.seconds += self._price(self.machine, func, args, kwargs, results)
        for position, tensor in enumerate(results):
            entry = self._see(tensor, name, "temporary", step, path, source, larger.get(position))
            if entry is None or entry.born != step:
                continue
            if self.backward and func is aten.add.Tensor:
                self._note_sum(args[0], entry)
        return out

    def _price(self, machine: Machine, func: Any, args: Any, kwargs: Any, results: Sequence[torch.Tensor]) -> float:
        """What an op takes; a result that is in memory that was there is not touched for the first time."""
        given, made = ([_spec(tensor) for tensor in found] for found in (tensors_in((args, kwargs)), results))
        fresh = any(tensor.untyped_storage()._cdata not in self._alive for tensor in results if tensor.layout is torch.strided)
        return whole(price(func, given, made, machine, causal=is_causal(func, args, kwargs)), machine, fresh)

    def _note_sum(self, first: Any, total: Entry) -> None:
        """Autograd adds two gradients in place where it holds the last reference, except on tensor subclasses.

        A view is never the last: its base holds the storage too.
        """
        if first._is_view():
            return
        found = self._alive.get(first.untyped_storage()._cdata)
        if found is not None and found[0].bytes == total.bytes:
            self._sums.append((found[0], total))

    def resident(self, tensor: torch.Tensor, name: str, kind: Kind) -> None:
        """Something that is there before the run begins."""
        self._see(tensor, name, kind, 0, "", "")

    def _see(
        self, tensor: torch.Tensor, name: str, kind: Kind, step: int, path: str, source: str, nbytes: int | None = None
    ) -> Entry | None:
        """Take up the storages of a tensor that are new (`nbytes` overrules what they say); returns the last of all."""
        entry = None
        for storage in storages(tensor):
            key = storage._cdata
            found = self._alive.get(key)
            if found is not None:
                entry = found[0]
                continue
            size = storage.nbytes() if nbytes is None else nbytes
            if not size:
                continue
            entry = Entry(name, kind, allocated(size, tensor.device.type), step, path, source, asked=size)
            self.entries.append(entry)

            def died(_: Any, entry: Entry = entry, key: int = key) -> None:
                entry.dies = len(self.steps)
                self._alive.pop(key, None)

            self._alive[key] = (entry, weakref.ref(storage, died))
        return entry

    def entries_of(self, tree: Any) -> Iterator[Entry]:
        """The storages behind every tensor in a nested result."""
        for tensor in tensors_in(tree):
            for storage in storages(tensor):
                found = self._alive.get(storage._cdata)
                if found is not None:
                    yield found[0]

    def alive(self) -> list[Entry]:
        return [entry for entry, _ in self._alive.values()]

    def settle(self) -> None:
        """Once all is over: sums that autograd makes in place are born when what they are made of has gone."""
        for first, total in self._sums:
            if first.dies == total.born + 1:
                total.born += 1
        self._sums.clear()

    def timeline(self) -> Timeline:
        end = len(self.steps)
        self.settle()
        lives = (Life(e.name, e.kind, e.bytes, e.born, end if e.dies < 0 else e.dies, e.path, e.source) for e in self.entries)
        return Timeline(tuple(self.steps), tuple(life for life in lives if life.born < life.dies))


def _run_it(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def storages(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """The storages of a tensor: its own, or those of the tensors a wrapper subclass is made of.

    >>> [storage.nbytes() for storage in storages(torch.ones(3))]
    [12]
    """
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            inner = getattr(tensor, name)
            if isinstance(inner, torch.Tensor):  # a DTensor names its mesh as well
                yield from storages(inner)
    elif tensor.layout is torch.strided:
        yield tensor.untyped_storage()
    else:
        for part in _sparse_parts(tensor):
            yield part.untyped_storage()


def _sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout is torch.sparse_coo:
        return (tensor._indices(), tensor._values())
    return ()


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists, mappings and dataclasses.

    >>> len(list(tensors_in({"a": (torch.ones(1), 2), "b": [torch.ones(1)]})))
    2
    """
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list, set, frozenset)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, Mapping):
        yield from tensors_in(tuple(tree.values()))
    elif is_dataclass(tree) and not isinstance(tree, type):
        yield from tensors_in(tuple(getattr(tree, field.name, None) for field in fields(tree)))


def as_specs(args: Iterable[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An op's arguments with a `Spec` in place of each tensor.

    >>> as_specs((torch.ones(2, 3), 1), {})
    ((Spec(shape=(2, 3), stride=(3, 1), dtype=torch.float32, device='cpu'), 1), {})
    """
    return tuple(_spec(arg) for arg in args), {name: _spec(arg) for name, arg in kwargs.items()}


def _spec(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Spec(tuple(value.shape), value.stride(), value.dtype, value.device.type)
    if isinstance(value, (list, tuple)):
        return [_spec(item) for item in value]
    return value
