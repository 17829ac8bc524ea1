"""What compiled code will take: its wrapper run on fake tensors, with kernels that do nothing.

In: `Kernels` and sizes. Out: how far memory rises above what was there when they began. The wrapper allocates, reuses and
lets go just as it will, so that nothing about inductor has to be known but that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import FunctionType
from typing import Any

import torch

from neaptide._torch import FakeTensorMode
from neaptide.accounting import Accounting
from neaptide.graph import Graph, expression, spec_of
from neaptide.inner.compiler import Kernels
from neaptide.timeline import Timeline


def rise(kernels: Kernels, dims: Sequence[int], owned: Collection[int]) -> int:
    """The most bytes beyond what is there at first."""
    found = line(kernels, dims, owned)
    return max(found.bytes) - found.bytes[0]


def line(kernels: Kernels, dims: Sequence[int], owned: Collection[int]) -> Timeline:
    """What is alive when, of what is given and what is made. Storages that are `owned` go when the code lets go of them."""
    stretch, call = kernels.stretch, idle(kernels.run)
    accounting = Accounting()
    with FakeTensorMode(), torch.no_grad():
        homes: dict[int, torch.Tensor] = {}
        args: list[Any] = [*dims, *(_stand_in(stretch.graph, v, dims, homes) for v in stretch.given)]
        for storage, tensor in homes.items():
            accounting.resident(tensor, str(storage), "input")
        held = [tensor for storage, tensor in homes.items() if storage not in owned]
        homes.clear()
        with accounting:
            made = call(args)
    found = accounting.timeline()
    del held, made
    return found


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


def _stand_in(graph: Graph, value: int, dims: Sequence[int], homes: dict[int, torch.Tensor]) -> Any:
    """A fake for a value at concrete sizes, in a memory that it shares with the others of its storage."""
    held, fake = graph.values[value], graph.values[value].fake
    if held.storage is None:
        return graph.sizes.shape([expression(fake)], dims)[0]
    if held.storage not in homes:
        size = graph.sizes.evaluate(dims)[graph.storages[held.storage].size]
        homes[held.storage] = torch.empty(size, dtype=torch.uint8, device=fake.device)
    spec = spec_of(fake)
    shape, stride = graph.sizes.shape(spec.shape, dims), graph.sizes.shape(spec.stride, dims)
    return homes[held.storage].view(fake.dtype).as_strided(shape, stride, 0)
