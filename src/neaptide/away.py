"""Where values wait between forward and backward when they are sent away: from the CPU in a file, else in the host's memory.

In: tensors, each under a name. Out: the same bytes, later. The file is on a disk, never in memory, and is never mapped, since
mapped pages count as the process's own. It has no name, so that it is gone with the process, however that ends. Writing hands
the bytes to the kernel, which brings them to the disk while the forward goes on; reading one asks for the next one.
An accelerator's tensors go to pinned memory, by copies in the order of its own stream: the program does not wait for them, the
ops queued behind them do. A `Store` belongs to one call of a forward, and goes with the graph that autograd keeps of it.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from neaptide._torch import FakeTensor
from neaptide.allocator import PAGE
from neaptide.errors import OffloadError
from neaptide.folders import cache_folder

ONCE = 1 << 30
"""Bytes that are written or read by one call: the kernel takes at most 2 GiB."""
SMALL = 1 << 20
"""Bytes below which nothing is worth sending."""
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


@dataclass(frozen=True, slots=True)
class _Sent:
    """Where a tensor waits, in the file or on the host (a fake one nowhere), and how it lay in memory."""

    offset: int | None
    host: torch.Tensor | None
    nbytes: int
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Store:
    """What one forward has sent away.

    >>> store = Store()
    >>> rows = torch.arange(6.0).view(2, 3).t()
    >>> send(store, "rows", rows)
    >>> bool((fetch(store, "rows", None) == rows).all()), fetch(store, "rows", None).stride()
    (True, (1, 3))
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._end = 0
        self._sent: dict[str, _Sent] = {}

    def send(self, name: str, tensor: torch.Tensor) -> None:
        """Bring a tensor away."""
        offset = host = None
        for moved in _counts:
            moved.bytes += tensor.nbytes
        if not isinstance(tensor, FakeTensor):
            if tensor.device.type == "cpu":
                offset = self._write(tensor)
            else:
                host = _like(tensor, pin_memory=True).copy_(tensor, non_blocking=True)
        self._sent[name] = _Sent(offset, host, tensor.nbytes, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    def fetch(self, name: str, after: str | None) -> torch.Tensor:
        """Have a tensor back; the one to be fetched `after` it is got ready meanwhile."""
        sent = self._sent[name]
        there = torch.empty_strided(sent.size, sent.stride, dtype=sent.dtype, device=sent.device)
        if sent.host is not None:
            there.copy_(sent.host, non_blocking=True)
        elif self._file is not None and sent.offset is not None:
            _read(self._file, _bytes_of(there), sent.offset)
            following = None if after is None else self._sent.get(after)
            if following is not None and following.offset is not None:
                os.posix_fadvise(self._file, following.offset, following.nbytes, os.POSIX_FADV_WILLNEED)
        return there

    def _write(self, tensor: torch.Tensor) -> int:
        if self._file is None:
            self._file = open_unnamed()
        offset = self._end
        _write(self._file, _bytes_of(tensor), offset)
        self._end += -(-tensor.nbytes // PAGE) * PAGE
        return offset

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)


@dataclass(eq=False, slots=True)
class Moved:
    """Bytes that were sent away."""

    bytes: int = 0


_counts: list[Moved] = []


@contextmanager
def counting() -> Iterator[Moved]:
    """Count what is sent away, on fake tensors too.

    >>> with counting() as moved:
    ...     Store().send("x", torch.ones(1 << 18))
    >>> moved.bytes
    1048576
    """
    moved = Moved()
    _counts.append(moved)
    try:
        yield moved
    finally:
        _counts.remove(moved)


def send(store: Store, name: str, tensor: torch.Tensor) -> None:
    """What generated code calls to send a tensor away."""
    store.send(name, tensor)


def fetch(store: Store, name: str, after: str | None) -> torch.Tensor:
    """What generated code calls to have a tensor back."""
    return store.fetch(name, after)


def _like(tensor: torch.Tensor, pin_memory: bool) -> torch.Tensor:
    """Memory of the host in which a tensor lies as it does where it is."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=pin_memory)


def to_the_host(tensor: torch.Tensor) -> None:
    """Bring a tensor of an accelerator to the host and have it back, to see how long that takes."""
    store = Store()
    store.send("it", tensor)
    store.fetch("it", None)


def to_the_disk(tensor: torch.Tensor) -> None:
    """Bring a tensor to the disk itself and have it back, to see how long that takes."""
    file, data = open_unnamed(), _bytes_of(tensor)
    try:
        _write(file, data, 0)
        os.fdatasync(file)
        os.posix_fadvise(file, 0, len(data), os.POSIX_FADV_DONTNEED)
        _read(file, data, 0)
    finally:
        os.close(file)


def open_unnamed() -> int:
    """A new file without a name, on a disk."""
    folder = place()
    if folder is None:
        raise OffloadError(
            f"nothing can be sent away: {', '.join(map(str, _folders()))} are in memory, cannot be written to, or not Linux's. "
            "Set NEAPTIDE_OFFLOAD to a folder on a disk, or forbid it with offload=False."
        )
    with suppress(OSError):  # some file systems cannot make files without a name
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    file, name = tempfile.mkstemp(dir=folder)
    os.unlink(name)
    return file


def takes(device: torch.device) -> bool:
    """Whether tensors of a device can be sent away."""
    return device.type != "cpu" or place() is not None


@cache
def place() -> Path | None:
    """The folder in which values wait: `NEAPTIDE_OFFLOAD`, or one for temporary files or caches, if it is on a disk.

    None where there is none, or the system has no such files and no advice about them: Linux has.
    """
    if not sys.platform.startswith("linux"):
        return None
    return next((folder for folder in _folders() if _is_on_disk(folder) and os.access(folder, os.W_OK)), None)


def _folders() -> Iterator[Path]:
    own = os.environ.get("NEAPTIDE_OFFLOAD")
    if own:
        yield Path(own)
        return
    yield from (Path(tempfile.gettempdir()), Path("/var/tmp"), cache_folder(), Path.cwd())


def _is_on_disk(folder: Path) -> bool:
    """Whether a folder is there, and its file system is not in memory."""
    mounts = Path("/proc/mounts")
    if not folder.is_dir():
        return False
    if not mounts.exists():
        return True
    entries = (line.split()[1:3] for line in mounts.read_text().splitlines())
    whole = folder.resolve()
    holding = [(len(at), kind) for at, kind in entries if whole.is_relative_to(at)]
    return max(holding, default=(0, ""))[1] not in IN_MEMORY


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a dense tensor."""
    start = tensor.storage_offset() * tensor.itemsize
    flat: Any = torch.empty(0, dtype=torch.uint8)
    flat.set_(tensor.untyped_storage(), start, (tensor.nbytes,))
    return memoryview(flat.numpy())


def _write(file: int, data: memoryview, offset: int) -> None:
    done = 0
    try:
        while done < len(data):
            done += os.pwrite(file, data[done : done + ONCE], offset + done)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise OffloadError(
            error.errno,
            f"the disk is full: {len(data) - done:,} bytes could not be sent away to {place()}. "
            "Set NEAPTIDE_OFFLOAD to a folder with room, or forbid it with offload=False.",
        ) from error


def _read(file: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        got = os.preadv(file, [data[done : done + ONCE]], offset + done)
        if got == 0:
            raise OffloadError(errno.EIO, f"what was sent away to {place()} is not there any more")
        done += got
