"""What each of two ranks does, over gloo: `python -m tests.eager.ranks RANK PORT` prints how each case went."""

from __future__ import annotations

import copy
import os
import sys
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import neaptide
from tests.eager.models import Stack

LENGTHS = {0: (20, 40, 64, 30), 1: (60, 24, 32, 48)}


def steps(call: Any, model: nn.Module, rank: int) -> list[torch.Tensor]:
    torch.manual_seed(10 + rank)
    model.zero_grad()
    for length in LENGTHS[rank]:
        call(torch.randint(0, 50, (3, length)))["loss"].backward()
    gradients = [p.grad for p in model.parameters()]
    return [g.full_tensor() if hasattr(g, "full_tensor") else g.clone() for g in gradients]


def sharded(model: nn.Module) -> nn.Module:
    for inner in model.blocks:
        fully_shard(inner)
    return fully_shard(model)


def same(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert all(map(torch.equal, mine, theirs))


def ddp(rank: int, start: nn.Module) -> None:
    plain = copy.deepcopy(start)
    expected = steps(DistributedDataParallel(plain), plain, rank)
    handle = neaptide.adapt(start, budget="min")
    same(steps(DistributedDataParallel(start), start, rank), expected)
    assert handle.stats.calls == 4


def ddp_around(rank: int, start: nn.Module) -> None:
    plain = copy.deepcopy(start)
    expected = steps(DistributedDataParallel(plain), plain, rank)
    wrapped = DistributedDataParallel(start)
    neaptide.adapt(start, budget="1GiB")
    same(steps(wrapped, start, rank), expected)


def fsdp(rank: int, start: nn.Module) -> None:
    plain = copy.deepcopy(start)
    expected = steps(sharded(plain), plain, rank)
    for budget in ("min", "1GiB"):
        model = copy.deepcopy(start)
        call = sharded(model)
        handle = neaptide.adapt(model, budget=budget)
        same(steps(call, model, rank), expected)
        assert handle.stats.calls == 4
        assert handle._session._ranks.agree


def fsdp_inside(rank: int, start: nn.Module) -> None:
    """Measured: what is gathered for a while counts."""
    model = Stack(width=512)
    call = sharded(model)
    batches = [torch.randint(0, 50, (4, length)) for length in (320, 128, 256, 288, 192)]

    def step(ids: torch.Tensor) -> None:
        call(ids)["loss"].backward()
        model.zero_grad()

    def taken(ids: torch.Tensor) -> int:
        return neaptide.measure(step, ids).peak - before + own

    step(batches[0])
    before = neaptide.measure(lambda: None).peak  # what else is alive here
    own = sum(p.to_local().nbytes for p in model.parameters())
    budget = int(0.85 * taken(batches[0]))
    handle = neaptide.adapt(model, budget=budget)
    for ids in batches * 2:
        step(ids)
    found = {ids.shape[1]: (taken(ids), handle.plan.peak) for ids in batches}
    assert max(peak for peak, _ in found.values()) <= 1.02 * budget, f"{found} of {budget}"
    assert all(0.94 * peak <= planned <= 1.02 * peak for peak, planned in found.values()), f"{found} of {budget}"
    assert handle.stats.plans


CASES = {
    "ddp of adapted": ddp,
    "adapted inside ddp": ddp_around,
    "fully_shard per block": fsdp,
    "fully_shard inside a budget": fsdp_inside,
}


def main(rank: int, port: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    for case, check in CASES.items():
        torch.manual_seed(0)
        try:
            check(rank, Stack())
            print(f"{case}: well", flush=True)
        except Exception:
            traceback.print_exc()
            os._exit(1)  # the other rank must not wait
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
