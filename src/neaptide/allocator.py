"""What an allocation of so many bytes takes from the machine, with the allocator's rounding; which pages it keeps.

In: bytes asked for and a device type. Out: bytes taken. Every predicted figure goes through here once, so that
predictions and measurements speak of the same bytes.
"""

from __future__ import annotations

from functools import cache

import torch

from neaptide._torch import real_tensors

ALIGNMENT = 64  # what PyTorch asks of `posix_memalign`
PAGE = 4096
MMAP_THRESHOLD = 65536  # blocks of this size and above get pages of their own, see `neaptide.measure`
KEPT_PAGES = (32 << 20) - 4096
"""Blocks up to this are reused with their pages by the C library's allocator; larger ones are touched afresh each time.
Its limit counts what it puts around them, so that 32 MiB itself, which powers of two often come to, is past it."""
KEPT_AT_ALL = 2 * KEPT_PAGES
"""When more than this is free at the end of the heap, as it is after each round of a loop that takes more, the allocator gives
it back, and the next round touches fresh pages."""
ACCELERATOR_BLOCK = 512  # the caching allocators of CUDA, XPU and HIP round to this


def allocated(nbytes: int, device_type: str = "cpu") -> int:
    """Bytes that an allocation of `nbytes` takes on a device.

    On the CPU a block above the mmap threshold begins 64 bytes into its first page, because the allocator's own
    header stands before it; so a whole number of pages takes one page more.

    >>> allocated(0), allocated(1), allocated(65), allocated(1 << 20), allocated(1, "cuda")
    (0, 64, 128, 1052672, 512)
    """
    if nbytes <= 0:
        return 0
    if device_type != "cpu":
        return -(-nbytes // ACCELERATOR_BLOCK) * ACCELERATOR_BLOCK
    if nbytes < MMAP_THRESHOLD:
        return -(-nbytes // ALIGNMENT) * ALIGNMENT
    return -(-(nbytes + ALIGNMENT) // PAGE) * PAGE


@cache
def keep_pages() -> None:
    """Have the C library's allocator keep the pages of freed blocks up to `KEPT_PAGES`, from now on.

    It does so by itself once a block of that size was freed, and until then only for blocks as large as were freed before: a
    loop over parts then gives its pages back after each part and touches fresh ones for the next, at up to twice the time.
    Nothing is written to the block that is freed here, so that it takes no memory.

    >>> keep_pages()
    """
    with real_tensors():
        torch.empty(KEPT_PAGES - PAGE, dtype=torch.uint8)
