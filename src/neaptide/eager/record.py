"""What one watched step showed: its ops, and the life of every storage that it made, as arrays that go to JSON and back.

Made by `observe.py`; `figures.py` reads out of it what each call of a block takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neaptide.allocator import allocated

FORWARD, AGAIN, BACKWARD = 0, 1, 2
GRADIENT, OUTPUT = 1, 2
"""What a storage is beside that: a gradient that stays, or the first output of the model; others have the numbers after it."""
WHOLE = -1


@dataclass(frozen=True, eq=False)
class Record:
    """A step as arrays. Of each op: its place, phase and part. Of each storage that the step made: bytes asked for, the ops
    between which it lives, the place, phase and part it was made in, whether it is a gradient that stays, a result of a block
    (the first time, or again), a result of a part, made by an op whose results selective checkpointing keeps."""

    marks: np.ndarray
    lives: np.ndarray
    """(storages, 8): born, dies, place, phase, part, is a gradient (2 and more: an output of the model), is a result (2: of a
    repeated run; 3: of a part), is kept."""
    asked: np.ndarray
    turn: int
    calls: tuple[tuple[str, int, int, tuple[str, ...]], ...]
    """Of each call: the block's name, its number of likeness, the place that speaks for it, its parts."""
    given: tuple[tuple[int, ...], ...]
    """Of each call: the storages of its tensor arguments, in order; -1 for what was there before the step."""
    reads: np.ndarray
    """(reads, 3): a storage, the place and part of autograd's ops that read it."""
    device: str = "cpu"

    def is_like(self, other: Record) -> bool:
        """Whether two steps differ in sizes alone."""
        return (
            self.turn == other.turn
            and self.calls == other.calls
            and self.given == other.given
            and np.array_equal(self.reads, other.reads)
            and np.array_equal(self.lives, other.lives)
            and np.array_equal(self.marks, other.marks)
        )

    def to_json(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in ("marks", "lives", "asked", "reads")}
        return {**arrays, "turn": self.turn, "calls": self.calls, "given": self.given, "device": self.device}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Record:
        calls = tuple((str(n), int(a), int(s), tuple(map(str, parts))) for n, a, s, parts in data["calls"])
        marks = np.array(data["marks"], dtype=np.int64).reshape(-1, 3)
        lives = np.array(data["lives"], dtype=np.int64).reshape(-1, 8)
        asked = np.array(data["asked"], dtype=np.int64)
        reads = np.array(data["reads"], dtype=np.int64).reshape(-1, 3)
        given = tuple(tuple(map(int, storages)) for storages in data["given"])
        known = [storage for call in given for storage in call] + reads[:, 0].tolist()
        fits = len(asked) == len(lives) and len(given) == len(calls) and max(known, default=-1) < len(lives)
        if not fits or (len(lives) and lives[:, :2].max() > len(marks) + 1):
            raise ValueError("its arrays do not fit each other")
        return Record(marks, lives, asked, int(data["turn"]), calls, given, reads, str(data["device"]))

    def taken(self, asked: np.ndarray | None = None) -> np.ndarray:
        """Bytes that storages take, of those asked for here or other ones."""
        given = self.asked if asked is None else asked
        unique, places = np.unique(given, return_inverse=True)
        return np.array([allocated(int(size), self.device) for size in unique], dtype=np.int64)[places]
