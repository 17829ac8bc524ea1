"""One question to a benchmark in a process of its own, with the allocator that peaks or times want."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def ask(script: str, *what: str, measuring: bool) -> dict[str, Any]:
    """What `script --case ...` prints last, as JSON; or why it failed. Peaks are true only where freed tensors go back."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("MALLOC_MMAP_THRESHOLD_", None)
    if measuring:
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    command = [sys.executable, script, "--case", *what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["died"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])
