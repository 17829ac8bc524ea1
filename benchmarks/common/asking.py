"""One question to a benchmark in a process of its own, with the allocator that peaks or times want."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class AskError(Exception):
    """The process died, or took too long: in words of one line."""


def ask(script: str | Path, *arguments: str, measuring: bool, limit: float | None = None, **settings: str) -> Any:
    """What a script prints last, as JSON, with `settings` in its environment. Peaks are true only where freed tensors go back
    to the kernel, as they do while `measuring`."""
    command, environment = [sys.executable, str(script), *arguments], surroundings(measuring, settings)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        raise AskError(f"took over {limit:.0f} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise _died(done.returncode, done.stderr)
    return json.loads(lines[-1])


def ask_each(script: str | Path, *arguments: str, measuring: bool) -> Iterator[Any]:
    """Every line that a script prints, as JSON, as soon as it is there; its other words must go to stderr."""
    command = [sys.executable, str(script), *arguments]
    with tempfile.TemporaryFile("w+") as errors:
        running = subprocess.Popen(command, env=surroundings(measuring, {}), stdout=subprocess.PIPE, stderr=errors, text=True)
        with running:
            assert running.stdout is not None
            yield from map(json.loads, running.stdout)
        if running.returncode:
            errors.seek(0)
            raise _died(running.returncode, errors.read())


def surroundings(measuring: bool, settings: dict[str, str]) -> dict[str, str]:
    """The environment of a process whose peaks, or whose times, are measured."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, **settings}
    environment.pop("MALLOC_MMAP_THRESHOLD_", None)
    if measuring:
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    return environment


def _died(code: int, errors: str) -> AskError:
    return AskError((errors.strip().splitlines() or [f"ended with {code}"])[-1])


def try_to_ask(
    script: str | Path, *arguments: str, measuring: bool, limit: float | None = None, **settings: str
) -> dict[str, Any]:
    """The same, or why it `failed`."""
    try:
        return ask(script, *arguments, measuring=measuring, limit=limit, **settings)
    except AskError as failed:
        return {"failed": str(failed)}
