"""Methods switched on: the same gradients where they promise that, what they take as predicted, and nothing left behind."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import neaptide
from neaptide.dryrun import dry_run, run_step
from neaptide.methods import METHODS, Method

WIDTH = 128
ROOT = Path(__file__).parents[1]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


def made() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), torch.randn(4, 1024, WIDTH)


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def stepped(method: Method | None) -> tuple[list[torch.Tensor], nn.Module]:
    model, optimizer, x = made()

    def steps() -> None:
        torch.manual_seed(1)
        for _ in range(2):
            run_step(model, x, True, optimizer, loss)
            optimizer.zero_grad()

    if method is None:
        steps()
    else:
        with method.around([model], optimizer):
            steps()
    return [p.detach().clone() for p in model.parameters()], model


@pytest.mark.parametrize("name", list(METHODS))
def test_exact_ones_train_to_the_same_bits_and_lossy_ones_come_near(name: str) -> None:
    method = METHODS[name]
    ours, model = stepped(method)
    theirs, plain = stepped(None)
    if method.lossy:
        one, other = (torch.cat([t.flatten() for t in each]) for each in (ours, theirs))
        assert float((one - other).norm() / other.norm()) < 0.02
    else:
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert repr(model) == repr(plain)
    assert all("forward" not in vars(m) and not m._forward_hooks for m in model.modules())
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())


def peak_of(method: Method | None) -> tuple[int, int]:
    """Predicted and measured."""
    model, optimizer, x = made()
    run_step(model, x, True, optimizer, loss)
    optimizer.zero_grad()
    around: Callable | None = None if method is None else method.around
    predicted = dry_run(model, x, True, optimizer, loss, around=around).peak

    def step() -> None:
        run_step(model, x, True, optimizer, loss)

    with contextlib.nullcontext() if method is None else method.around([model], optimizer):
        step()
        optimizer.zero_grad()
        return predicted, neaptide.measure(step).peak


def peaks() -> dict[str, list[int]]:
    """Of every method and of none, from a process in which nothing else was ever alive."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "tests.test_methods"]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


ABOVE = {"autocast bf16": 1.15, "int4 activations": 1.08}
"""Whether products in half precision need a sum in single precision beside them depends on the processor. Packing into four
bits takes less than the sum of its steps says: 3 to 5 % of this peak."""


def test_what_they_take_is_as_predicted() -> None:
    """All in one, since they share a process that takes half a minute."""
    taken = peaks()
    assert list(taken) == ["", *METHODS]
    off = {name: predicted / measured for name, (predicted, measured) in taken.items()}
    assert not {name: ratio for name, ratio in off.items() if not 0.98 < ratio < ABOVE.get(name, 1.03)}


def test_several_at_once() -> None:
    both = METHODS["checkpoint blocks"] + METHODS["step in backward"]
    ours, _ = stepped(both)
    theirs, _ = stepped(None)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_copy_of_a_switched_model_is_plain() -> None:
    model, optimizer, x = made()
    with METHODS["checkpoint blocks"].around([model], optimizer):
        twin = copy.deepcopy(model)
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.nbytes) or t, lambda t: t):
        twin(x)
    assert len(saved) > 16  # nothing is checkpointed


if __name__ == "__main__":
    print(json.dumps({name: peak_of(METHODS.get(name)) for name in ("", *METHODS)}))
