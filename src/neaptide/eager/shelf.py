"""What earlier processes found out about a model's steps, kept as JSON in the cache folder.

In: a model, its blocks, the form of its inputs. Out: a `DryRun` that knows what theirs knew. A file belongs to one model (its
modules, their code, shapes and settings), loss, form of inputs, machine and version, and says so itself; one that is damaged
or another's is left alone with a warning.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neaptide.dryrun import Loss
from neaptide.eager.blocks import Unit
from neaptide.eager.predict import DryRun
from neaptide.folders import cache_folder
from neaptide.hardware import machine_key

FORMAT = 2
LARGEST = 32 << 20


def shelf_key(model: nn.Module, units: Sequence[Unit], form: Any, loss: Loss | None) -> str:
    """What a step's figures depend on, in one word."""
    device = next((p.device.type for p in model.parameters()), "cpu")
    codes = {type(m).__qualname__: _code(type(m).forward) for m in model.modules()}
    weights = [(n, tuple(p.shape), str(p.dtype), p.requires_grad) for n, p in model.named_parameters()]
    facts = (FORMAT, version("neaptide"), torch.__version__, machine_key(device), torch.get_num_threads(), repr(model))
    facts += (str(getattr(model, "config", "")), sorted(codes.items()), weights, [unit.name for unit in units], form)
    facts += (_code(loss) if loss is not None else "",)
    return sha256("\n".join(map(repr, facts)).encode()).hexdigest()


def _code(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return repr(type(function)) if code is None else sha256(code.co_code + repr(code.co_names).encode()).hexdigest()


def _path(key: str) -> Path:
    return cache_folder() / "steps" / f"{key[:32]}.json"


def read(key: str) -> DryRun:
    """What an earlier process left; a new one where that is nothing, or nothing that can be used."""
    path = _path(key)
    try:
        if not path.exists():
            return DryRun()
        if path.stat().st_size > LARGEST:
            raise ValueError("it is too large")
        told = json.loads(path.read_text())
        if told["key"] != key:
            raise ValueError("it is of another model, machine or version")
        return DryRun.from_json(told["known"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        warnings.warn(f"steps in {path} are not used, and looked at anew: {error or type(error).__name__}", stacklevel=2)
        return DryRun()


def write(key: str, known: DryRun) -> None:
    """Leave what is known to later processes, where that is possible; none of them ever sees half a file."""
    path = _path(key)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps({"key": key, "known": known.to_json()}))
        fresh.replace(path)
