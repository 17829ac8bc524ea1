"""What an allocation of so many bytes takes from the machine, with the allocator's rounding.

In: bytes asked for and a device type. Out: bytes taken. Every predicted figure goes through here once, so that
predictions and measurements speak of the same bytes.
"""

from __future__ import annotations

ALIGNMENT = 64  # what PyTorch asks of `posix_memalign`
PAGE = 4096
MMAP_THRESHOLD = 65536  # blocks of this size and above get pages of their own, see `neaptide.measure`
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
