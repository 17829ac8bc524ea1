"""How much memory a run may take.

In: what a user writes (`"6GiB"`, `"512MB"`, `6_000_000_000`, `"80%"`, `"min"`, `None`). Out: a `Budget`, in bytes.
A percentage is of what the device has: the tightest control-group limit or the RAM on the CPU, the total memory on
an accelerator.
"""

from __future__ import annotations

import operator
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsIndex

from neaptide.errors import InputError

FORMS = '"6GiB", "512MB", 6_000_000_000 (bytes), "80%" (of the device\'s memory), "min" (as little as possible) or None'

_UNITS = {"b": 1, "": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[f"{_letter}b"] = 1000**_power
    _UNITS[f"{_letter}ib"] = 1024**_power

_NUMBER = re.compile(r"(\d[\d_,]*(?:\.\d+)?|\.\d+)\s*([a-z]*|%)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit in bytes, no limit (`limit is None`), or the smallest reachable peak (`smallest`).

    >>> Budget(limit=6 << 30, text="6GiB").allows(5 << 30)
    True
    >>> Budget().allows(1 << 50)
    True
    """

    limit: int | None = None
    smallest: bool = False
    text: str = ""

    def allows(self, peak: int) -> bool:
        """Whether a run with this peak stays inside; `"min"` sets no limit of its own."""
        return self.limit is None or peak <= self.limit

    def __str__(self) -> str:
        from neaptide.report import format_bytes

        if self.smallest:
            return "the smallest reachable peak"
        return "no limit" if self.limit is None else format_bytes(self.limit)


def parse_budget(value: Budget | str | SupportsIndex | float | None, device: object = "cpu") -> Budget:
    """Turn what a user writes into a `Budget`.

    `device` (a `torch.device` or its name) matters for percentages alone.

    >>> parse_budget("6GiB").limit, parse_budget("512MB").limit, parse_budget(6_000_000_000).limit
    (6442450944, 512000000, 6000000000)
    >>> parse_budget("min").smallest, parse_budget(None).limit
    (True, None)
    >>> 0 < parse_budget("80%").limit < parse_budget("100%").limit
    True
    >>> parse_budget("6 apples")
    Traceback (most recent call last):
    ...
    neaptide.errors.InputError: budget '6 apples' has an unknown unit 'apples'; write "6GiB", ...
    """
    if isinstance(value, Budget):
        return value
    if value is None:
        return Budget(text="None")
    if isinstance(value, str):
        return _parse_text(value, device)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        limit = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise _refuse(value, f"is of type {type(value).__name__}") from None
    if isinstance(value, bool) or limit <= 0:
        raise _refuse(value, "is not a number of bytes above zero")
    return Budget(limit=limit, text=str(limit))


def device_memory(device: object = "cpu") -> int:
    """Bytes that the device has in all: what a percentage is a percentage of.

    >>> device_memory("cpu") > 1 << 20
    True
    """
    name = str(device)
    if name.partition(":")[0] in ("cpu", "meta"):
        return host_memory()
    import torch

    try:
        return int(torch.accelerator.get_memory_info(torch.device(name))[1])
    except (RuntimeError, ValueError, AssertionError) as error:
        raise InputError(
            f"the memory of device {name!r} cannot be read ({str(error).splitlines()[0]}); "
            'give the budget in bytes instead, such as "6GiB"'
        ) from error


def host_memory(root: str | Path = "/") -> int:
    """Bytes this process may use on the host: the tightest control-group limit above it, else the RAM.

    `root` is where `proc` and `sys` are mounted.

    >>> host_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    True
    """
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([ram, *_group_limits(Path(root))])


def _parse_text(text: str, device: object) -> Budget:
    stripped = text.strip()
    if stripped.lower() == "min":
        return Budget(smallest=True, text=text)
    match = _NUMBER.fullmatch(stripped)
    if match is None:
        raise _refuse(text, "is not a size")
    number, unit = match[1].replace("_", "").replace(",", ""), match[2].lower()
    if unit == "%":
        if not 0 < float(number) <= 100:
            raise _refuse(text, "is not between 0% and 100%")
        limit = int(device_memory(device) * float(number) / 100)
    elif unit in _UNITS:
        # Whole numbers stay whole: a float has 53 bits.
        limit = int(number) * _UNITS[unit] if number.isdigit() else int(float(number) * _UNITS[unit])
    else:
        raise _refuse(text, f"has an unknown unit {match[2]!r}")
    if limit <= 0:
        raise _refuse(text, "is not above zero")
    return Budget(limit=limit, text=text)


def _refuse(value: object, problem: str) -> InputError:
    return InputError(f"budget {value!r} {problem}; write {FORMS}")


def _group_limits(root: Path) -> list[int]:
    """The limits of every control group that this process is in, version 2 and version 1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folders = [(root / "sys/fs/cgroup", "memory.max"), (root / "sys/fs/cgroup/unified", "memory.max")]
        elif "memory" in controllers.split(","):
            folders = [(root / "sys/fs/cgroup/memory", "memory.limit_in_bytes")]
        else:
            continue
        for folder, file in folders:
            limits += _limits_upwards(folder, path, file)
    return limits


def _limits_upwards(folder: Path, path: str, file: str) -> list[int]:
    """Each level binds all below it; in a container the path may not exist under the mount, its root then speaks."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    limits: list[int] = []
    for depth in range(len(parts), -1, -1):
        try:
            text = folder.joinpath(*parts[:depth], file).read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # version 2 writes "max" for none
            limits.append(int(text))
    return limits
