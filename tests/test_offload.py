"""What is sent away between forward and backward: lower peaks than recomputation alone, the same bits, nothing left behind."""

from __future__ import annotations

import copy
import errno
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import neaptide
from neaptide import away
from neaptide.away import Store
from neaptide.errors import OffloadError
from neaptide.hardware import time_probes

BLOCKS, WIDTH = 12, 128
X = torch.randn(96, 64, WIDTH)


class Block(nn.Module):
    """Wide inside, so that what is between the blocks is little beside what is in one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.dropout(self.down(torch.tanh(self.up(self.norm(x)))), 0.1)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x).square().mean()


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def step(model: nn.Module, x: Tensor = X) -> list[Tensor]:
    """The gradients of a step with the same dropout every time."""
    model.zero_grad()
    torch.manual_seed(1)
    model(x).backward()
    return gradients(model)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("NEAPTIDE_OFFLOAD", str(tmp_path))
    away.place.cache_clear()
    yield tmp_path
    away.place.cache_clear()


def test_a_store_gives_back_what_it_got(folder: Path) -> None:
    store = Store()
    sent = {
        "1": torch.randn(3, 5, 7).permute(2, 0, 1),
        "2": torch.randn(9, 4).to(torch.bfloat16),
        "3": torch.randn(40)[8:24],
        "4": torch.randint(2, (6, 6)).bool(),
    }
    for name, tensor in sent.items():
        away.send(store, name, tensor)
    for name, tensor in reversed(sent.items()):
        back = away.fetch(store, name, "1")
        assert back.dtype == tensor.dtype
        assert back.stride() == tensor.stride()
        assert torch.equal(back, tensor)
    assert not list(folder.iterdir())
    assert torch.equal(away.fetch(store, "1", None), sent["1"])  # as often as a backward is repeated


def test_memory_is_no_place_to_send_to(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("NEAPTIDE_OFFLOAD", "/dev/shm")
    away.place.cache_clear()
    with pytest.raises(OffloadError, match="NEAPTIDE_OFFLOAD"):
        away.send(Store(), "x", torch.ones(3))


def test_a_disk_that_takes_nothing_is_not_planned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(away, "open_unnamed", lambda: os.open("/dev/full", os.O_RDWR))
    assert time_probes("cpu")[0]["sent"] == math.inf


def test_a_full_disk_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(away, "open_unnamed", lambda: os.open("/dev/full", os.O_RDWR))
    with pytest.raises(OffloadError, match="the disk is full") as full:
        away.send(Store(), "x", torch.ones(3))
    assert full.value.errno == errno.ENOSPC


def test_less_than_recomputation_alone_reaches_and_the_same_bits(folder: Path) -> None:
    plain, model = Stack(), Stack()
    expected = step(plain)
    alone = neaptide.plan(model, X, budget="min", train=True, offload=False)
    assert alone.graphs[0].sent == 0
    handle = neaptide.compile(model, budget="min")
    for _ in range(3):
        assert all(map(torch.equal, step(model), expected))
    assert handle.plan.graphs[0].sent > 0
    assert handle.plan.peak < 0.7 * alone.peak
    model.zero_grad()
    before = neaptide.measure(lambda: None).peak  # what is alive already, here and in other tests
    taken = neaptide.measure(lambda: model(X).backward()).peak - before
    model.zero_grad()
    plan = handle.plan
    assert taken <= 1.05 * (plan.peak - plan.parts["parameter"] - plan.parts["input"])
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_two_calls_under_way_a_second_backward_and_hooks(folder: Path) -> None:
    plain, model = Stack(), Stack()
    neaptide.compile(model, budget="min")
    for under_test in (plain, model):
        step(under_test)
        under_test.zero_grad()
        torch.manual_seed(2)
        with torch.autograd.graph.save_on_cpu():
            first, second = under_test(X[:48]), under_test(X[48:])
        first.backward(retain_graph=True)
        second.backward()
        first.backward()
    assert all(map(torch.equal, gradients(model), gradients(plain)))


@pytest.mark.slow
def test_a_copy_and_other_sizes_run_as_well(folder: Path) -> None:
    model = Stack()
    neaptide.compile(model, budget="min")
    for rows in (96, 71):
        assert all(map(torch.equal, step(model, X[:rows]), step(copy.deepcopy(model), X[:rows])))


def test_nothing_is_left_behind_by_a_process_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time, torch; from neaptide import away; store = away.Store();"
        "away.send(store, 'x', torch.ones(1 << 20)); print('sent', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "NEAPTIDE_OFFLOAD": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        held = f"/proc/{process.pid}/fd"
        assert any(str(tmp_path) in os.readlink(f"{held}/{name}") for name in os.listdir(held))
        process.send_signal(signal.SIGKILL)
    assert not list(tmp_path.iterdir())
