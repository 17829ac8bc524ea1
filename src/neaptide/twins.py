"""Fake twins: a model and its inputs as tensors without data, so that it can run without memory or time.

In: a module (or a callable that closes over some) and its inputs, on any device, `meta` included. Out: for as long as
the context lasts, the same module holding fake parameters and buffers, and fake arguments to call it with. Afterwards
the module is as it was. A tensor on `meta` becomes a fake tensor on the CPU, since `meta` stands for "not made yet".
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from neaptide._torch import FakeTensorMode, is_traceable_wrapper_subclass, unset_fake_temporarily
from neaptide.errors import InputError

KNOWN_BYTES = 1 << 22
"""Integer and boolean tensors up to this size keep their values: models branch on masks, positions and lengths."""


class Forge:
    """Makes the fake twin of a real tensor, the same twin for the same tensor, shared storage for shared storage."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._twins: dict[int, torch.Tensor] = {}
        self._bases: dict[int, torch.Tensor] = {}
        self._originals: list[torch.Tensor] = []  # ids in `_twins` stay valid as long as these live

    def twin(self, real: torch.Tensor) -> torch.Tensor:
        found = self._twins.get(id(real))
        if found is not None:
            return found
        if isinstance(real, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            raise InputError("the model has lazy parameters that are not initialised: call it once on a small input first")
        with torch.no_grad():
            fake = self._make(real)
        if isinstance(real, nn.Parameter):
            fake = nn.Parameter(fake, requires_grad=real.requires_grad)
        elif real.requires_grad and real.is_leaf:
            fake.requires_grad_()
        remember(fake, real)
        self._twins[id(real)] = fake
        self._originals.append(real)
        if real.is_leaf and real.grad is not None:
            fake.grad = self.twin(real.grad)
        return fake

    def _make(self, real: torch.Tensor) -> torch.Tensor:
        if is_traceable_wrapper_subclass(real) or real.layout is not torch.strided:
            return self.mode.from_tensor(real.detach(), static_shapes=True)
        storage = real.untyped_storage()
        device = torch.device("cpu") if real.device.type == "meta" else real.device
        base = self._bases.get(storage._cdata)
        with self.mode:
            if base is None:
                length = storage.nbytes() // real.element_size()
                base = self._bases[storage._cdata] = torch.empty(length, dtype=real.dtype, device=device)
            flat = base if base.dtype == real.dtype else base.view(real.dtype)
            return flat.as_strided(real.size(), real.stride(), real.storage_offset()).detach()


@dataclass(frozen=True)
class Twins:
    """What `fake_twins` gives: call the model with `args` and `kwargs` inside `mode`; `twin` answers for any tensor."""

    mode: FakeTensorMode
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    twin: Callable[[torch.Tensor], torch.Tensor]
    modules: tuple[nn.Module, ...]


def remember(fake: torch.Tensor, real: torch.Tensor) -> None:
    """Keep a copy of a small integer tensor's values, or of a single number, with its twin, for `values.py`."""
    whole = not real.is_floating_point() and not real.is_complex() and real.numel() * real.element_size() <= KNOWN_BYTES
    if (
        (whole or (real.numel() == 1 and not real.requires_grad))
        and real.device.type == "cpu"
        and type(real) in (torch.Tensor, nn.Parameter)
    ):
        with unset_fake_temporarily():
            fake._known = (real.detach().clone(), [True])  # type: ignore[attr-defined]


def split_inputs(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keyword arguments out of a tensor, a tuple or a dict.

    >>> split_inputs({"x": torch.ones(1)})
    ((), {'x': tensor([1.])})
    """
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, tuple):
        args, kwargs = tuple(inputs), {}
    elif isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        args, kwargs = (), dict(inputs)
    else:
        raise InputError(
            f"inputs is a {type(inputs).__name__}: pass a tensor, a tuple of arguments or a dict of keyword arguments"
        )
    if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
        raise InputError("no tensor among the inputs: pass a tensor, a tuple of arguments or a dict of keyword arguments")
    return args, kwargs


def modules_of(model: Callable[..., Any]) -> tuple[nn.Module, ...]:
    """The modules behind a callable: itself, or those it is bound to, closes over, or names as globals.

    >>> layer = nn.Linear(2, 2)
    >>> modules_of(lambda x: layer(x)) == (layer,)
    True
    """
    if isinstance(model, nn.Module):
        return (getattr(model, "_orig_mod", model),)
    if isinstance(model, functools.partial):
        found = [value for value in (*model.args, *model.keywords.values()) if isinstance(value, nn.Module)]
        return tuple(dict.fromkeys((*modules_of(model.func), *found)))
    owner = getattr(model, "__self__", None)
    if isinstance(owner, nn.Module):
        return (owner,)
    try:
        names = inspect.getclosurevars(inspect.unwrap(model))
    except TypeError:
        return ()
    values = (*names.nonlocals.values(), *names.globals.values())
    return tuple(dict.fromkeys(value for value in values if isinstance(value, nn.Module)))


@contextmanager
def fake_twins(model: Callable[..., Any], inputs: Any, kind: type[FakeTensorMode] = FakeTensorMode) -> Iterator[Twins]:
    """The model with fake parameters and buffers in place of its own, and fake inputs, until the context ends.

    >>> layer = nn.Linear(3, 5)
    >>> with fake_twins(layer, torch.ones(2, 3)) as twins, twins.mode:
    ...     print(layer(*twins.args).shape)
    torch.Size([2, 5])
    >>> type(layer.weight.data)
    <class 'torch.Tensor'>
    """
    args, kwargs = split_inputs(inputs)
    forge = Forge(kind(allow_fallback_kernels=False, allow_non_fake_inputs=True))
    modules = modules_of(model)
    with ExitStack() as stack:
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        for module in dict.fromkeys(inner for outer in modules for inner in outer.modules()):
            stack.enter_context(_swapped(module, forge))
        fake = pytree.tree_map_only(torch.Tensor, forge.twin, (args, kwargs))
        yield Twins(forge.mode, fake[0], fake[1], forge.twin, modules)


@contextmanager
def _swapped(module: nn.Module, forge: Forge) -> Iterator[None]:
    """Fake parameters and buffers inside one module; afterwards every attribute is what it was."""
    attributes = dict(module.__dict__)
    tables: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (table, dict(table)) for table in (module._parameters, module._buffers)
    ]
    try:
        for table, held in tables:
            table.update({name: forge.twin(tensor) for name, tensor in held.items() if tensor is not None})
        yield
    finally:
        for table, held in tables:
            table.clear()
            table.update(held)
        module.__dict__.clear()
        module.__dict__.update(attributes)


@contextmanager
def as_if_real() -> Iterator[None]:
    """Let libraries take the paths they take on real tensors.

    transformers takes a fake tensor as a sign of tracing and then always builds attention masks in full; compiled
    modules would be traced. Eager does neither, and small masks keep their values here, so that its questions about
    them can be answered.
    """
    with ExitStack() as stack:
        transformers = sys.modules.get("transformers.utils.import_utils")
        if transformers is not None and hasattr(transformers, "is_fake_tensor"):
            stack.enter_context(mock.patch.object(transformers, "is_fake_tensor", return_value=False))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
