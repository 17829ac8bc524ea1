"""What the C library's allocator keeps, in a process of its own with its default settings."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import resource, torch
from neaptide.allocator import keep_pages

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(5 << 20, dtype=torch.uint8) for _ in range(4)]
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_pages()
print(min(faults() for _ in range(5)))
"""


def test_pages_of_freed_blocks_are_kept() -> None:
    settings = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    told = subprocess.run([sys.executable, "-c", SCRIPT], env=settings, capture_output=True, text=True, check=True)
    fresh, all_pages = int(told.stdout), (4 * 5 << 20) // 4096
    assert fresh * 10 < all_pages, f"{fresh} of {all_pages} pages were touched afresh"
