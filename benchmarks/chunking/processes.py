"""Asks processes of their own, one after the other, and remembers what they said.

A process that dies or takes too long is an answer with `failed`, so that one case never ends a run of hours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chunking.families import FAMILIES
from benchmarks.chunking.variants import Variant

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "chunk.py"
Answer = dict[str, Any]


@dataclass(slots=True)
class Bench:
    """The settings of a run, and the answers so far. `say` is told what is being asked."""

    layers: int | None
    size: int | None
    pairs: int
    limit: float
    say: Callable[[str], None]
    answers: dict[str, Answer] = field(default_factory=dict)

    def variant(self, family: str, size: int | None = None, **own: Any) -> Variant:
        known = FAMILIES[family]
        return Variant(family, size or self.size or known.size, self.layers or known.layers, **own)

    def peak(self, variant: Variant) -> Answer:
        return self._ask("peak", [variant])

    def plan(self, variant: Variant) -> Answer:
        return self._ask("plan", [variant])

    def plans(self, variants: Sequence[Variant]) -> Answer:
        return self._ask("plans", variants)

    def estimate(self, variant: Variant) -> Answer:
        return self._ask("estimate", [variant])

    def turns(self, variants: Sequence[Variant]) -> Answer:
        return self._ask("turns", variants)

    def _ask(self, what: str, variants: Sequence[Variant]) -> Answer:
        question = json.dumps(
            {"what": what, "variants": [each.to_json() for each in variants], "rounds": self.pairs}, sort_keys=True
        )
        if question not in self.answers:
            several = f" and {len(variants) - 1} more" if len(variants) > 1 else ""
            self.say(f"{variants[-1].family}: {what} of {_name(variants[-1])}{several}")
            self.answers[question] = _run(question, what == "peak", self.limit)
        return self.answers[question]


def _name(variant: Variant) -> str:
    budget = f" inside {variant.budget / 1e6:,.0f} MB" if isinstance(variant.budget, int) else ""
    rewriting = "" if variant.rewrite else " without rewriting"
    return f"{variant.way} {variant.form} {variant.size}{budget}{rewriting}"


def _run(question: str, measuring: bool, limit: float) -> Answer:
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("MALLOC_MMAP_THRESHOLD_", None)
    if measuring:
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    command = [sys.executable, str(SCRIPT), "--case", question]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"took over {limit:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return json.loads(lines[-1])
