"""A few ops timed on a device, one by one: what the figures of a machine are made of.

In: a device. Out: each probe's seconds, the lower quartile of many runs. Other work only makes an op slower.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import cycle
from statistics import median, quantiles
from typing import Any

import torch

from neaptide import away
from neaptide.allocator import keep_pages

aten = torch.ops.aten
CALL, EACH = "call ", "each "
NUMBERS = 1 << 18
"""How many numbers probes work on that are to stay in the cache."""
LARGE = 64 << 20
FAR = 32 << 20
"""Bytes of each of three tensors that together no cache holds."""
NEAR = 8 << 20
"""Those of a matrix that stays in the cache, while few rows after the other are multiplied by it."""
WIDE = 128
SENT = 16 << 20
"""Bytes that are sent away and fetched."""
CALLS = 100
PATIENCE = 0.03
"""Seconds that one op may be called for."""


def time_probes(device: str) -> tuple[dict[str, float], float]:
    """Each probe's seconds, and how far apart quartiles usually are; arithmetic writes to memory that is there."""

    def ones(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device=device)

    keep_pages()
    tiny, row = ones(8), ones(NUMBERS)
    a, b, c, q = ones(512, 768), ones(768, 768), ones(512, 768), ones(1, 4, 512, 64)
    narrow, slim, mask = ones(1, 4, 512, 32), ones(1, 4, 512, 8), ones(1, 1, 512, 512)
    rows = ones(NUMBERS)
    image, kernel = ones(1, 64, 32, 32), ones(64, 64, 3, 3)
    far, farther, there = (ones(FAR // 4) for _ in range(3))
    tall, square, made = far.view(-1, WIDE), ones(WIDE, WIDE), there.view(-1, WIDE)
    few, weights, out = ones(64, 1024), cycle([ones(4096, 1024).t() for _ in range(4)]), ones(64, 4096)
    near, close = ones(NEAR // 4 // 1024, 1024).t(), ones(64, NEAR // 4 // 1024)
    queries, every, scores = ones(8, 16, 64), ones(8, 64, NEAR // 4 // 512), ones(8, 16, NEAR // 4 // 512)
    heads, keys, pairs = ones(8, 256, 64), ones(8, 64, 1024), ones(8, 256, 1024)
    cube, sparse = ones(128, 128, 128), ones(NUMBERS, 4)
    stack = farther.view(256, 256, WIDE)
    lines = cycle([stack[:, :, i] for i in range(0, WIDE, 16)])  # no two of them in the same lines of the cache
    attend, own = torch.nn.functional.scaled_dot_product_attention, torch.Generator(device).manual_seed(0)
    probes: dict[str, Callable[[], Any]] = {
        "tiny": lambda: aten.add.Tensor(tiny, tiny),
        "view": lambda: aten.view.default(tiny, (2, 4)),
        "add": lambda: torch.add(row, row, out=rows),
        "stream": lambda: torch.add(far, farther, out=there),
        "product": lambda: torch.mm(a, b, out=c),
        "spill": lambda: torch.mm(tall, square, out=made),
        "ready": lambda: torch.mm(few, next(weights), out=out),
        "near": lambda: torch.mm(few, near, out=close),
        "heads": lambda: torch.bmm(queries, every, out=scores),
        "batched": lambda: torch.bmm(heads, keys, out=pairs),
        "attention": lambda: attend(q, q, q),
        "narrow": lambda: attend(narrow, narrow, narrow),
        "slim": lambda: attend(slim, slim, slim),
        "masked": lambda: attend(narrow, narrow, narrow, mask),
        "convolution": lambda: torch.conv2d(image, kernel, padding=1),
        "random": lambda: rows.bernoulli_(0.9, generator=own),
        "scattered": lambda: cube[:, :, 0].clone(),
        "far": lambda: next(lines).clone(),
        "strided": lambda: torch.add(row, sparse[:, 0], out=rows),
        "touch": lambda: torch.empty(LARGE, dtype=torch.uint8, device=device).fill_(1),
        **{CALL + name: call for name, call in _calls(ones).items()},
        **{EACH + name: call for name, call in _functions(ones).items()},
    }
    wait = (lambda: None) if device == "cpu" else torch.accelerator.synchronize
    spread = {name: _quartiles(probe, wait) for name, probe in probes.items()}
    found = {name: low for name, (low, _) in spread.items()}
    found["sent"] = _there_and_back(device, wait)
    return found, median(high / low for low, high in spread.values())


def _calls(ones: Callable[..., torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """Ops that begin with more than a kernel's launch, on hardly any data, as a program calls them."""
    row, square, batch, image, kernel = ones(8), ones(8, 8), ones(2, 8, 8), ones(1, 4, 8, 8), ones(4, 4, 3, 3)
    plain = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    return {
        "mm": lambda: aten.mm.default(square, square),
        "linear": lambda: aten.linear.default(square, square, row),
        "bmm": lambda: aten.bmm.default(batch, batch),
        "attention": lambda: torch.nn.functional.scaled_dot_product_attention(image, image, image),
        "convolution": lambda: aten.convolution.default(image, kernel, None, *plain),
        "gelu": lambda: aten.gelu.default(row),
        "_softmax": lambda: aten._softmax.default(square, -1, False),
        "native_layer_norm": lambda: aten.native_layer_norm.default(square, (8,), row, row, 1e-5),
        "native_group_norm": lambda: aten.native_group_norm.default(image, None, None, 1, 4, 64, 2, 1e-5),
    }


def _functions(ones: Callable[..., torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """Ops on `NUMBERS` numbers that take longer than reading and writing them."""
    x, dy, scale = ones(1024, 256), ones(1024, 256), ones(256)
    image, channels, pixels = ones(4, 64, 32, 32), ones(64), 32 * 32
    mean, square = ones(1024, 1), ones(4, 8)
    batch = (channels, channels, channels, channels)
    elementwise = {name: getattr(aten, name).default for name in ("gelu", "tanh", "silu", "sigmoid", "exp")}
    back = {name: getattr(aten, name).default for name in ("gelu_backward", "tanh_backward", "silu_backward")}
    softmaxes = (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
    return {
        **{name: (lambda op=op: op(x)) for name, op in elementwise.items()},
        **{name: (lambda op=op: op(dy, x)) for name, op in back.items()},
        "pow": lambda: aten.pow.Tensor_Scalar(x, 3.0),
        "_softmax": lambda: aten._softmax.default(x, -1, False),
        "_safe_softmax": lambda: aten._safe_softmax.default(x, -1),
        "_log_softmax": lambda: aten._log_softmax.default(x, -1, False),
        **{op._schema.name.split("::")[1]: (lambda op=op: op(dy, x, -1, torch.float32)) for op in softmaxes},
        "native_layer_norm": lambda: aten.native_layer_norm.default(x, (256,), scale, scale, 1e-5),
        "native_layer_norm_backward": lambda: aten.native_layer_norm_backward.default(
            dy, x, (256,), mean, mean, scale, scale, [True, True, True]
        ),
        "native_group_norm": lambda: aten.native_group_norm.default(image, channels, channels, 4, 64, pixels, 8, 1e-5),
        "native_group_norm_backward": lambda: aten.native_group_norm_backward.default(
            image, image, square, square, channels, 4, 64, pixels, 8, [True, True, True]
        ),
        "native_batch_norm": lambda: aten.native_batch_norm.default(image, *batch, True, 0.1, 1e-5),
        "native_batch_norm_backward": lambda: aten.native_batch_norm_backward.default(
            image, image, *batch, channels, True, 1e-5, [True, True, True]
        ),
        "max_pool2d_with_indices": lambda: aten.max_pool2d_with_indices.default(image, (3, 3), (2, 2), (1, 1)),
    }


def _there_and_back(device: str, wait: Callable[[], None]) -> float:
    """The time to send something large away and have it back; infinite where nothing takes it."""
    if device == "cpu" and away.place() is None:
        return math.inf
    sent = torch.ones(SENT, dtype=torch.uint8, device=device)
    try:
        return _quartiles((lambda: away.to_the_disk(sent)) if device == "cpu" else (lambda: away.to_the_host(sent)), wait)[0]
    except (OSError, RuntimeError):  # the disk is full, or the host's memory is, or it cannot be pinned
        return math.inf


def _quartiles(call: Callable[[], Any], wait: Callable[[], None]) -> tuple[float, float]:
    """The lower and the upper quartile of many runs' seconds."""
    call()
    wait()
    taken: list[float] = []
    end = time.perf_counter() + PATIENCE
    while len(taken) < CALLS and (time.perf_counter() < end or not taken):
        start = time.perf_counter()
        call()
        wait()
        taken.append(time.perf_counter() - start)
    low, _, high = quantiles(taken * 2, n=4, method="inclusive")
    return low, high
