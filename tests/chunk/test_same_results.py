"""What runs in parts gives what the whole gives, at any length, with one capture."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import neaptide
from tests.chunk.modules import Attention, Images, Mlp, Nearest, Stack, Words

pytestmark = pytest.mark.usefixtures("fresh_captures")


def rows(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, 32)


def run(module: nn.Module, inputs: list[torch.Tensor], budget: str | None, **settings: bool) -> tuple[list, neaptide.Handle]:
    handle = neaptide.compile(module, budget=budget, **settings)
    with torch.no_grad():
        results = [module(x) for x in inputs]
    return results, handle


CASES = {
    "mlp": (Mlp, rows),
    "attention": (Attention, rows),
    "stack": (Stack, rows),
    "nearest": (Nearest, rows),
    "words": (Words, lambda batch, length: torch.randint(0, 100, (batch, length))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batch", [1, 3])
def test_parts_give_what_the_whole_gives_at_lengths_that_do_not_divide(name: str, batch: int) -> None:
    make, inputs_of = CASES[name]
    module = make().eval()
    inputs = [inputs_of(batch, length) for length in (517, 64, 1031)]
    whole, handle = run(module, inputs, None)
    handle.release()
    parts, handle = run(module, inputs, "min", rewrite=False)
    assert handle.plan.graphs[0].regions
    assert handle.stats.captures == 1
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("module", [Mlp(), Words()], ids=["mlp", "words"])
def test_rows_that_are_independent_come_out_bit_for_bit(module: nn.Module) -> None:
    inputs = [torch.randint(0, 100, (1, 1031))] if isinstance(module, Words) else [rows(1, 1031)]
    (whole,), handle = run(module, inputs, None)
    handle.release()
    (parts,), handle = run(module, inputs, "min")
    assert handle.plan.graphs[0].regions
    assert torch.equal(whole, parts)


def test_half_precision_keeps_its_type() -> None:
    module = Mlp(dtype=torch.bfloat16)
    x = rows(1, 700).bfloat16()
    (whole,), handle = run(module, [x], None)
    handle.release()
    (parts,), _ = run(module, [x], "min")
    assert parts.dtype is torch.bfloat16
    torch.testing.assert_close(parts, whole)


def test_images_run_a_few_at_a_time() -> None:
    module = Images()
    x = torch.randn(8, 3, 32, 32)
    (whole,), handle = run(module, [x], None)
    handle.release()
    (parts,), handle = run(module, [x], "min")
    assert handle.plan.graphs[0].regions[0].extent == 8
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)


def test_exact_splits_no_sum_and_rewrites_nothing() -> None:
    def squares(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() * 2).sum(0)

    x = torch.randn(4096, 16)
    handle = neaptide.compile(squares, budget="min", exact=True)
    with torch.no_grad():
        assert torch.equal(handle(x), squares(x))


def test_a_sum_is_put_together_from_its_parts() -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() * 2).sum(0)

    x = torch.randn(4096, 16)
    handle = neaptide.compile(total, budget="min")
    with torch.no_grad():
        torch.testing.assert_close(handle(x), total(x), rtol=1e-5, atol=1e-5)


def test_random_numbers_and_effects_stay_out_of_loops() -> None:
    def noisy(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        seen.add_(1)
        return (x.exp() * torch.rand_like(x)).tanh() * 2

    x, seen = torch.randn(2048, 64), torch.zeros(1)
    handle = neaptide.compile(noisy, budget="min")
    with torch.no_grad():
        torch.manual_seed(0)
        got = handle(x, seen)
        torch.manual_seed(0)
        expected = noisy(x, seen)
    assert torch.equal(got, expected)
    assert seen.item() == 2


def test_identical_layers_share_the_code_of_their_loops() -> None:
    torch.manual_seed(0)
    module = Stack(layers=4)
    x = rows(2, 700)
    with torch.no_grad():
        expected = module(x)
        handle = neaptide.compile(module, budget="min")
        torch.testing.assert_close(handle(x), expected, rtol=1e-5, atol=1e-5)
    (piece,) = handle._session.units[0]._pieces.values()
    calls = [node.target for node in piece.plain.module.graph.nodes if node.op == "call_module"]
    assert len(calls) == len(handle.plan.graphs[0].regions) >= 4
    assert len(set(calls)) < len(calls)
