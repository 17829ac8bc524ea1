"""Kernels made in the background: the same answers, inside the budget; and whatever goes wrong there, training goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neaptide
from neaptide.errors import InputError
from neaptide.inner import compiler
from neaptide.inner.compiler import Compiler
from tests.inner.test_straight import Model

ROOT = Path(__file__).parents[2]


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(7)
    loss = model(x).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def test_training_goes_on_with_kernels_and_gives_the_same() -> None:
    model, sizes = Model(0.1), (torch.randn(3, 40, 16), torch.randn(2, 64, 16))
    expected = [gradients(model, x) for x in sizes]
    handle = neaptide.compile(model, inner="inductor")
    for _ in range(3):
        before = [gradients(model, x) for x in sizes]
    assert handle.wait(240)
    assert handle.stats.fused > 0
    assert handle.stats.captures == 1
    after = [gradients(model, x) for x in sizes]
    for plain, first, fused in zip(expected, before, after, strict=True):
        for a, b, c in zip(plain, first, fused, strict=True):
            torch.testing.assert_close(b, a)
            torch.testing.assert_close(c, a, rtol=1e-4, atol=1e-6)
    handle.release()


MEASURED = """
import json, sys
import torch, neaptide
from tests.inner.test_straight import Model
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 16), Model(), torch.nn.Linear(16, 64))
x = torch.randn(8, 16384, 64)
smallest = neaptide.plan(model, x, budget="min", train=True, loss=lambda y: y.square().mean()).peak
whole = neaptide.plan(model, x, budget=None, train=True, loss=lambda y: y.square().mean()).peak
budget = int(smallest + (whole - smallest) * 0.4)
handle = neaptide.compile(model, budget=budget, inner="inductor")
def step():
    model.zero_grad()
    model(x).square().mean().backward()
for _ in range(4):
    step()
assert handle.wait(300)
step()
model.zero_grad()
took = neaptide.measure(step).peak
taken = [len(form.kernels) for p, _, _ in handle._session.units[0]._backwards.values() for form in p._settled.values()]
print(json.dumps([took, budget, handle.stats.fused, taken]))
"""


@pytest.mark.slow
def test_a_budget_holds_with_kernels() -> None:
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    answer = subprocess.run([sys.executable, "-c", MEASURED], env=env, capture_output=True, text=True, timeout=600)
    assert answer.returncode == 0, answer.stderr[-2000:]
    took, budget, fused, taken = json.loads(answer.stdout.splitlines()[-1])
    assert fused > 0
    assert any(taken)
    assert took <= budget * 1.02


def worked(monkeypatch: pytest.MonkeyPatch, begin: Any) -> neaptide.Handle:
    """Training with a compiler that fails as `begin` has it."""
    monkeypatch.setattr(Compiler, "_begin", begin)
    model, x = Model(), torch.randn(3, 40, 16)
    expected = gradients(model, x)
    handle = neaptide.compile(model, inner="inductor")

    def steps() -> None:
        for _ in range(3):
            gradients(model, x)
        assert handle.wait(60)

    with pytest.warns(UserWarning, match="without fused kernels"):
        steps()
    for a, b in zip(expected, gradients(model, x), strict=True):
        torch.testing.assert_close(b, a)
    handle.release()
    return handle


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(self: Compiler) -> None:
        raise FileNotFoundError("no such compiler")

    assert worked(monkeypatch, absent).stats.fused == 0


def test_a_compiler_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Compiler._begin

    def killed(self: Compiler) -> None:
        real(self)
        assert self._process is not None
        self._process.kill()

    assert worked(monkeypatch, killed).stats.fused == 0


def test_a_stretch_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.Compiler, "_ask", lambda self, about: "NotImplementedError: not that one")
    assert worked(monkeypatch, Compiler._begin).stats.fused == 0


def test_who_asks_for_kernels() -> None:
    layer = nn.Linear(2, 2)
    for inner in ("auto", None):
        handle = neaptide.compile(layer, inner=inner)
        assert handle._session.lowering is None
        handle.release()
    with pytest.raises(InputError, match="inner takes"):
        neaptide.compile(layer, inner="triton")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="last bits"):
        neaptide.compile(layer, inner="inductor", exact=True)
