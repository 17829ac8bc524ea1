"""How much longer steps take than the sum of their ops' prices says: one small step, timed beside its own prediction.

In: a device. Out: a factor. Prices are the fastest that ops were seen to take, one by one, on memory that is there; in a step
caches are cold, pages are fresh, and others use the machine. The factor is the same for all methods: it changes no order.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from functools import cache
from statistics import median

import torch
from torch import Tensor, nn

from neaptide._torch import real_tensors
from neaptide.dryrun import dry_run, run_step
from neaptide.folders import cache_folder
from neaptide.hardware import A_DAY, LOOKS, machine_key, this_machine

STEPS = 5
KEPT = 2 * LOOKS
"""How many looks are remembered."""


class _Small(nn.Module):
    """Attention, products, norms, dropout and a loss over words, as most models have them."""

    def __init__(self, width: int = 384, words: int = 4000) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 6, 4 * width, 0.1, "gelu") for _ in range(2))
        self.head = nn.Linear(width, words)

    def forward(self, words: Tensor) -> dict[str, Tensor]:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return {"loss": nn.functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())}


@cache
def pace(device: str = "cpu") -> float:
    """What a step takes, of what its ops are priced at: looked at in two seconds, or known from earlier processes.

    >>> 0.1 < pace() < 10
    True
    """
    slowed = "-measuring" if os.environ.get("MALLOC_MMAP_THRESHOLD_") else ""  # pages are then touched afresh by every op
    path = cache_folder() / f"pace-{machine_key(device)}{slowed}.json"
    found: list[float] = []
    when = 0.0
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(path.read_text())
        found, when = [float(ratio) for ratio in kept["found"]], float(kept["when"])
    if len(found) < LOOKS or time.time() - when > A_DAY:
        found = [*found, _look(device)][-KEPT:]
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"found": found, "when": time.time()}))
    return median(found)


def _look(device: str) -> float:
    """A small step's time over its price."""
    machine = this_machine(device)
    with real_tensors(), torch.random.fork_rng(), torch.enable_grad(), torch.device(device):
        model, words = _Small().train(), torch.randint(4000, (8, 256))
        predicted = dry_run(model, words, True, None, None, machine).seconds
        assert predicted is not None
        taken = []
        for _ in range(STEPS + 1):
            begin = time.perf_counter()
            run_step(model, words, True)
            model.zero_grad()
            if device != "cpu":
                torch.accelerator.synchronize()
            taken.append(time.perf_counter() - begin)
    return median(taken[1:]) / predicted
