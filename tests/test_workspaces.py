"""What ops hide: the rules agree with what was measured, in ints and in symbols alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch

from neaptide.accounting import as_specs
from neaptide.workspaces import RULES, Spec, is_listed, workspace

ROOT = Path(__file__).resolve().parents[1]
aten = torch.ops.aten
PLAIN = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def hidden(op: Any, *args: Any, **kwargs: Any) -> int:
    return workspace(op, *as_specs(args, kwargs), threads=2)


def test_an_op_that_nobody_listed_hides_nothing() -> None:
    assert not is_listed(aten.relu.default)
    assert hidden(aten.relu.default, torch.ones(8)) == 0


def test_accelerators_hide_nothing_that_anyone_has_measured() -> None:
    spec = Spec((4, 4), (1, 4), torch.float32, "cuda")
    assert workspace(aten._softmax.default, (spec, -1, False), {}, threads=2) == 0


def test_contiguous_input_costs_nothing_and_a_turned_one_a_copy() -> None:
    x = torch.ones(64, 128)
    assert hidden(aten._softmax.default, x, -1, False) == 0
    assert hidden(aten._softmax.default, x.t(), -1, False) == x.nbytes
    assert hidden(aten.mm.default, x, torch.ones(32, 128).t()) == 0
    assert hidden(aten.mm.default, x[:, ::2], torch.ones(64, 8)) == x.nbytes // 2


def test_half_precision_products_are_summed_in_single() -> None:
    a, b = torch.ones(64, 32, dtype=torch.bfloat16), torch.ones(32, 16, dtype=torch.bfloat16)
    assert hidden(aten.mm.default, a, b) == 64 * 16 * 4
    assert hidden(aten.mm.default, a[:1], b) == 0


def test_a_plain_convolution_copies_into_blocks_and_channels_last_only_weights() -> None:
    x, w = torch.ones(2, 32, 24, 24), torch.ones(64, 32, 3, 3)
    y = torch.conv2d(x, w, padding=1)
    assert hidden(aten.convolution.default, x, w, None, *PLAIN) == max(y.nbytes, x.nbytes + w.nbytes)
    last = x.contiguous(memory_format=torch.channels_last)
    assert hidden(aten.convolution.default, last, w, None, *PLAIN) == 2 * w.nbytes


def test_operands_of_another_type_are_converted() -> None:
    x = torch.ones(64, 64)
    assert hidden(aten.mul.Tensor, x, x.bfloat16()) == x.nbytes
    assert hidden(aten.mul.Tensor, x, torch.tensor(2, dtype=torch.float64)) == 0
    assert hidden(aten.mul.Tensor, x, 2.0) == 0
    assert hidden(aten.add_.Tensor, x.bfloat16(), x) == 2 * x.nbytes


def _cases() -> list[tuple[Any, tuple[Any, ...]]]:
    n, s = sympy.symbols("n s", positive=True, integer=True)

    def dense(*shape: Any, dtype: torch.dtype = torch.float32) -> Spec:
        stride, step = [], 1
        for side in reversed(shape):
            stride.insert(0, step)
            step = step * side
        return Spec(shape, tuple(stride), dtype)

    weight, heads = dense(64, 32, 3, 3), dense(n, 4, s, 16)
    strided = ([2, 2], [1, 1], [1, 1], False, [0, 0], 1)
    grad = dense(n, 64, s, s)
    return [
        (aten.convolution.default, (dense(n, 32, s, s), weight, None, *PLAIN)),
        (aten.convolution.default, (dense(n, 32, s, s), weight, None, *strided)),
        (aten.convolution_backward.default, (grad, dense(n, 32, s, s), weight, [64], *PLAIN, [True, True, True])),
        (aten.addmm.default, (dense(64), dense(n * s, 32), Spec((32, 64), (1, 32), torch.float32))),
        (aten.mm.default, (dense(n * s, 32, dtype=torch.bfloat16), dense(32, 64, dtype=torch.bfloat16))),
        (aten.bmm.default, (dense(n * 4, s, 16), Spec((n * 4, 16, s), (16 * s, 1, 16), torch.float32))),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, (heads, heads, heads)),
        (aten._scaled_dot_product_flash_attention_for_cpu_backward.default, (heads,) * 5),
        (aten._softmax.default, (Spec((n, s, 64), (64 * s, 1, s), torch.float32), -1, False)),
        (aten.native_layer_norm.default, (dense(n, s, 64), [64], None, None, 1e-5)),
        (aten.mul.Tensor, (dense(n, s, 64), dense(n, s, 1, dtype=torch.int64))),
        (aten.topk.default, (dense(n, s), 5)),
    ]


@pytest.mark.parametrize(("op", "args"), _cases(), ids=lambda value: str(value)[:40] if not isinstance(value, tuple) else "")
def test_a_rule_in_symbols_gives_the_same_bytes_as_in_ints(op: Any, args: tuple[Any, ...]) -> None:
    def at(value: Any, sizes: dict[str, int]) -> Any:
        if isinstance(value, Spec):
            return Spec(at(value.shape, sizes), at(value.stride, sizes), value.dtype)
        if isinstance(value, tuple):
            return tuple(at(item, sizes) for item in value)
        return int(value.subs(sizes)) if isinstance(value, sympy.Expr) else value

    symbolic = sympy.sympify(workspace(op, args, {}, threads=2))
    for sizes in ({"n": 2, "s": 1024}, {"n": 3, "s": 800}):
        named = {symbol: sizes[symbol.name] for symbol in sympy.symbols("n s", positive=True, integer=True)}
        assert int(symbolic.subs(named)) == workspace(op, at(args, named), {}, threads=2)


def test_every_rule_is_for_an_op_that_the_benchmark_measures() -> None:
    text = (ROOT / "benchmarks" / "workspaces.py").read_text()
    names = {op._schema.name.removeprefix("aten::").rstrip("_") for op in RULES}
    generated = {"_log_softmax", "_log_softmax_backward_data", "_softmax_backward_data"}  # by name, in a loop
    alike = {"sub", "ne", "lt", "le", "gt", "ge", "maximum", "minimum"}  # share one rule, and one kernel's front end
    assert not {name for name in names - generated - alike if name not in text}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's high-water mark is Linux's")
def test_a_measured_convolution_hides_what_the_table_says() -> None:
    script = """
import json, torch
from neaptide.accounting import as_specs
from neaptide.measurement import live_tensor_bytes, measure
from neaptide.workspaces import workspace
op = torch.ops.aten.convolution.default
args = (torch.rand(4, 64, 96, 96), torch.rand(64, 64, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
with torch.no_grad():
    op(*args)
    live, found = live_tensor_bytes(), []
    for _ in range(2):
        done = measure(op, *args)
        found.append(done.peak - live - done.value.nbytes)
        del done
print(json.dumps([min(found), workspace(op, *as_specs(args, {}), torch.get_num_threads())]))
"""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    measured, table = json.loads(done.stdout)
    assert table == pytest.approx(measured, rel=0.1)
