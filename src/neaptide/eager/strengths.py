"""How strongly a block is checkpointed: what it keeps of its forward, and what is done to have the rest in the backward.

In: a unit and the arguments of one call. Out: its result, bit for bit. Recomputation replays random numbers and autocast
(PyTorch's non-reentrant checkpoint does), and leaves statistics that a forward updates, such as BatchNorm's, as they were.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from neaptide import away
from neaptide._torch import FakeTensor, current_backward, real_tensors, saved_tensor_hooks
from neaptide.accounting import storages
from neaptide.eager.blocks import Unit

aten = torch.ops.aten
KEPT_OPS = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.convolution.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
    }
)
"""What selective checkpointing keeps the results of: they are dear to make again."""
CACHES = ("past_key_values", "past_key_value", "layer_past")
SMALL_STATISTICS = 1 << 16
OWN_WORDS = frozenset({"use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"})


@dataclass(frozen=True, slots=True)
class Way:
    """A strength: "keep" all, "parts" of the block again, "selective", "away" to the disk, or "full": all of it again."""

    strength: str
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.strength} ({', '.join(self.parts)})" if self.parts else self.strength


KEEP, FULL, SELECTIVE, AWAY = Way("keep"), Way("full"), Way("selective"), Way("away")


def is_inside_another() -> bool:
    """Whether a forward belongs to someone else's checkpoint, or repeats one: it has to save what it saves there."""
    return current_backward() != -1 or saved_tensor_hooks() is not None


def run(unit: Unit, way: Way, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a unit in one of the ways that concern it as a whole."""
    if way is FULL or way.strength == "full":
        return checkpointed(unit, args, kwargs)
    if way.strength == "selective":
        return checkpointed(unit, args, kwargs, context_fn=_selective)
    if way.strength == "away":
        with sent_away(unit.module):
            return unit.plain(*args, **kwargs)
    return unit.plain(*args, **kwargs)


def checkpointed(
    unit: Unit,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    around: Callable[[bool, Callable[[], Any]], Any] | None = None,
    **options: Any,
) -> Any:
    """Call a unit; what its backward needs is made again then. `around` is told whether a run repeats another."""
    kwargs = {name: None if name in CACHES else value for name, value in kwargs.items()}
    again = False

    def once(*given: Any, **named: Any) -> Any:
        nonlocal again
        repeats, again = again, True

        def call() -> Any:
            return unit.plain(*given, **named)

        with _statistics(unit.module) if repeats else _nothing():
            return around(repeats, call) if around is not None else call()

    if OWN_WORDS & kwargs.keys():
        return checkpoint(functools.partial(once, **kwargs), *args, use_reentrant=False, **options)
    return checkpoint(once, *args, use_reentrant=False, **options, **kwargs)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _statistics(module: nn.Module) -> Iterator[None]:
    """Put back, at the end, what a forward updates: not through autograd's eyes, which hold some of them saved."""
    buffers = [buffer for buffer in _updated(module) if not isinstance(buffer, FakeTensor)]
    if not buffers:
        yield
        return
    with torch.no_grad(), real_tensors():  # a selective checkpoint takes every op that it sees for one of the block's
        held = [(buffer, buffer.detach().clone()) for buffer in buffers]
    try:
        yield
    finally:
        with real_tensors():
            for buffer, before in held:
                buffer.data.copy_(before)


def _updated(module: nn.Module) -> Iterator[torch.Tensor]:
    for inner in module.modules():
        every = getattr(inner, "track_running_stats", False)
        for buffer in inner._buffers.values():
            if buffer is not None and (every or buffer.numel() <= SMALL_STATISTICS):
                yield buffer


def _policy(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in KEPT_OPS else CheckpointPolicy.PREFER_RECOMPUTE


def _selective() -> Any:
    return create_selective_checkpoint_contexts(_policy)


@contextmanager
def sent_away(module: nn.Module) -> Iterator[None]:
    """What is saved for the backward waits elsewhere, each memory once; parameters, and what is small, stay."""
    store, sent = away.Store(), dict[Any, tuple[str, Any]]()
    own = {storage._cdata for tensor in (*module.parameters(), *module.buffers()) for storage in storages(tensor)}

    def pack(tensor: torch.Tensor) -> Any:
        dense = tensor.layout is torch.strided and tensor.is_contiguous()
        if not dense or tensor.nbytes < away.SMALL or tensor.untyped_storage()._cdata in own:
            return tensor
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor.storage_offset(), tensor.shape, tensor._version)
        name, owner = sent.get(key, ("", None))
        if owner is None or owner() is not storage:  # a new one may be where another was
            name = f"{len(sent)} {key}"
            sent[key] = (name, weakref.ref(storage))
            store.send(name, tensor.detach())
        return store, name

    def unpack(packed: Any) -> torch.Tensor:
        return packed[0].fetch(packed[1], None) if isinstance(packed, tuple) else packed

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
