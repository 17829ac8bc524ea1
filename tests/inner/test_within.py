"""What of a loop's round goes to a compiler: every op once, arguments that look as foretold, the same results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import fx, nn

import neaptide
from neaptide.inner.within import Within, follow, within
from neaptide.loops import Looped
from neaptide.rounds import Round
from neaptide.steps import Loop
from tests.chunk.modules import Mlp, Stack

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("fresh_captures")


def rounds(model: nn.Module, x: torch.Tensor) -> tuple[list[Round], tuple[int, ...]]:
    """The rounds of a plan's loops, and the sizes it was made for."""
    handle = neaptide.compile(model.eval(), budget="min", rewrite=False)
    with torch.no_grad():
        handle(x)
    (unit,) = handle._session.units
    (piece,) = unit._pieces.values()
    loops = (step for step in piece.program.steps if isinstance(step, Loop))
    return [Round(piece.program.graph, loop, with_sizes=True) for loop in loops], unit.last


@pytest.mark.parametrize("module", [Mlp(), Stack(1)], ids=["mlp", "stack"])
def test_every_call_of_a_round_is_there_once(module: nn.Module) -> None:
    found, _ = rounds(module, torch.randn(2, 300, 32))
    for given in found:
        calls = [node for node in given.graph.nodes if node.op == "call_function"]
        assert calls == [n for each in within(given) for n in (each.nodes if isinstance(each, Within) else (each,))]


class Looking(fx.Interpreter):
    """Runs a round, and holds what its nodes look like against what was foretold."""

    def __init__(self, given: Round, dims: tuple[int, ...], rows: int) -> None:
        super().__init__(fx.GraphModule({}, given.graph), garbage_collect_values=False)
        self.looks = follow(given, dims).looks
        self.known = {s.name: dim for s, dim in zip(given.source.sizes.symbols, dims, strict=True)} | {"rows": rows, "first": 0}
        self.seen = 0

    def run_node(self, n: fx.Node) -> object:
        made = super().run_node(n)
        original = next((node for node in self.looks if node.name == n.name), None)
        if isinstance(made, torch.Tensor) and original is not None:
            told = self.looks[original].fake(self.known)
            assert (told.shape, told.dtype) == (made.shape, made.dtype), n.format_node()
            wide = [dim for dim, size in enumerate(made.shape) if size > 1]
            assert [told.stride(d) for d in wide] == [made.stride(d) for d in wide], n.format_node()
            self.seen += 1
        return made


def test_what_a_round_makes_looks_as_foretold() -> None:
    found, dims = rounds(Stack(1), torch.randn(2, 300, 32))
    seen = 0
    for given in found:
        holders = [node for node in given.graph.nodes if node.op == "placeholder"]
        looking = Looking(given, dims, 20)
        args = [looking.looks[node].fake(looking.known) for node in holders]
        for arg in args:
            if isinstance(arg, torch.Tensor):
                arg.fill_(0)
        looking.run(*args)
        seen += looking.seen
    assert seen > len(found)


def test_a_loop_gives_the_same_with_kernels() -> None:
    model = Stack(2).eval()
    inputs = [torch.randn(2, 300, 32), torch.randn(1, 517, 32), torch.randn(2, 300, 32)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        handle = neaptide.compile(model, budget="min", rewrite=False, inner="inductor")
        for x, plain in zip(inputs, expected, strict=True):
            for _ in range(2):
                torch.testing.assert_close(handle(x), plain, rtol=1e-4, atol=1e-5)
        assert handle.wait(300)
        for x, plain in zip(inputs, expected, strict=True):
            torch.testing.assert_close(handle(x), plain, rtol=1e-4, atol=1e-5)
    forms = [form for piece in handle._session.units[0]._pieces.values() for form in piece._settled.values()]
    inside = [k for form in forms for k in form.kernels if isinstance(k.fragment, Within)]
    assert inside
    loops = [module for form in forms for module in form.module.children() if isinstance(module, Looped)]
    assert any("fused_0" in loop.module.code for loop in loops)
    handle.release()


MEASURED = """
import json
import torch, neaptide
from neaptide.inner.within import Within
from tests.chunk.modules import Stack
torch.manual_seed(0)
model, x = Stack(2, 128).eval(), torch.randn(1, 3000, 128)
smallest = neaptide.plan(model, x, budget="min").peak
rows = []
for budget in (smallest, smallest * 3 // 2, smallest * 3):
    handle = neaptide.compile(model, budget=budget, inner="inductor")
    with torch.no_grad():
        for _ in range(3):
            handle(x)
        assert handle.wait(300)
        handle(x)
        took = neaptide.measure(lambda: handle(x)).peak
    pieces = handle._session.units[0]._pieces.values()
    kernels = [k for p in pieces for form in p._settled.values() for k in form.kernels]
    rows.append((took, budget, handle.plan.peak, sum(isinstance(k.fragment, Within) for k in kernels)))
    handle.release()
print(json.dumps(rows))
"""


@pytest.mark.slow
def test_budgets_hold_with_kernels_in_loops() -> None:
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    answer = subprocess.run([sys.executable, "-c", MEASURED], env=env, capture_output=True, text=True, timeout=600)
    assert answer.returncode == 0, answer.stderr[-2000:]
    rows = json.loads(answer.stdout.splitlines()[-1])
    assert all(took <= budget * 1.01 for took, budget, *_ in rows), rows
    assert any(inside for *_, inside in rows), rows
