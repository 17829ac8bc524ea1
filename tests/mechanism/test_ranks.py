"""Two ranks over gloo, each a process of its own: gradients are averaged as without Neaptide, on every rung; budgets hold."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.mechanism.ranks import CASES

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def said() -> list[tuple[str, str]]:
    """What each of the ranks printed, on standard output and otherwise."""
    command, port = [sys.executable, "-m", "tests.mechanism.ranks"], str(free_port())
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [*command, str(rank), port],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        return [rank.communicate(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def test_two_ranks_are_as_without_and_inside_their_budgets() -> None:
    for out, trouble in said():
        assert [case for case in ("inside a budget", *CASES) if f"{case}: well" not in out.splitlines()] == [], trouble
