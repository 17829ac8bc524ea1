"""Saved activations in few bits: what the forward keeps for the backward, as integers with a scale for each group of them.

In: what autograd saves. Out: about as many bytes as bits ask for; in the backward, nearly the same values. Rounding is up or
down by chance, so that errors cancel out over a step; its random numbers are its own. Never packed: what is not of floating
point, has an infinity or a NaN (a mask), is small, or is a parameter. Gradients differ by what was rounded: it is used only by
name.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from neaptide._torch import FakeTensor
from neaptide.accounting import storages
from neaptide.dryrun import Loss, loss_of
from neaptide.errors import InputError
from neaptide.twins import split_inputs

GROUP = 256
"""Numbers that share a scale."""
ROUND = 1 << 20
"""Numbers that are packed at once: what that takes beside is as little."""
SMALL = 1 << 16
"""Bytes below which nothing is packed."""
BITS = (4, 8)


@dataclass(eq=False, slots=True)
class Packed:
    """A tensor in few bits; what it was is had back once, however often it was saved."""

    codes: torch.Tensor
    scales: torch.Tensor
    """For each group its least value, and what one step of a code is worth."""
    bits: int
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    made: weakref.ref[torch.Tensor] | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes


def pack(tensor: torch.Tensor, bits: int = 8, generator: torch.Generator | None = None) -> Packed | None:
    """A tensor in so many bits a number; None where that cannot be: a value in it is not finite, or too large to have a scale.

    >>> x = torch.linspace(-1, 1, 1000)
    >>> small = pack(x)
    >>> x.nbytes / small.nbytes > 3.5, bool((unpack(small) - x).abs().max() < 0.01)
    (True, True)
    >>> pack(torch.tensor([0.0, float("-inf")])) is None
    True
    """
    if bits not in BITS:
        raise InputError(f"bits is {bits}: activations are packed into {' or '.join(map(str, BITS))}")
    flat, stride = _in_memory_order(tensor)
    count = flat.numel()
    groups = -(-count // GROUP)
    codes = torch.empty(groups * GROUP * bits // 8, dtype=torch.uint8, device=tensor.device)
    scales = torch.empty(2, groups, dtype=torch.float32, device=tensor.device)
    for start in range(0, count, ROUND):
        part = flat[start : start + ROUND].float()
        if part.numel() % GROUP:
            part = torch.cat([part, part[-1:].expand(-part.numel() % GROUP)])
        rows = part.view(-1, GROUP)
        low, high = rows.aminmax(dim=1)
        step = (high - low) / (2**bits - 1)
        at = slice(start // GROUP, start // GROUP + len(rows))
        scales[0, at], scales[1, at] = low, step
        chance = torch.rand(rows.shape, device=tensor.device, generator=generator)
        found = ((rows - low[:, None]) / step.clamp_min(1e-30)[:, None]).add_(chance).floor_().clamp_(0, 2**bits - 1)
        found = found.to(torch.uint8).view(-1)
        if bits == 4:
            found = found[::2] | (found[1::2] << 4)
        codes[start * bits // 8 : start * bits // 8 + len(found)] = found
    if not isinstance(tensor, FakeTensor) and not bool(scales.isfinite().all()):
        return None
    return Packed(codes, scales, bits, tensor.shape, stride, tensor.dtype)


def unpack(packed: Packed) -> torch.Tensor:
    """The tensor, up to rounding, in the layout that it had."""
    if packed.made is not None and (known := packed.made()) is not None:
        return known
    tensor = torch.empty_strided(packed.size, packed.stride, dtype=packed.dtype, device=packed.codes.device)
    flat, _ = _in_memory_order(tensor)
    for start in range(0, flat.numel(), ROUND):
        codes = packed.codes[start * packed.bits // 8 : (start + ROUND) * packed.bits // 8]
        if packed.bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], dim=1).view(-1)
        at = slice(start // GROUP, start // GROUP + len(codes) // GROUP)
        low, step = packed.scales[:, at, None]
        found = codes.view(-1, GROUP).float().mul_(step).add_(low).view(-1)
        flat[start : start + ROUND] = found[: flat.numel() - start]
    packed.made = weakref.ref(tensor)
    return tensor


def _in_memory_order(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A tensor's numbers as they lie, and the strides to put them back by; a copy where there are gaps."""
    dims = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), tensor.size(d)))
    turned = tensor.detach().permute(dims)
    if turned.is_contiguous():
        return turned.reshape(-1), tensor.stride()
    whole = tensor.detach().contiguous()
    return whole.view(-1), whole.stride()


@contextmanager
def packing(module: nn.Module, bits: int = 8, seed: int = 0) -> Iterator[None]:
    """What is saved for the backward while this lasts is packed, each memory once; parameters and buffers are not."""
    own = {storage._cdata for tensor in (*module.parameters(), *module.buffers()) for storage in storages(tensor)}
    known: dict[Any, tuple[Any, Packed]] = {}
    generators: dict[torch.device, torch.Generator] = {}

    def keep(tensor: torch.Tensor) -> Any:
        if not _can_be_packed(tensor) or tensor.untyped_storage()._cdata in own:
            return tensor
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor._version)
        owner, packed = known.get(key, (None, None))
        if owner is None or owner() is not storage:  # a new one may be where another was
            if isinstance(tensor, FakeTensor):
                generator = None
            else:
                generator = generators.get(tensor.device)
                if generator is None:
                    generator = generators[tensor.device] = torch.Generator(tensor.device).manual_seed(seed)
            with torch.no_grad():
                packed = pack(tensor, bits, generator)
            if packed is None:
                return tensor
            known[key] = (weakref.ref(storage), packed)
        return packed

    def back(kept: Any) -> torch.Tensor:
        if not isinstance(kept, Packed):
            return kept
        with torch.no_grad():
            return unpack(kept)

    with torch.autograd.graph.saved_tensors_hooks(keep, back):
        yield
    known.clear()


def gradient_error(
    model: nn.Module, inputs: Any, bits: int = 8, loss: Loss | None = None, draws: int = 4
) -> tuple[float, float]:
    """What packing does to the whole gradient of one step, run for real: the relative L2 error of a draw (the mean of some),
    and of their mean, which shows whether the error is noise (it falls with more draws) or not.

    Gradients, buffers and the state of the random generators are left as they were.

    >>> model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    >>> one, mean = gradient_error(model, torch.randn(512, 64))
    >>> 0 < mean < one < 0.01
    True
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    before = [p.grad for p in trained]

    def gradient(seed: int | None) -> torch.Tensor:
        for parameter in trained:
            parameter.grad = None
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(0)
            with nullcontext() if seed is None else packing(model, bits, seed):
                output = model(*args, **kwargs)
                scalar = loss_of(output, loss)
            scalar.backward()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
        return torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten().float().cpu() for p in trained])

    args, kwargs = split_inputs(inputs)
    try:
        true = gradient(None)
        length = float(true.norm())
        if not length:
            raise InputError("the gradient of this step is zero: there is nothing to compare with")
        drawn = [gradient(seed) - true for seed in range(max(draws, 1))]
    finally:
        for parameter, gradients in zip(trained, before, strict=True):
            parameter.grad = gradients
    mean = torch.stack(drawn).mean(0)
    return sum(float(each.norm()) for each in drawn) / len(drawn) / length, float(mean.norm()) / length


def _can_be_packed(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_floating_point()
        and tensor.layout is torch.strided
        and tensor.nbytes >= SMALL
        and tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)
    )
