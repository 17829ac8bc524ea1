"""What ops allocate inside themselves, measured, beside what the table in `neaptide.workspaces` says.

Each op kind runs in a process of its own with MALLOC_MMAP_THRESHOLD_=65536. A call to warm up, then for each call the
hidden bytes are VmHWM - RSS at its start - the bytes of its outputs; the lesser of two repeats counts.

    python benchmarks/workspaces.py [--only convolution,mm] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from neaptide.accounting import storages, tensors_in
from neaptide.allocator import allocated

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.asking import AskError, ask  # noqa: E402

aten = torch.ops.aten
F32, BF16 = torch.float32, torch.bfloat16
Call = tuple[str, Any, tuple[Any, ...], dict[str, Any]]
GROUPS: dict[str, Callable[[], Iterator[Call]]] = {}


def group(make: Callable[[], Iterator[Call]]) -> Callable[[], Iterator[Call]]:
    GROUPS[make.__name__] = make
    return make


def rand(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.rand(shape).to(dtype)


def last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


# batch, channels in, channels out, side, kernel, stride, groups
CONVOLUTIONS = (
    (1, 64, 64, 112, 3, 1, 1),
    (4, 64, 64, 112, 3, 1, 1),
    (8, 64, 64, 112, 3, 1, 1),
    (1, 256, 256, 64, 3, 1, 1),
    (1, 512, 512, 64, 3, 1, 1),
    (4, 128, 256, 56, 3, 2, 1),
    (4, 256, 512, 56, 1, 1, 1),
    (4, 512, 256, 56, 1, 1, 1),
    (4, 256, 512, 56, 1, 2, 1),
    (4, 3, 64, 224, 7, 2, 1),
    (1, 3, 768, 384, 16, 16, 1),
    (4, 4, 128, 96, 3, 1, 1),
    (4, 128, 4, 96, 3, 1, 1),
    (4, 128, 128, 112, 3, 1, 128),
    (4, 128, 128, 112, 3, 1, 4),
    (1, 100, 100, 150, 3, 1, 1),
    (2, 33, 65, 150, 3, 1, 1),
)


@group
def convolution() -> Iterator[Call]:
    for n, c, k, s, r, stride, groups in CONVOLUTIONS:
        x, w, b = rand(n, c, s, s), rand(k, c // groups, r, r), rand(k)
        pad = r // 2 if r != 16 else 0
        tail = ([stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups)
        label = f"n{n} {c}->{k} {s}x{s} k{r} s{stride} g{groups}"
        yield label, aten.convolution.default, (x, w, b, *tail), {}
        yield label + " no bias", aten.convolution.default, (x, w, None, *tail), {}
        yield label + " channels_last", aten.convolution.default, (last(x), w, b, *tail), {}
        half = (x.bfloat16(), w.bfloat16(), b.bfloat16())
        yield label + " bfloat16", aten.convolution.default, (*half, *tail), {}
        yield label + " both channels_last", aten.convolution.default, (last(x), last(w), b, *tail), {}
        yield label + " dilated", aten.convolution.default, (x, w, b, tail[0], [2 * pad] * 2, [2, 2], *tail[3:]), {}


@group
def convolution_transposed() -> Iterator[Call]:
    for n, c, k, s, r, stride in ((1, 256, 128, 64, 4, 2), (4, 128, 64, 64, 2, 2), (2, 64, 64, 96, 3, 1)):
        tail = ([stride] * 2, [1 if r > 2 else 0] * 2, [1, 1], True, [0, 0], 1)
        label = f"transposed n{n} {c}->{k} {s}x{s} k{r} s{stride}"
        yield label, aten.convolution.default, (rand(n, c, s, s), rand(c, k, r, r), rand(k), *tail), {}
        yield (
            label + " channels_last",
            aten.convolution.default,
            (last(rand(n, c, s, s)), rand(c, k, r, r), None, *tail),
            {},
        )


@group
def convolution_1d_3d() -> Iterator[Call]:
    for n, c, k, s, r in ((4, 128, 128, 8192, 3), (2, 256, 512, 4096, 1), (1, 80, 512, 6000, 3)):
        tail = ([1], [r // 2], [1], False, [0], 1)
        yield f"1d n{n} {c}->{k} {s} k{r}", aten.convolution.default, (rand(n, c, s), rand(k, c, r), rand(k), *tail), {}
    for n, c, k, s, r in ((1, 32, 64, 32, 3), (2, 64, 64, 24, 3)):
        tail = ([1] * 3, [r // 2] * 3, [1] * 3, False, [0] * 3, 1)
        args = (rand(n, c, s, s, s), rand(k, c, r, r, r), rand(k), *tail)
        yield f"3d n{n} {c}->{k} {s} k{r}", aten.convolution.default, args, {}


@group
def convolution_backward() -> Iterator[Call]:
    for n, c, k, s, r, stride, groups in CONVOLUTIONS:
        pad = r // 2 if r != 16 else 0
        x, w = rand(n, c, s, s), rand(k, c // groups, r, r)
        tail = ([stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups)
        grad = aten.convolution.default(x, w, None, *tail)
        label = f"n{n} {c}->{k} {s}x{s} k{r} s{stride} g{groups}"
        op = aten.convolution_backward.default
        yield label, op, (grad, x, w, [k], *tail, [True, True, True]), {}
        yield label + " no bias", op, (grad, x, w, None, *tail, [True, True, False]), {}
        yield label + " input only", op, (grad, x, w, None, *tail, [True, False, False]), {}
        yield label + " weight only", op, (grad, x, w, None, *tail, [False, True, False]), {}
        yield label + " channels_last", op, (last(grad), last(x), w, [k], *tail, [True, True, True]), {}


@group
def mm() -> Iterator[Call]:
    for dtype in (F32, BF16):
        for m, k, n in ((1024, 1024, 1024), (512, 768, 50257), (2048, 4096, 1024), (4096, 64, 4096), (1, 4096, 4096)):
            a, b = rand(m, k, dtype=dtype), rand(k, n, dtype=dtype)
            at, bt = rand(k, m, dtype=dtype).t(), rand(n, k, dtype=dtype).t()
            label = f"{dtype} {m}x{k}x{n}".removeprefix("torch.")
            yield label, aten.mm.default, (a, b), {}
            yield label + " a.t", aten.mm.default, (at, b), {}
            yield label + " b.t", aten.mm.default, (a, bt), {}
            yield label + " both.t", aten.mm.default, (at, bt), {}
            yield label + " a strided", aten.mm.default, (rand(m, 2 * k, dtype=dtype)[:, ::2], b), {}
            yield label + " a cut", aten.mm.default, (rand(m, 2 * k, dtype=dtype)[:, :k], b), {}
            yield label + " b strided", aten.mm.default, (a, rand(k, 2 * n, dtype=dtype)[:, ::2]), {}
            yield label + " addmm", aten.addmm.default, (rand(n, dtype=dtype), a, bt), {}


@group
def bmm() -> Iterator[Call]:
    for dtype in (F32, BF16):
        for batch, m, k, n in ((48, 512, 64, 512), (48, 512, 512, 64), (8, 512, 768, 768), (4, 2048, 64, 2048)):
            a, b = rand(batch, m, k, dtype=dtype), rand(batch, k, n, dtype=dtype)
            label = f"{dtype} {batch}x{m}x{k}x{n}".removeprefix("torch.")
            yield label, aten.bmm.default, (a, b), {}
            yield label + " b.t", aten.bmm.default, (a, rand(batch, n, k, dtype=dtype).transpose(1, 2)), {}
            yield label + " a.t", aten.bmm.default, (rand(batch, k, m, dtype=dtype).transpose(1, 2), b), {}
            yield label + " a permuted", aten.bmm.default, (rand(m, batch, k, dtype=dtype).transpose(0, 1), b), {}
            yield label + " b expanded", aten.bmm.default, (a, rand(1, k, n, dtype=dtype).expand(batch, k, n)), {}
            yield label + " a strided", aten.bmm.default, (rand(batch, m, 2 * k, dtype=dtype)[..., ::2], b), {}
            yield label + " baddbmm", aten.baddbmm.default, (rand(batch, m, n, dtype=dtype), a, b), {}
            yield label + " linear", aten.linear.default, (a, rand(n, k, dtype=dtype), rand(n, dtype=dtype)), {}
            yield label + " matmul", aten.matmul.default, (a, rand(k, n, dtype=dtype)), {}
            heads = rand(2, m, batch // 2, k, dtype=dtype).transpose(1, 2)
            yield label + " matmul permuted", aten.matmul.default, (heads, b.view(2, batch // 2, k, n)), {}


@group
def attention() -> Iterator[Call]:
    flash, back = (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )
    for dtype in (F32, BF16):
        for b, h, s, d in ((1, 12, 512, 64), (4, 12, 512, 64), (1, 12, 4096, 64), (2, 8, 1024, 128), (2, 8, 2048, 40)):
            q, k, v = (rand(b, h, s, d, dtype=dtype) for _ in range(3))
            label = f"{dtype} {b}x{h}x{s}x{d}".removeprefix("torch.")
            out, lse = flash(q, k, v)
            mask = rand(b, 1, s, s, dtype=dtype)
            yield label, flash.default, (q, k, v), {}
            yield label + " causal", flash.default, (q, k, v, 0.0, True), {}
            yield label + " mask", flash.default, (q, k, v), {"attn_mask": mask}
            heads = rand(b, s, h, d, dtype=dtype).transpose(1, 2)
            yield label + " permuted", flash.default, (heads, heads, heads), {}
            yield label + " backward", back.default, (out, q, k, v, out, lse, 0.0, False), {}
            dense = out.contiguous()
            yield label + " backward dense", back.default, (dense, q, k, v, out, lse, 0.0, False), {}
            yield label + " backward mask", back.default, (out, q, k, v, out, lse, 0.0, False), {"attn_mask": mask}
            yield label + " backward permuted", back.default, (out, heads, heads, heads, out, lse, 0.0, True), {}
            if s <= 1024:
                yield label + " math", aten._scaled_dot_product_attention_math.default, (q, k, v), {}
                yield (
                    label + " math causal",
                    aten._scaled_dot_product_attention_math.default,
                    (q, k, v, None, 0.0, True),
                    {},
                )
                yield label + " math mask", aten._scaled_dot_product_attention_math.default, (q, k, v, mask), {}


@group
def softmax() -> Iterator[Call]:
    for dtype in (F32, BF16):
        for shape, dim in (((8, 12, 256, 256), -1), ((1024, 50257), -1), ((64, 512, 128), 1), ((4096, 1024), 0)):
            x = rand(*shape, dtype=dtype)
            for name in ("_softmax", "_log_softmax"):
                op, back = getattr(aten, name).default, getattr(aten, name + "_backward_data").default
                y = op(x, dim, False)
                yield f"{dtype} {name} {shape} {dim}", op, (x, dim, False), {}
                yield (
                    f"{dtype} {name} {shape} {dim} permuted",
                    op,
                    (x.transpose(0, 1).contiguous().transpose(0, 1), dim, False),
                    {},
                )
                yield f"{dtype} {name} {shape} {dim} backward", back, (x, y, dim, dtype), {}
    yield "half to float", aten._log_softmax.default, (rand(1024, 32000, dtype=torch.float16), -1, False), {}


@group
def norms() -> Iterator[Call]:
    for dtype in (F32, BF16):
        x, w, b = rand(8, 512, 768, dtype=dtype), rand(768, dtype=dtype), rand(768, dtype=dtype)
        y, mean, rstd = aten.native_layer_norm(x, [768], w, b, 1e-5)
        yield f"{dtype} layer_norm", aten.native_layer_norm.default, (x, [768], w, b, 1e-5), {}
        wide = rand(8, 768, 512, dtype=dtype).transpose(1, 2)
        yield f"{dtype} layer_norm permuted", aten.native_layer_norm.default, (wide, [768], w, b, 1e-5), {}
        back = aten.native_layer_norm_backward.default
        yield f"{dtype} layer_norm backward", back, (y, x, [768], mean, rstd, w, b, [True] * 3), {}
        yield f"{dtype} layer_norm backward permuted", back, (wide, x, [768], mean, rstd, w, b, [True] * 3), {}
        yield f"{dtype} rms_norm", aten._fused_rms_norm.default, (x, [768], w, 1e-5), {}
        for n, c, s in ((4, 128, 96), (1, 320, 128), (8, 64, 64)):
            x, w, b = rand(n, c, s, s, dtype=dtype), rand(c, dtype=dtype), rand(c, dtype=dtype)
            tail = (n, c, s * s, 32)
            y, mean, rstd = aten.native_group_norm(x, w, b, *tail, 1e-5)
            label = f"{dtype} {n}x{c}x{s}x{s}"
            yield f"{label} group_norm", aten.native_group_norm.default, (x, w, b, *tail, 1e-5), {}
            yield f"{label} group_norm channels_last", aten.native_group_norm.default, (last(x), w, b, *tail, 1e-5), {}
            back = aten.native_group_norm_backward.default
            yield f"{label} group_norm backward", back, (y, x, mean, rstd, w, *tail, [True] * 3), {}
            yield f"{label} group_norm backward mixed", back, (last(y), x, mean, rstd, w, *tail, [True] * 3), {}
            for train in (True, False):
                run = (torch.zeros(c), torch.ones(c))
                args = (x, w.float(), b.float(), *run, train, 0.1, 1e-5)
                yield f"{label} batch_norm train={train}", aten.native_batch_norm.default, args, {}
                yield (
                    f"{label} batch_norm channels_last train={train}",
                    aten.native_batch_norm.default,
                    (last(x), *args[1:]),
                    {},
                )
                y, mean, rstd = aten.native_batch_norm(*args)
                back = (y, x, w.float(), *run, mean, rstd, train, 1e-5, [True] * 3)
                yield f"{label} batch_norm backward train={train}", aten.native_batch_norm_backward.default, back, {}
                mixed = (last(y), *back[1:])
                yield (
                    f"{label} batch_norm backward mixed train={train}",
                    aten.native_batch_norm_backward.default,
                    mixed,
                    {},
                )


@group
def pointwise() -> Iterator[Call]:
    for dtype in (F32, BF16):
        x, y = rand(4, 1024, 2048, dtype=dtype), rand(4, 1024, 2048, dtype=dtype)
        turned = rand(4, 2048, 1024, dtype=dtype).transpose(1, 2)
        for name in ("gelu", "silu", "relu", "exp", "tanh", "sigmoid"):
            yield f"{dtype} {name}", getattr(aten, name).default, (x,), {}
            yield f"{dtype} {name} turned", getattr(aten, name).default, (turned,), {}
        yield f"{dtype} gelu_backward", aten.gelu_backward.default, (x, y), {}
        yield f"{dtype} gelu_backward turned", aten.gelu_backward.default, (x, turned), {}
        yield f"{dtype} silu_backward", aten.silu_backward.default, (x, y), {}
        yield f"{dtype} threshold_backward", aten.threshold_backward.default, (x, y, 0), {}
        yield f"{dtype} add", aten.add.Tensor, (x, turned), {}
        yield f"{dtype} add_", aten.add_.Tensor, (x, turned), {}
        yield f"{dtype} mul scalar", aten.mul.Scalar, (x, 2.0), {}
        yield f"{dtype} mul float32", aten.mul.Tensor, (x, y.float()), {}
        yield f"{dtype} mul bool", aten.mul.Tensor, (x, x > 0.5), {}
        yield f"{dtype} mul int64 by row", aten.mul.Tensor, (x, torch.ones(4, 1024, 1, dtype=torch.int64)), {}
        yield f"{dtype} mul number", aten.mul.Tensor, (x, torch.tensor(2.0)), {}
        yield f"{dtype} add_ float32", aten.add_.Tensor, (x, y.float()), {}
        yield f"{dtype} add_ bfloat16", aten.add_.Tensor, (x, y.bfloat16()), {}
        yield f"{dtype} where mixed", aten.where.self, (x > 0.5, x, y.float()), {}
        yield f"{dtype} div", aten.div.Tensor, (x, y), {}
        yield f"{dtype} pow 2", aten.pow.Tensor_Scalar, (x, 2), {}
        yield f"{dtype} pow 3.5", aten.pow.Tensor_Scalar, (x, 3.5), {}
        yield f"{dtype} pow tensor", aten.pow.Tensor_Tensor, (x, y), {}
        yield f"{dtype} where", aten.where.self, (x > 0.5, x, y), {}
        yield f"{dtype} where scalar", aten.where.self, (x > 0.5, x, torch.tensor(0.0, dtype=dtype)), {}
        yield f"{dtype} masked_fill", aten.masked_fill.Scalar, (x, x > 0.5, 0.0), {}
        yield f"{dtype} native_dropout", aten.native_dropout.default, (x, 0.1, True), {}
        yield f"{dtype} native_dropout_backward", aten.native_dropout_backward.default, (x, x > 0.5, 1.1), {}
        yield f"{dtype} bernoulli_", aten.bernoulli_.float, (x, 0.5), {}
        yield f"{dtype} normal_", aten.normal_.default, (x,), {}
        yield f"{dtype} addcmul_", aten.addcmul_.default, (x, y, y), {}
        yield f"{dtype} addcdiv_", aten.addcdiv_.default, (x, y, y), {}
        yield f"{dtype} lerp_", aten.lerp_.Scalar, (x, y, 0.1), {}
        yield f"{dtype} lerp", aten.lerp.Scalar, (x, y, 0.1), {}
        yield f"{dtype} isnan", aten.isnan.default, (x,), {}
        yield f"{dtype} isfinite", aten.eq.Tensor, (x, y), {}
        yield f"{dtype} clamp", aten.clamp.default, (x, 0.1, 0.9), {}


@group
def copies() -> Iterator[Call]:
    for dtype in (F32, BF16):
        x = rand(16, 512, 1024, dtype=dtype)
        yield f"{dtype} clone", aten.clone.default, (x,), {}
        turned = x.transpose(1, 2)
        yield f"{dtype} clone contiguous", aten.clone.default, (turned,), {"memory_format": torch.contiguous_format}
        yield f"{dtype} copy_ turned", aten.copy_.default, (rand(16, 1024, 512, dtype=dtype), turned), {}
        yield f"{dtype} _to_copy", aten._to_copy.default, (x,), {"dtype": BF16 if dtype is F32 else F32}
        yield (
            f"{dtype} copy_ other dtype",
            aten.copy_.default,
            (rand(16, 1024, 512, dtype=BF16 if dtype is F32 else F32), turned),
            {},
        )
        yield (
            f"{dtype} copy_ 2d",
            aten.copy_.default,
            (rand(4096, 2048, dtype=dtype), rand(2048, 4096, dtype=dtype).t()),
            {},
        )
        yield f"{dtype} cat 0", aten.cat.default, ([x, x], 0), {}
        yield f"{dtype} cat -1", aten.cat.default, ([x, x], -1), {}
        yield f"{dtype} cat turned", aten.cat.default, ([turned, turned], -1), {}
        yield f"{dtype} stack", aten.stack.default, ([x, x], 0), {}
        yield f"{dtype} repeat", aten.repeat.default, (x, [2, 1, 1]), {}
        yield f"{dtype} constant_pad_nd", aten.constant_pad_nd.default, (x, [1, 1]), {}
        yield f"{dtype} roll", aten.roll.default, (x, [3], [1]), {}
        yield f"{dtype} flip", aten.flip.default, (x, [1]), {}
        yield f"{dtype} tril", aten.tril.default, (x,), {}
        image = rand(8, 64, 128, 128, dtype=dtype)
        yield f"{dtype} to channels_last", aten.clone.default, (image,), {"memory_format": torch.channels_last}


@group
def indexing() -> Iterator[Call]:
    ids = torch.randint(0, 30000, (8, 1024))
    for dtype in (F32, BF16):
        table, grad = rand(30000, 768, dtype=dtype), rand(8, 1024, 768, dtype=dtype)
        flat, rows = ids.reshape(-1), rand(8192, 768, dtype=dtype)
        yield f"{dtype} embedding", aten.embedding.default, (table, ids), {}
        yield (
            f"{dtype} embedding_dense_backward",
            aten.embedding_dense_backward.default,
            (grad, ids, 30000, -1, False),
            {},
        )
        yield f"{dtype} index", aten.index.Tensor, (table, [ids]), {}
        yield f"{dtype} index second", aten.index.Tensor, (rand(8, 30000, 64, dtype=dtype), [None, flat[:2048]]), {}
        yield f"{dtype} index mask", aten.index.Tensor, (table, [torch.rand(30000) > 0.5]), {}
        yield f"{dtype} index full mask", aten.index.Tensor, (table, [torch.rand(30000, 768) > 0.5]), {}
        yield f"{dtype} masked_select", aten.masked_select.default, (table, torch.rand(30000, 768) > 0.5), {}
        yield f"{dtype} nonzero", aten.nonzero.default, (table > 0.5,), {}
        yield f"{dtype} index_put_", aten.index_put_.default, (table, [flat], rows), {}
        yield f"{dtype} index_put_ accumulate", aten.index_put_.default, (table, [flat], rows, True), {}
        yield f"{dtype} index_put", aten.index_put.default, (table, [flat], rows, True), {}
        yield f"{dtype} index_select", aten.index_select.default, (table, 0, flat), {}
        yield f"{dtype} index_add_", aten.index_add_.default, (table, 0, flat, rows), {}
        across = torch.randint(0, 768, (30000, 768))
        yield f"{dtype} gather", aten.gather.default, (table, 1, across), {}
        yield f"{dtype} scatter", aten.scatter.src, (table, 1, across, table), {}
        yield f"{dtype} scatter_add", aten.scatter_add.default, (table, 1, across, table), {}
        yield (
            f"{dtype} scatter_add 0",
            aten.scatter_add.default,
            (table, 0, torch.randint(0, 30000, (8192, 768)), rows),
            {},
        )
        scores = rand(8192, 4000, dtype=dtype)
        target = torch.randint(0, 4000, (8192,))
        yield f"{dtype} nll_loss_forward", aten.nll_loss_forward.default, (scores, target, None, 1, -100), {}
        total = torch.tensor(8192.0, dtype=dtype)
        back = (torch.tensor(1.0, dtype=dtype), scores, target, None, 1, -100, total)
        yield f"{dtype} nll_loss_backward", aten.nll_loss_backward.default, back, {}
        image = rand(8, 100, 96, 96, dtype=dtype)
        labels = torch.randint(0, 100, (8, 96, 96))
        yield f"{dtype} nll_loss2d_forward", aten.nll_loss2d_forward.default, (image, labels, None, 1, -100), {}
        yield f"{dtype} slice_backward", aten.slice_backward.default, (rows, [16384, 768], 0, 0, 8192, 1), {}
        yield f"{dtype} select_backward", aten.select_backward.default, (rows, [4, 8192, 768], 0, 0), {}


@group
def orders() -> Iterator[Call]:
    for dtype in (F32, BF16, torch.int64):
        x = (torch.rand(4096, 2048) * 1000).to(dtype)
        yield f"{dtype} sort", aten.sort.default, (x, -1), {}
        yield f"{dtype} sort stable", aten.sort.stable, (x,), {"stable": True, "dim": -1, "descending": True}
        yield f"{dtype} sort 0", aten.sort.default, (x, 0), {}
        yield f"{dtype} sort flat", aten.sort.default, (x.reshape(-1), 0), {}
        yield f"{dtype} topk", aten.topk.default, (x, 50, -1), {}
        yield f"{dtype} topk flat", aten.topk.default, (x.reshape(-1), 1000, -1), {}
        yield f"{dtype} argsort", aten.argsort.default, (x, -1), {}
        yield f"{dtype} cumsum", aten.cumsum.default, (x, -1), {}
        yield f"{dtype} cumsum 0", aten.cumsum.default, (x, 0), {}
        yield f"{dtype} max dim", aten.max.dim, (x, -1), {}
        yield f"{dtype} argmax", aten.argmax.default, (x, -1), {}
        yield f"{dtype} unique", aten._unique2.default, (x, True, True), {}


@group
def reductions() -> Iterator[Call]:
    for dtype in (F32, BF16):
        x = rand(8, 512, 4096, dtype=dtype)
        for dims in ([0], [0, 1], [1], [2], [0, 1, 2]):
            yield f"{dtype} sum {dims}", aten.sum.dim_IntList, (x, dims), {}
            yield f"{dtype} mean {dims}", aten.mean.dim, (x, dims, True), {}
        yield f"{dtype} sum to float32", aten.sum.dim_IntList, (x, [0]), {"dtype": F32}
        yield f"{dtype} sum all", aten.sum.default, (x,), {}
        yield f"{dtype} var", aten.var.correction, (x, [-1]), {}
        yield f"{dtype} var_mean", aten.var_mean.correction, (x, [-1]), {}
        yield f"{dtype} std", aten.std.correction, (x, [-1]), {}
        yield f"{dtype} norm", aten.linalg_vector_norm.default, (x,), {}
        yield f"{dtype} amax", aten.amax.default, (x, [-1]), {}
        yield f"{dtype} any", aten.any.default, (x,), {}
        yield f"{dtype} logsumexp", aten.logsumexp.default, (x, [-1]), {}
        yield f"{dtype} prod", aten.prod.default, (x,), {}
        yield f"{dtype} mse_loss", aten.mse_loss.default, (x, x), {}
        yield f"{dtype} bce", aten.binary_cross_entropy_with_logits.default, (x, x), {}
        yield f"{dtype} mse_loss none", aten.mse_loss.default, (x, x, 0), {}
        yield f"{dtype} mse_loss_backward", aten.mse_loss_backward.default, (x, x, x, 1), {}
        yield f"{dtype} huber_loss", aten.huber_loss.default, (x, x), {}
        yield f"{dtype} smooth_l1_loss", aten.smooth_l1_loss.default, (x, x), {}


@group
def images() -> Iterator[Call]:
    for dtype in (F32, BF16):
        for x, kind in (
            (rand(4, 64, 128, 128, dtype=dtype), ""),
            (last(rand(4, 64, 128, 128, dtype=dtype)), " channels_last"),
        ):
            pooled = aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
            yield f"{dtype} max_pool2d{kind}", aten.max_pool2d_with_indices.default, (x, [3, 3], [2, 2], [1, 1]), {}
            back = (pooled[0], x, [3, 3], [2, 2], [1, 1], [1, 1], False, pooled[1])
            yield f"{dtype} max_pool2d backward{kind}", aten.max_pool2d_with_indices_backward.default, back, {}
            yield f"{dtype} avg_pool2d{kind}", aten.avg_pool2d.default, (x, [2, 2], [2, 2]), {}
            yield (
                f"{dtype} avg_pool2d backward{kind}",
                aten.avg_pool2d_backward.default,
                (aten.avg_pool2d(x, [2, 2], [2, 2]), x, [2, 2], [2, 2], [0, 0], False, True, None),
                {},
            )
            yield f"{dtype} adaptive_avg_pool2d{kind}", aten._adaptive_avg_pool2d.default, (x, [7, 7]), {}
            yield f"{dtype} nearest{kind}", aten.upsample_nearest2d.default, (x, [256, 256]), {}
            up = aten.upsample_nearest2d(x, [256, 256])
            yield (
                f"{dtype} nearest backward{kind}",
                aten.upsample_nearest2d_backward.default,
                (up, [256, 256], list(x.shape)),
                {},
            )
            yield f"{dtype} bilinear{kind}", aten.upsample_bilinear2d.default, (x, [256, 256], False), {}
            yield (
                f"{dtype} bilinear backward{kind}",
                aten.upsample_bilinear2d_backward.default,
                (up, [256, 256], list(x.shape), False),
                {},
            )
            if dtype is F32:
                yield f"{dtype} bicubic{kind}", aten.upsample_bicubic2d.default, (x, [256, 256], False), {}


@group
def recurrent() -> Iterator[Call]:
    for t, n, i, h in ((256, 64, 256, 512), (128, 64, 256, 512), (100, 16, 64, 128)):
        weights = (rand(4 * h, i), rand(4 * h, h), rand(4 * h), rand(4 * h), rand(n, h), rand(n, h))
        tail = (False, [], 2, h, 1, True, False, True, False)
        yield f"lstm {t}x{n}x{i}->{h}", aten.mkldnn_rnn_layer.default, (rand(t, n, i), *weights, *tail), {}


def measure_group(name: str) -> list[dict[str, Any]]:
    from neaptide.accounting import as_specs
    from neaptide.measurement import live_tensor_bytes, measure
    from neaptide.workspaces import workspace

    rows = []
    gc.collect()
    gc.freeze()  # what is here already is no tensor of ours: the search for live tensors need not look at it
    with torch.no_grad():
        for label, op, args, kwargs in GROUPS[name]():
            given = {storage._cdata for tensor in tensors_in((args, kwargs)) for storage in storages(tensor)}
            try:
                op(*args, **kwargs)
            except (RuntimeError, NotImplementedError) as error:
                rows.append({"op": str(op), "case": label, "failed": str(error).splitlines()[0]})
                continue
            hidden = []
            gc.collect()
            live = live_tensor_bytes()
            for _ in range(2):
                done = measure(op, *args, **kwargs)
                fresh = {s._cdata: s.nbytes() for t in tensors_in(done.value) for s in storages(t) if s._cdata not in given}
                hidden.append(done.peak - live - sum(allocated(size) for size in fresh.values()))
                del done
            table = workspace(op, *as_specs(args, kwargs), torch.get_num_threads())
            inputs = sum(s.nbytes() for s in {s._cdata: s for t in tensors_in((args, kwargs)) for s in storages(t)}.values())
            rows.append(
                {"op": str(op), "case": label, "inputs": inputs, "outputs": sum(fresh.values())}
                | {"measured": min(hidden), "table": int(table)}
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, with commas")
    parser.add_argument("--all", action="store_true", help="also ops with nothing hidden")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--group", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.group:
        print(json.dumps(measure_group(options.group)))
        return
    rows = []
    for name in options.only.split(","):
        print(f"measuring {name}", file=sys.stderr)
        try:
            part = ask(__file__, "--group", name, measuring=True, ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16")
        except AskError as failed:
            print(f"{name}: {failed}", file=sys.stderr)
            continue
        rows += part
        if not options.json:
            print(*show(part, options.all), sep="\n", flush=True)
    if options.json:
        print(json.dumps(rows, indent=1))


def show(rows: list[dict[str, Any]], everything: bool) -> Iterator[str]:
    yield f"{'op':<52}{'case':<52}{'inputs MB':>10}{'outputs':>9}{'hidden':>9}{'table':>9}"
    for row in rows:
        if "failed" in row:
            yield f"{row['op']:<52}{row['case']:<52} {row['failed']}"
        elif everything or max(row["measured"], row["table"]) > 0.3e6:
            figures = "".join(f"{row[key] / 1e6:>9.2f}" for key in ("inputs", "outputs", "measured", "table"))
            yield f"{row['op']:<52}{row['case']:<52} {figures}"


if __name__ == "__main__":
    main()
