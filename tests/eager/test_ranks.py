"""Two ranks over gloo, with different lengths: gradients are averaged as without `adapt`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.eager.ranks import CASES
from tests.mechanism.test_ranks import free_port

ROOT = Path(__file__).parents[2]


def said() -> list[tuple[str, str]]:
    command, port = [sys.executable, "-m", "tests.eager.ranks"], str(free_port())
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    options = {"cwd": ROOT, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen([*command, str(rank), port], **options) for rank in range(2)]
    try:
        return [rank.communicate(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def test_two_ranks_are_as_without() -> None:
    for out, trouble in said():
        assert [case for case in CASES if f"{case}: well" not in out.splitlines()] == [], trouble
