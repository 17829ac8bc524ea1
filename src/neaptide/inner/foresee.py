"""What compiled code will take: its wrapper run on fake tensors, with kernels that do nothing.

In: `Kernels` and sizes. Out: how far memory rises above what was there when they began. The wrapper allocates, reuses and
lets go just as it will, so that nothing about inductor has to be known but that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch

from neaptide._torch import FakeTensorMode
from neaptide.accounting import Accounting
from neaptide.inner.compiler import Kernels
from neaptide.inner.fragment import Home
from neaptide.inner.look import Look, numbers
from neaptide.timeline import Timeline


def rise(kernels: Kernels, dims: tuple[int, ...]) -> int:
    """The most bytes beyond what is there at first."""
    found = line(kernels, dims)
    return max(found.bytes) - found.bytes[0]


def line(kernels: Kernels, dims: tuple[int, ...]) -> Timeline:
    """What is alive when, of what is given and what is made, at the graph's sizes `dims`."""
    fragment, call = kernels.fragment, idle(kernels.run)
    sizes = fragment.cases(dims)[0]
    known = {name: size for (name, _), size in zip(fragment.sizes, sizes, strict=True)}
    accounting = Accounting()
    with FakeTensorMode(), torch.no_grad():
        memory: dict[Home, torch.Tensor] = {}
        args = [*sizes, *(_stand_in(*each, known, memory) for each in zip(fragment.looks, fragment.homes, strict=True))]
        for home in memory:
            accounting.resident(memory[home], str(home.number), "input")
        held = [tensor for home, tensor in memory.items() if not home.goes]
        memory.clear()
        with accounting:
            made = call(args)
    found = accounting.timeline()
    del held, made
    return found


def _stand_in(look: Look, home: Home | None, known: Mapping[str, int], memory: dict[Home, torch.Tensor]) -> Any:
    """A fake for an argument at concrete sizes, in a memory that it shares with others."""
    if home is None:
        return look.fake(known)
    if home not in memory:
        (size,) = numbers((home.bytes,), known)
        memory[home] = torch.empty(size, dtype=torch.uint8, device=look.device)
    return look.fake(known, memory[home])


def idle(run: Any) -> Callable[[list[Any]], Any]:
    """A compiled graph's wrapper with kernels that do nothing, and allocations that can be seen."""
    owner, function = getattr(run, "__self__", None), getattr(run, "__func__", run)
    space = {name: _idle(name, value) for name, value in function.__globals__.items()}
    bare = FunctionType(function.__code__, space, function.__name__, function.__defaults__, function.__closure__)
    return bare if owner is None else lambda args: bare(owner, args)


def _idle(name: str, value: Any) -> Any:
    if name.startswith("empty_strided_"):
        device = name.removeprefix("empty_strided_").removesuffix("_pinned")
        return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)
    if name == "reinterpret_tensor":
        return _reinterpret
    is_kernel = name.startswith(("cpp_", "triton_", "assert_")) and callable(value)
    return _nothing if is_kernel else value


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _reinterpret(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)
