"""What is alive when: the lives of storages over the steps of a run, and the peak that follows from them.

In: one `Life` per storage (and per op workspace), the label of each step. Out: bytes at each step, the peak,
the step it falls on, who holds it. A dry run of eager PyTorch and a planned program both end up here, so that
one table, one picture and one JSON form serve every prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, get_args

Kind = Literal[
    "parameter", "buffer", "gradient", "optimizer", "input", "output", "activation", "temporary", "workspace", "other"
]
"""What a storage is for. "activation" is what the forward keeps for the backward; "workspace" lives inside one op;
"other" is what was there before the run began and belongs to none of these (an earlier graph's, the user's)."""

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Life:
    """One storage: alive in the steps `born <= step < dies`.

    >>> Life("scores", "temporary", 4096, born=2, dies=5).bytes
    4096
    """

    name: str
    kind: Kind
    bytes: int
    born: int
    dies: int
    path: str = ""
    source: str = ""


@dataclass(frozen=True)
class Timeline:
    """The memory of one run, step by step.

    >>> line = Timeline(("load", "matmul", "store"), (Life("x", "input", 10, 0, 3), Life("y", "temporary", 5, 1, 2)))
    >>> line.bytes, line.peak, line.steps[line.peak_step]
    ((10, 15, 10), 15, 'matmul')
    >>> [life.name for life in line.held_by]
    ['x', 'y']
    >>> line.parts["temporary"]
    5
    """

    steps: tuple[str, ...]
    lives: tuple[Life, ...]

    @cached_property
    def bytes(self) -> tuple[int, ...]:
        """Bytes alive during each step."""
        change = [0] * (len(self.steps) + 1)
        for life in self.lives:
            change[life.born] += life.bytes
            change[life.dies] -= life.bytes
        return tuple(accumulate(change[:-1]))

    @property
    def peak(self) -> int:
        return max(self.bytes, default=0)

    @cached_property
    def peak_step(self) -> int:
        """The first step at which the peak is reached."""
        return self.bytes.index(self.peak) if self.steps else 0

    def at(self, step: int) -> tuple[Life, ...]:
        """What is alive during `step`, largest first."""
        alive = (life for life in self.lives if life.born <= step < life.dies)
        return tuple(sorted(alive, key=lambda life: -life.bytes))

    @property
    def held_by(self) -> tuple[Life, ...]:
        """What is alive at the peak, largest first."""
        return self.at(self.peak_step)

    @cached_property
    def parts(self) -> Mapping[Kind, int]:
        """Bytes at the peak by kind; every kind is there."""
        parts: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        for life in self.held_by:
            parts[life.kind] += life.bytes
        return parts

    def to_json(self) -> dict[str, Any]:
        return {"steps": list(self.steps), "lives": [asdict(life) for life in self.lives]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Timeline:
        return Timeline(tuple(data["steps"]), tuple(Life(**life) for life in data["lives"]))

    def then(self, later: Iterable[Timeline]) -> Timeline:
        """This run followed by others, each beginning where the one before it ended."""
        steps, lives = list(self.steps), list(self.lives)
        for line in later:
            shift = len(steps)
            steps.extend(line.steps)
            for life in line.lives:
                lives.append(
                    Life(
                        life.name,
                        life.kind,
                        life.bytes,
                        life.born + shift,
                        life.dies + shift,
                        life.path,
                        life.source,
                    )
                )
        return Timeline(tuple(steps), tuple(lives))


class Predicted:
    """What is known of anything that has a timeline."""

    timeline: Timeline

    @property
    def peak(self) -> int:
        """The predicted peak of the whole step, in bytes."""
        return self.timeline.peak

    @property
    def parts(self) -> Mapping[Kind, int]:
        """The peak by what it is made of."""
        return self.timeline.parts

    @property
    def held_by(self) -> tuple[Life, ...]:
        """What is alive at the peak, largest first."""
        return self.timeline.held_by
