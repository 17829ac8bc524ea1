"""Asks processes of their own, one after the other, and remembers what they said.

A process that dies or takes too long is an answer with `failed`, so that one case never ends a run of hours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.chunking.families import FAMILIES
from benchmarks.chunking.variants import Variant
from benchmarks.common.asking import ROOT, try_to_ask

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

    def planning(self, variant: Variant) -> Answer:
        return self._ask("planning", [variant])

    def sweep(self, variants: Sequence[Variant]) -> Answer:
        return self._ask("sweep", variants)

    def rank(self, variants: Sequence[Variant]) -> Answer:
        return self._ask("rank", variants)

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
            self.answers[question] = try_to_ask(
                SCRIPT, "--case", question, measuring=what in ("peak", "sweep"), limit=self.limit
            )
        return self.answers[question]


def _name(variant: Variant) -> str:
    budget = f" inside {variant.budget / 1e6:,.0f} MB" if isinstance(variant.budget, int) else ""
    rewriting = "" if variant.rewrite else " without rewriting"
    return f"{variant.way} {variant.form} {variant.size}{budget}{rewriting}"
