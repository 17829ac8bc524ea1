"""What a device does: a few ops timed on it, and the figures that follow from them.

In: a device. Out: a `Machine`. Other work only makes an op slower: a process takes the lower quartile of many times, and of
several processes the fastest is the truest; it is kept in a file for the next process. After a few of them a look is taken
once a day. A look while the machine was busy, so that its times scatter or others used the processors, counts for little.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from neaptide import away
from neaptide._torch import real_tensors
from neaptide.folders import cache_folder
from neaptide.probes import CALL, EACH, FAR, LARGE, NEAR, NUMBERS, SENT, WIDE, time_probes

LOOKS = 4
"""In so many processes, if they were calm, the ops are timed; later ones take what those found, if not older than `A_DAY`."""
BUSY = 0.25
"""What a look counts for while the machine was busy: where it always is, there is an end to looking all the same."""
A_DAY = 86400
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
    """An elementwise function that is no mere sum or product, for each number, beside reading and writing it."""
    softmax: float
    random: float
    """Drawing a number."""
    byte: float
    """Reading or writing what is in a cache."""
    stream: float
    """Reading or writing what is not."""
    fetch: float
    """Getting ready a matrix that few rows are multiplied by, where it is not in the cache."""
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
    strided: float = 0.0
    """A number, element by element, where the operands do not lie in the same order."""
    far: float = 0.0
    """For each byte of such scattered matrices that are not in the cache, what copying takes beyond that."""
    spill: float = 0.0
    """Reading or writing what is not, in a product of matrices."""
    near: float = 0.0
    """Getting ready such a matrix where it is."""
    heads: float = 0.0
    """Getting ready a batch of such matrices, as keys of attention are."""
    half: float = 1.0
    """What arithmetic takes in half precision, of that in single; as much, where it was not timed."""
    calls: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Calls of ops that take longer to begin than others do, by name."""
    each: Mapping[str, float] = field(default_factory=dict, hash=False)
    """What ops take for each number beside reading and writing it, by name: functions, norms, softmaxes, pools."""


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
    byte = seconds["add"] / (3 * 4 * NUMBERS)
    each = {
        name.removeprefix(EACH): max(taken / NUMBERS - 8 * byte, 0.0)
        for name, taken in seconds.items()
        if name.startswith(EACH)
    }
    stream = max(seconds["stream"] / (3 * FAR), byte)
    product = seconds["product"] / (2 * 512 * 768 * 768)
    spilled = seconds["spill"] - 2 * (FAR // 4) * WIDE * product
    ready = seconds["ready"] - 2 * 64 * 1024 * 4096 * product
    batched = max(seconds["batched"] / (2 * 8 * 256 * 64 * 1024), product)
    near = seconds["near"] - 2 * 64 * (NEAR // 4) * product
    scores, wide, narrow = 4 * 512 * 512, seconds["attention"], seconds["narrow"]
    attention = max((wide - narrow) / (4 * scores * (64 - 32)), wide / (4 * scores * 64) / 4)
    return Machine(
        call=seconds["tiny"] * 2,
        view=seconds["view"] * 2,
        product=product,
        batched=batched,
        attention=attention,
        score=max(wide / scores - 4 * 64 * attention, 0.0),
        slim=seconds["slim"] / scores,
        masked=max((seconds["masked"] - narrow) / scores, 0.0),
        convolution=seconds["convolution"] / (2 * 64 * 64 * 9 * 32 * 32),
        function=each["gelu"],
        softmax=each["_softmax"],
        strided=max((seconds["strided"] - seconds["add"]) / NUMBERS, 0.0),
        random=max(seconds["random"] / NUMBERS - 4 * byte, 0.0),
        byte=byte,
        stream=stream,
        spill=max(spilled / (2 * FAR), stream),
        fetch=max(ready / (4 * 1024 * 4096), stream),
        near=max(near / NEAR, byte),
        heads=max((seconds["heads"] - 2 * 16 * (NEAR // 4) * batched) / NEAR, byte),
        scattered=seconds["scattered"] / (128 * 128),
        far=max(seconds["far"] / (256 * 256) - seconds["scattered"] / (128 * 128), 0.0) / 4,
        touch=max(seconds["touch"] / LARGE - stream, 0.0),
        away=seconds["sent"] / SENT,
        each=each,
        calls={name.removeprefix(CALL): taken * 2 for name, taken in seconds.items() if name.startswith(CALL)},
    )


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
