"""Ranks that share a model's weights run each step in one way.

In: a rank's own choice. Out: one that all ranks run. Under FSDP a block's weights are gathered and let go of by all ranks
together, so that none should make a block again that the others keep. The strongest choice for each call is taken, which is
that of the rank with the largest input: one small all-reduce a step. Under DDP each rank plans for itself.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from neaptide.eager.choose import Choice
from neaptide.eager.figures import Figures
from neaptide.eager.strengths import FULL
from neaptide.errors import BudgetError

MOST = 512
"""Calls of blocks that are spoken about; later ones are each rank's own."""
Found = tuple[Choice, Figures]


class Ranks:
    """Whether there are others, and what they do."""

    def __init__(self, model: nn.Module, same_sizes: bool) -> None:
        self.agree = _is_sharded(model)
        self.gathered = _gathered(model) if self.agree else 0
        """Bytes that are there in a step beside the parameters as a call finds them: while it runs, the outermost module's are
        whole beside this rank's share, and one group of the others is gathered."""
        self._same_sizes = same_sizes
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def agreed(self, found: Found | None, refused: BudgetError | None = None) -> Found | None:
        """What all ranks run, where this one found something, looks at its step for real (None), or was refused."""
        if not self.agree or self._same_sizes:
            return found
        told = torch.ones(MOST + 1, dtype=torch.int32)
        told[0] = refused is not None
        if found is not None:
            mine = [way is FULL for way in found[0].ways][:MOST]
            told[1 : 1 + len(mine)] = torch.tensor(mine, dtype=torch.int32)
        told = told.to(self._device)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        if told[0] and refused is None:
            raise BudgetError("another rank's batch does not fit its budget", need=0, limit=0, smallest=0)
        if found is None:
            return None
        flags = told[1:].tolist()
        choice, figures = found
        ways = tuple(FULL if n < MOST and flags[n] else way for n, way in enumerate(choice.ways))
        return replace(choice, ways=ways), figures


def _is_sharded(model: nn.Module) -> bool:
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return False
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(module, FSDPModule) for module in model.modules())


def _gathered(model: nn.Module) -> int:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    groups = [module for module in model.modules() if isinstance(module, FSDPModule)]
    inner = {id(m) for group in groups for m in group.modules() if m is not group and isinstance(m, FSDPModule)}
    known: set[int] = set()
    largest = shares = 0
    for group in reversed(groups):  # from the inside outwards: what an inner group has is not the outer's
        own = [p for p in group.parameters() if id(p) not in known]
        known.update(map(id, own))
        if id(group) in inner:
            largest = max(largest, sum(p.numel() * p.element_size() for p in own))
        else:
            shares += sum(p.to_local().nbytes for p in own if isinstance(p, DTensor))
    return largest + shares
