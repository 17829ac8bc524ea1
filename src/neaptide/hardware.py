"""What a device does: a few ops timed on it, and the figures that follow from them.

In: a device. Out: a `Machine`. Other work only makes an op slower: a process takes the lower quartile of many times, and of
several processes the fastest is the truest; it is kept in a file for the next process. After a few of them a look is taken
once a day. A look while the machine was busy, so that its times scatter or others used the processors, counts for little.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from neaptide import away
from neaptide._torch import real_tensors
from neaptide.folders import cache_folder

aten = torch.ops.aten
CALL = "call "
LOOKS = 4
"""In so many processes, if they were calm, the ops are timed; later ones take what those found, if not older than `A_DAY`."""
BUSY = 0.25
"""What a look counts for while the machine was busy: where it always is, there is an end to looking all the same."""
A_DAY = 86400
CALLS = 100
PATIENCE = 0.1
"""Seconds that one op may be called for."""
LARGE = 64 << 20
CALM = 1.5
"""How far apart the quartiles of a probe's times may be, at the middle one of the probes, for the look to count."""
ALONE = 0.1
"""How much of the processors' time may be others' meanwhile."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds per call, per arithmetic operation, per element and per byte."""

    call: float
    view: float
    product: float
    batched: float
    """A product of many small matrices, as attention has them."""
    attention: float
    convolution: float
    function: float
    softmax: float
    random: float
    """Drawing a number."""
    byte: float
    """Reading or writing what is in the cache."""
    stream: float
    """Reading or writing what is not."""
    fetch: float
    """Getting ready a matrix that few rows are multiplied by."""
    scattered: float
    """Copying a number of a matrix of which neither rows nor columns are dense."""
    touch: float
    """Writing to fresh memory, beside the writing itself."""
    away: float
    """Sending to the disk, from an accelerator to the host, and fetching; infinite where there is none to send to."""
    score: float = 0.0
    """A score of attention, beside the arithmetic of its products."""
    slim: float = 0.0
    """What a score takes at least, however few channels a head has."""
    masked: float = 0.0
    """Adding to a score what a mask has for it."""
    normed: float = 0.0
    """Layer norm, for each number."""
    strided: float = 0.0
    """A number, element by element, where the operands do not lie in the same order."""
    half: float = 1.0
    """What arithmetic takes in half precision, of that in single; as much, where it was not timed."""
    calls: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Calls of ops that take longer to begin than others do, by name."""


@cache
def this_machine(device: str = "cpu") -> Machine:
    """What a device does, timed in about a second or known from earlier processes.

    >>> this_machine().call > 0
    True
    """
    path = cache_folder() / f"machine-{machine_key(device)}.json"
    kept = _read(path)
    if kept.get("looks", 0) < LOOKS or time.time() - kept["when"] > A_DAY:
        with real_tensors(), torch.inference_mode():
            others = watch_others()
            found, spread = time_probes(device)
            calm = spread <= CALM and others() <= ALONE
        kept = _merged(kept, found, calm)
        _write(path, kept)
    return figures(kept["seconds"])


def figures(seconds: Mapping[str, float]) -> Machine:
    """What follows from the probes' times."""
    byte = seconds["add"] / (3 * 4 * (1 << 18))
    stream = max(seconds["stream"] / (3 * LARGE / 4), byte)
    product = seconds["product"] / (2 * 512 * 768 * 768)
    ready = seconds["ready"] - 2 * 64 * 1024 * 4096 * product
    scores, wide, narrow = 4 * 512 * 512, seconds["attention"], seconds["narrow"]
    attention = max((wide - narrow) / (4 * scores * (64 - 32)), wide / (4 * scores * 64) / 4)
    return Machine(
        call=seconds["tiny"] * 2,
        view=seconds["view"] * 2,
        product=product,
        batched=max(seconds["batched"] / (2 * 8 * 256 * 64 * 1024), product),
        attention=attention,
        score=max(wide / scores - 4 * 64 * attention, 0.0),
        slim=seconds["slim"] / scores,
        masked=max((seconds["masked"] - narrow) / scores, 0.0),
        convolution=seconds["convolution"] / (2 * 64 * 64 * 9 * 32 * 32),
        function=max(seconds["gelu"] / (1 << 18) - 8 * byte, 0.0),
        softmax=max(seconds["softmax"] / (256 * 1024) - 8 * byte, 0.0),
        normed=max(seconds["normed"] / (1024 * 256) - 8 * byte, 0.0),
        strided=max((seconds["strided"] - seconds["add"]) / (1 << 18), 0.0),
        random=max(seconds["random"] / (1 << 18) - 4 * byte, 0.0),
        byte=byte,
        stream=stream,
        fetch=max(ready / (4 * 1024 * 4096), stream),
        scattered=seconds["scattered"] / (128 * 128),
        touch=max(seconds["touch"] / LARGE - stream, 0.0),
        away=seconds["away"] / LARGE,
        calls={name.removeprefix(CALL): taken * 2 for name, taken in seconds.items() if name.startswith(CALL)},
    )


def time_probes(device: str) -> tuple[dict[str, float], float]:
    """Each probe's seconds, and how far apart quartiles usually are; arithmetic writes to memory that is there."""

    def ones(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device=device)

    tiny, row, scores = ones(8), ones(1 << 18), ones(256, 1024)
    a, b, c, q = ones(512, 768), ones(768, 768), ones(512, 768), ones(1, 4, 512, 64)
    narrow, slim, mask = ones(1, 4, 512, 32), ones(1, 4, 512, 8), ones(1, 1, 512, 512)
    rows, chances = ones(1 << 18), ones(256, 1024)
    image, kernel = ones(1, 64, 32, 32), ones(64, 64, 3, 3)
    far, farther, there = ones(LARGE // 16), ones(LARGE // 16), ones(LARGE // 16)
    few, weights, out = ones(64, 1024), cycle([ones(4096, 1024).t() for _ in range(4)]), ones(64, 4096)
    heads, keys, pairs = ones(8, 256, 64), ones(8, 64, 1024), ones(8, 256, 1024)
    cube, sparse = ones(128, 128, 128), ones(1 << 18, 4)
    attend, own = torch.nn.functional.scaled_dot_product_attention, torch.Generator(device).manual_seed(0)
    scale = ones(256)
    probes: dict[str, Callable[[], Any]] = {
        "tiny": lambda: aten.add.Tensor(tiny, tiny),
        "view": lambda: aten.view.default(tiny, (2, 4)),
        "add": lambda: torch.add(row, row, out=rows),
        "stream": lambda: torch.add(far, farther, out=there),
        "product": lambda: torch.mm(a, b, out=c),
        "ready": lambda: torch.mm(few, next(weights), out=out),
        "batched": lambda: torch.bmm(heads, keys, out=pairs),
        "attention": lambda: attend(q, q, q),
        "narrow": lambda: attend(narrow, narrow, narrow),
        "slim": lambda: attend(slim, slim, slim),
        "masked": lambda: attend(narrow, narrow, narrow, mask),
        "convolution": lambda: torch.conv2d(image, kernel, padding=1),
        "gelu": lambda: aten.gelu.out(row, out=rows),
        "softmax": lambda: torch.softmax(scores, -1, out=chances),
        "normed": lambda: aten.native_layer_norm.default(scores.view(1024, 256), (256,), scale, scale, 1e-5),
        "random": lambda: rows.bernoulli_(0.9, generator=own),
        "scattered": lambda: cube[:, :, 0].clone(),
        "strided": lambda: torch.add(row, sparse[:, 0], out=rows),
        "touch": lambda: torch.empty(LARGE, dtype=torch.uint8, device=device).fill_(1),
        **{CALL + name: call for name, call in _calls(ones).items()},
    }
    wait = (lambda: None) if device == "cpu" else torch.accelerator.synchronize
    spread = {name: _quartiles(probe, wait) for name, probe in probes.items()}
    found = {name: low for name, (low, _) in spread.items()}
    found["away"] = _there_and_back(device, wait)
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


def _there_and_back(device: str, wait: Callable[[], None]) -> float:
    """The time to send something large away and have it back; infinite where nothing takes it."""
    if device == "cpu" and away.place() is None:
        return math.inf
    large = torch.ones(LARGE, dtype=torch.uint8, device=device)
    try:
        return _quartiles((lambda: away.to_the_disk(large)) if device == "cpu" else (lambda: away.to_the_host(large)), wait)[0]
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


def watch_others() -> Callable[[], float]:
    """Tells, when called, what share of the processors' time went to other processes since; nothing where that is not told."""

    told = Path("/proc/stat")
    if not told.exists():
        return lambda: 0.0

    def used() -> float:
        user, nice, system, _, _, *interrupts = map(int, told.read_text().split("\n", 1)[0].split()[1:9])
        return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK") - time.process_time()

    began, before = time.perf_counter(), used()
    return lambda: (used() - before) / (time.perf_counter() - began) / (os.cpu_count() or 1)


def _merged(kept: Mapping[str, Any], found: Mapping[str, float], calm: bool) -> dict[str, Any]:
    before = kept.get("seconds", {})
    return {
        "looks": kept.get("looks", 0) + (1 if calm else BUSY),
        "when": time.time(),
        "seconds": {name: min(taken, before.get(name, taken)) for name, taken in found.items()},
    }


def machine_key(device: str) -> str:
    """What the figures depend on."""
    name = _processor() if device == "cpu" else str(torch.accelerator.current_device_index())
    facts = (device, name, torch.__version__, torch.get_num_threads(), str(away.place()))
    return sha256(repr(facts).encode()).hexdigest()[:16]


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    return next((line for line in lines if line.startswith("model name")), platform.processor())


def _read(path: Path) -> dict[str, Any]:
    """What an earlier process left; nothing if that is not there or not whole."""
    try:
        kept = json.loads(path.read_text())
        figures(kept["seconds"])
        return {"looks": float(kept["looks"]), "when": float(kept["when"]), "seconds": kept["seconds"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write(path: Path, kept: Mapping[str, Any]) -> None:
    """Keep the figures where that is possible; another process never sees half a file."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(kept))
        fresh.replace(path)
