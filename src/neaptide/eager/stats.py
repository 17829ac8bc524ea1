"""What happened under `adapt` so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from neaptide.runtime.observe import Observation


@dataclass
class AdaptStats:
    """Calls that trained, sizes seen, plans made, calls that found one, steps that were looked at (on fakes or for real)
    and the seconds of all that; times that memory ran out; which predictor and why; what steps at new sizes took that took
    more than any before; the highest level that was planned for."""

    calls: int = 0
    sizes: int = 0
    plans: int = 0
    hits: int = 0
    probes: int = 0
    planning_seconds: float = 0.0
    setup_seconds: float = 0.0
    recoveries: int = 0
    splits: int = 0
    predictor: str = ""
    why: str = ""
    predicted: int = 0
    observed: list[Observation] = field(default_factory=list)
    captures: int = 0

    def __str__(self) -> str:
        share = f"{self.hits} of {self.calls} calls found a plan" if self.calls else "nothing has run"
        return (
            f"{self.sizes} sizes, {self.plans} plans, {share}, {self.probes} steps looked at ({self.predictor or 'none'}), "
            f"{self.planning_seconds:.2f} s of planning"
        )
