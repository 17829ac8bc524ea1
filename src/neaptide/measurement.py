"""What a call really took: its peak in bytes of tensors, and its seconds.

In: a callable and its arguments. Out: a `Measurement`. On an accelerator the allocator's own statistics are read.
On the CPU nobody counts, so the kernel's high-water mark does: live tensor bytes at the start + (VmHWM - RSS at the
start). That is the truth only if freed tensors go back to the kernel at once, which glibc does for blocks above its
mmap threshold; where it is set up otherwise, the measurement says so.

What is alive at the start but held by C++ alone (the graph of an earlier forward that has had no backward) is not seen.
One measurement at a time: the high-water mark belongs to the process.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from neaptide.errors import InputError, NeaptideError

T = TypeVar("T")

MMAP_THRESHOLD = 65536
"""Blocks above this many bytes are to be handed back to the kernel when freed."""


@dataclass(frozen=True, slots=True)
class Measurement(Generic[T]):
    """The peak (bytes of tensors alive, what was there before included), the seconds, and what the call returned.

    `note` is empty unless something about the process makes the peak less than exact.

    >>> Measurement(peak=3 << 20, seconds=0.5, value=None).peak
    3145728
    """

    peak: int
    seconds: float
    value: T
    note: str = ""

    def __str__(self) -> str:
        from neaptide.report import format_bytes

        return f"peak {format_bytes(self.peak)} in {self.seconds:.3g} s" + (f" ({self.note})" if self.note else "")


def measure(fn: Callable[..., T], *args: Any, **kwargs: Any) -> Measurement[T]:
    """Call `fn(*args, **kwargs)` once and say what it took; what `fn` raises passes through.

    >>> import torch
    >>> taken = measure(torch.ones, 1000, 1000)
    >>> taken.value.shape, taken.peak > 0, taken.seconds > 0
    (torch.Size([1000, 1000]), True, True)
    """
    if not callable(fn):
        raise InputError(
            f"measure needs something to call, not {type(fn).__name__}; write measure(model, x) or measure(lambda: ...)"
        )
    device = _accelerator_of(fn, args, kwargs)
    if device is not None:
        return _measure_accelerator(device, fn, args, kwargs)
    return _measure_cpu(fn, args, kwargs)


def live_tensor_bytes(device: str = "cpu") -> int:
    """Bytes of all tensors alive on a type of device, each storage counted once.

    >>> before = live_tensor_bytes()
    >>> x = torch.zeros(1000); y = x[10:]
    >>> live_tensor_bytes() - before
    4000
    """
    sizes: dict[tuple[str, int], int] = {}
    for tensor in _tensors():
        try:
            storage = tensor.untyped_storage()
            # A fake tensor claims any device; its storage does not.
            if storage.device.type == device and storage.nbytes():
                sizes[str(storage.device), storage.data_ptr()] = storage.nbytes()
        except (RuntimeError, NotImplementedError, ReferenceError):
            continue  # no storage of its own: a functional or sparse wrapper, whose parts are seen by themselves
    return sum(sizes.values())


def _tensors() -> Iterator[torch.Tensor]:
    things = gc.get_objects()
    # `isinstance` asks `__class__`, which lazy modules and proxies answer with imports, lies or exceptions.
    kinds = {kind for kind in set(map(type, things)) if issubclass(kind, torch.Tensor)}
    for thing in [thing for thing in things if type(thing) in kinds]:
        yield thing
        # A gradient that Python never looked at has no Python object: ask its owner (for a non-leaf that would warn).
        if thing.is_leaf and thing.grad is not None:
            yield thing.grad


def _measure_cpu(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Measurement[T]:
    if not sys.platform.startswith("linux"):
        raise NeaptideError(
            f"on {sys.platform} the high-water mark of a process cannot be reset (getrusage only ever grows), so a "
            "peak on the CPU can be measured on Linux only; neaptide.estimate predicts it anywhere"
        )
    note = _allocator_note(_starting_environment())
    if note:
        _warn_once(note)
    gc.collect()
    _trim()
    live = live_tensor_bytes("cpu")
    _reset_high_water()
    resident = resident_bytes()
    start = time.perf_counter()
    value = fn(*args, **kwargs)
    seconds = time.perf_counter() - start
    return Measurement(live + max(0, high_water() - resident), seconds, value, note)


def _measure_accelerator(
    device: torch.device, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Measurement[T]:
    gc.collect()
    torch.accelerator.synchronize(device)
    torch.accelerator.reset_peak_memory_stats(device)
    start = time.perf_counter()
    value = fn(*args, **kwargs)
    torch.accelerator.synchronize(device)
    seconds = time.perf_counter() - start
    return Measurement(int(torch.accelerator.max_memory_allocated(device)), seconds, value)


def _accelerator_of(fn: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """The accelerator that a call works on: that of its tensors, else the current one if tensors are there."""
    if not torch.accelerator.is_available():
        return None
    closed_over = (cell.cell_contents for cell in getattr(fn, "__closure__", None) or () if _is_filled(cell))
    bound_to = getattr(fn, "__self__", None)
    devices = {tensor.device for tensor in _tensors_in((fn, bound_to, *closed_over, *args, *kwargs.values()))}
    on_accelerator = [device for device in devices if device.type not in ("cpu", "meta")]
    if on_accelerator:
        return on_accelerator[0]
    if not devices and torch.accelerator.memory_allocated() > 0:
        return torch.accelerator.current_accelerator()
    return None


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _tensors_in(thing: object) -> Iterator[torch.Tensor]:
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, torch.nn.Module):
        yield from itertools.chain(thing.parameters(), thing.buffers())
    elif isinstance(thing, dict):
        for item in thing.values():
            yield from _tensors_in(item)
    elif isinstance(thing, (list, tuple, set)):
        for item in thing:
            yield from _tensors_in(item)


def _status(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    with Path("/proc/self/status").open() as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise NeaptideError(f"/proc/self/status has no {field}; a peak on the CPU cannot be measured here")


def resident_bytes() -> int:
    """What the process holds in memory now."""
    return _status("VmRSS")


def mapped_bytes() -> int:
    """What of that are pages of files, such as the code of libraries."""
    return _status("RssFile")


def high_water() -> int:
    """The most that the process held since the mark was last reset."""
    return _status("VmHWM")


def is_true() -> bool:
    """Whether the kernel's high-water mark tells the peak of tensors: it does where freed ones go back to it at once."""
    return sys.platform.startswith("linux") and not _allocator_note(_starting_environment())


def _reset_high_water() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        raise NeaptideError(
            f"the high-water mark cannot be reset ({error}); measuring on the CPU needs a writable "
            "/proc/self/clear_refs (in a container: mount /proc writable)"
        ) from error


def _trim() -> None:
    """Hand freed small blocks back, so that reusing them shows as growth. Other C libraries have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _starting_environment() -> dict[str, str]:
    """The environment as the allocator saw it: what was put into `os.environ` later came too late."""
    entries = Path("/proc/self/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _allocator_note(environment: dict[str, str]) -> str:
    """Why freed tensors may stay resident, and what to do; empty if they do not."""
    preloaded = environment.get("LD_PRELOAD", "")
    for allocator in ("jemalloc", "tcmalloc", "mimalloc"):
        if allocator in preloaded:
            return (
                f"freed tensors stay resident: {allocator} is preloaded and keeps them, so the peak may be off; "
                f"start Python without it in LD_PRELOAD and with MALLOC_MMAP_THRESHOLD_={MMAP_THRESHOLD}"
            )
    threshold = environment.get("MALLOC_MMAP_THRESHOLD_", "")
    for tunable in environment.get("GLIBC_TUNABLES", "").split(":"):
        name, _, value = tunable.partition("=")
        if name == "glibc.malloc.mmap_threshold":
            threshold = value
    if threshold.isdigit() and int(threshold) <= MMAP_THRESHOLD:
        return ""
    return (
        "freed tensors stay resident: the allocator keeps blocks below its mmap threshold (up to 32 MiB), so the peak "
        f"may be off; start Python with MALLOC_MMAP_THRESHOLD_={MMAP_THRESHOLD} in the environment"
    )


@functools.cache
def _warn_once(note: str) -> None:
    warnings.warn(note, UserWarning, stacklevel=4)
