"""Memory that runs out: the step is run again, tighter, and ends as if nothing had happened."""

from __future__ import annotations

import itertools
import random
import resource
import subprocess
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

import neaptide
from neaptide import BudgetError
from neaptide.runtime.recover import ran_out
from neaptide.writer import Emitted


class Model(nn.Module):
    """Dropout and batch statistics: what a repeated step must not do twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.dropout(torch.tanh(layer(self.norm(x))), 0.2)
        return x.square().mean()


BATCHES = [torch.randn(rows, 32, generator=torch.Generator().manual_seed(rows)) for rows in (3000, 2000, 4000, 3000)]


class Failing:
    """Runs pieces op by op; at one of the ops, once, memory runs out."""

    def __init__(self, at: int | None) -> None:
        self.at, self.count, self.failures = at, 0, 0

    def __call__(self, piece: Emitted, args: list[Any]) -> Sequence[Any]:
        outer = self

        class Counted(fx.Interpreter):
            def run_node(self, n: fx.Node) -> Any:
                outer.count += n.op == "call_function"
                if outer.count == outer.at:
                    outer.at = None
                    outer.failures += 1
                    raise torch.OutOfMemoryError("tried to allocate more than there is")
                return super().run_node(n)

        return Counted(piece.module).boxed_run(args)


def trained(at: int | None, budget: Any) -> tuple[list[Tensor], Failing, neaptide.Handle]:
    """The weights and buffers after a few steps of two backwards each, where the op number `at` fails."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    handle = neaptide.compile(model, budget=budget, optimizer=optimizer)
    failing = handle._session.run = Failing(at)
    torch.manual_seed(3)
    for batch in BATCHES:

        def closure(batch: Tensor = batch) -> None:
            optimizer.zero_grad()
            for half in batch.chunk(2):
                model(half).backward()
            optimizer.step()

        handle.step(closure)
    return [*model.parameters(), *model.buffers()], failing, handle


def test_a_failure_anywhere_leaves_the_weights_of_an_undisturbed_run() -> None:
    expected, counted, _ = trained(None, "1GiB")
    draw = random.Random(0)
    for at in sorted(draw.sample(range(2, counted.count), 4)):
        got, failing, handle = trained(at, "1GiB")
        assert failing.failures == 1
        assert handle.stats.recoveries == 1
        assert all(map(torch.equal, got, expected)), at


def test_where_nothing_smaller_exists_it_is_said_so() -> None:
    model = Model()
    handle = neaptide.compile(model, budget="1GiB")

    def never(piece: Emitted, args: list[Any]) -> Sequence[Any]:
        raise torch.OutOfMemoryError("there is nothing")

    handle._session.run = never
    with pytest.raises(BudgetError, match="smallest reachable"):
        handle.step(lambda: model(BATCHES[0]).backward())
    assert 0 < handle.stats.recoveries < 60


def test_other_errors_and_half_done_updates_go_on() -> None:
    model = Model()
    handle = neaptide.compile(model, budget="1GiB")
    with pytest.raises(ZeroDivisionError):
        handle.step(lambda: 1 / 0)

    def closure() -> None:
        model(BATCHES[0]).backward()
        with torch.no_grad():
            model.norm.weight.add_(1)
        raise torch.OutOfMemoryError("in the optimizer")

    with pytest.raises(torch.OutOfMemoryError):
        handle.step(closure)
    assert handle.stats.recoveries == 0


def test_gradients_from_before_the_step_are_put_back() -> None:
    def run(fails: bool) -> list[Tensor]:
        model = Model()
        model.register_parameter("wide", nn.Parameter(torch.zeros(1 << 19)))  # its gradient waits on the disk
        handle = neaptide.compile(model, budget="1GiB")
        tries = itertools.count()

        def closure() -> None:
            model(BATCHES[0]).backward()
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter) if parameter.grad is None else parameter.grad.add_(1)
            if fails and next(tries) == 1:
                raise torch.OutOfMemoryError("once")

        torch.manual_seed(5)
        handle.step(closure)
        handle.step(closure)
        return [p.grad for p in model.parameters() if p.grad is not None]

    assert all(map(torch.equal, run(True), run(False)))


def test_gradients_that_a_step_lets_go_of_are_gone_while_it_runs_and_there_again_if_it_is_repeated() -> None:
    model = Model()
    model.register_parameter("wide", nn.Parameter(torch.zeros(1 << 19)))
    handle = neaptide.compile(model, budget="1GiB")
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = [weakref.ref(parameter.grad) for parameter in model.parameters()]
    found: list[bool] = []

    def closure() -> None:
        found.append(all(p.grad is not None and bool((p.grad == 1).all()) for p in model.parameters()))
        model.zero_grad()
        assert all(reference() is None for reference in before)
        model(BATCHES[0]).backward()
        if len(found) < 3:
            raise torch.OutOfMemoryError("twice")

    handle.step(closure)
    assert found == [True, True, True]


def test_what_the_cpu_allocator_says_is_understood() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert ran_out(error.value)
    assert not ran_out(RuntimeError("size mismatch"))
    assert not ran_out(BudgetError("no", need=1, limit=0, smallest=1))


LIMITED = """
import random, resource, sys, torch, neaptide
from tests.test_recover import Deep
ours = sys.argv[1] == "ours"
model = Deep()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x = torch.randn(24, 512, 64)
budget = neaptide.plan(model, x, budget="min", train=True, optimizer=optimizer, offload=False).peak * 3 // 2
handle = neaptide.compile(model, budget=budget, optimizer=optimizer, offload=False) if ours else None
def step(x):
    def closure():
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
    handle.step(closure) if handle else closure()
step(x[:8].clone())
held = int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) * 1024
own = 2 * sum(p.nbytes for p in model.parameters()) + x.nbytes
limit = held + int(1.1 * (budget - own))
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
draw = random.Random(0)
for _ in range(50):
    step(x[:, : draw.randrange(128, 513)].contiguous())
print("done", handle.stats.recoveries if handle else 0)
"""


class Deep(nn.Module):
    """So many activations that they are most of what a step takes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(16))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x.square().mean()


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_DATA"), reason="there is no such limit here")
@pytest.mark.parametrize("way", ["ours", "eager"])
def test_under_a_real_limit_ours_finishes_and_eager_dies(way: str) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, way], capture_output=True, text=True, timeout=300, check=False)
    if way == "ours":
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.startswith("done")
    else:
        assert done.returncode != 0
        assert "allocate" in done.stderr or "bad_alloc" in done.stderr
