"""What each of two ranks does, over gloo: `python -m tests.mechanism.ranks RANK PORT` prints how each case went."""

from __future__ import annotations

import copy
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import partialmethod
from typing import Any

import torch
import torch.distributed as dist
from tests.mechanism.oracle import POINTS, Forced, assert_same, total
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import neaptide
from neaptide import Handle, capture
from neaptide.runtime.session import Session

WIDTH = 192  # a block fills one of DDP's buckets, so that Dynamo's optimizer for DDP splits the graph


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.2)

    def forward(self, x):
        return x + self.last(self.drop(self.first(x).sin())).tanh()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for inner in self.blocks:
            x = inner(x)
        return x


def steps(call: Callable[..., Any], model: nn.Module, rank: int) -> list[torch.Tensor]:
    """Two steps on this rank's own data; what is left are gradients that are the average over the ranks."""
    torch.manual_seed(10 + rank)
    model.zero_grad()
    for size in (3, 4):
        total(call(torch.randn(size, WIDTH))).backward()
    gradients = [p.grad for p in model.parameters()]
    return [g.full_tensor() if hasattr(g, "full_tensor") else g.clone() for g in gradients]


def parallel(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, bucket_cap_mb=1)


def sharded(model: nn.Module) -> nn.Module:
    for inner in model.blocks:
        fully_shard(inner)
    return fully_shard(model)


def ddp_of_compiled(model: nn.Module) -> tuple[nn.Module, Iterable[Handle]]:
    return parallel(model), [neaptide.compile(model)]


def compiled_ddp(model: nn.Module) -> tuple[nn.Module, Iterable[Handle]]:
    wrapped = parallel(model)
    return wrapped, [neaptide.compile(wrapped)]


def compiled_blocks(model: nn.Module) -> tuple[nn.Module, Iterable[Handle]]:
    handles = [neaptide.compile(inner) for inner in model.blocks]
    return sharded(model), handles


def inside_a_budget() -> None:
    """Each rank's step inside budgets, measured, where Dynamo splits the graph for DDP."""
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2048, WIDTH)
    handle = neaptide.compile(model, budget="min", offload=False)
    call = parallel(model)

    def step() -> None:
        total(call(x)).backward()

    def taken(budget: int | str) -> tuple[int, int]:
        handle.budget = budget
        for _ in range(2):
            step()
            model.zero_grad()
        peak = neaptide.measure(step).peak
        model.zero_grad()
        return peak, handle.plan.peak

    before = neaptide.measure(lambda: None).peak  # what else is alive here
    own = 2 * sum(p.nbytes for p in model.parameters()) + x.nbytes  # DDP's buckets are as large as the parameters
    least, most = taken("min")[1], taken(1 << 40)[1]
    assert least < 0.8 * most, f"from {most} to {least}"
    for budget in (least, (2 * least + most) // 3, most):
        peak, planned = taken(budget)
        assert peak - before + own <= 1.02 * budget, f"{peak - before + own} of {budget}, planned {planned}"
    assert handle.stats.captures == 3


CASES = {
    "ddp of compiled": (parallel, ddp_of_compiled, 3),
    "compiled ddp": (parallel, compiled_ddp, 3),
    "compiled ddp in one graph": (parallel, compiled_ddp, 1),
    "fully_shard per block": (sharded, compiled_blocks, 1),
}


def run(case: str, rank: int, chooser: Forced) -> None:
    """Compare a case with eager on every rung; each handle has so many captures."""
    eager, compiled, graphs = CASES[case]
    torch.manual_seed(0)
    start = Net()
    model = copy.deepcopy(start)
    theirs = steps(eager(model), model, rank)
    torch._dynamo.config.optimize_ddp = "one graph" not in case
    call, handles = compiled(start)
    for name in POINTS:
        for handle in handles:
            chooser.take(name, handle)
        assert_same(steps(call, start, rank), theirs, name)
    found = [handle.stats.captures for handle in handles]
    assert found == [graphs] * len(found), f"{found} captures"


def main(rank: int, port: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    alone("inside a budget", inside_a_budget)
    chooser, plain = Forced(), capture.starting_points
    capture.starting_points = lambda *given: {**plain(*given), "everything": frozenset()}
    Session.__init__ = partialmethod(Session.__init__, bounded=True)
    Session.choose = lambda session, call, *_: chooser.choose(session, call.unit, call.dims)
    for case in CASES:
        torch._dynamo.reset()
        alone(case, lambda case=case: run(case, rank, chooser))
    dist.destroy_process_group()


def alone(case: str, check: Callable[[], None]) -> None:
    """Run a case and say how it went."""
    try:
        check()
        print(f"{case}: well", flush=True)
    except Exception:
        traceback.print_exc()
        print(f"{case}: not well", flush=True)
        os._exit(1)  # the other rank must not wait


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
