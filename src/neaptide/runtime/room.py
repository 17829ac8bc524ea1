"""What a graph may take: at its peak, in its backward, and of that what it may leave behind between the two."""

from __future__ import annotations

from dataclasses import dataclass

from neaptide.search.chain import Take

ANYTHING = 1 << 62
"""More bytes than there are."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes beyond what is there before a graph runs; by the time of its backward, `later` bytes more are there, and what it
    handed out is gone or not.

    >>> Room(100, 40).holds(Take(80, 70, 30)), Room(100, 40).holds(Take(80, 70, 50)), Room(100, 40, 40).holds(Take(80, 70, 30))
    (True, False, False)
    """

    peak: int
    kept: int
    later: int = 0
    gone: bool = False

    def holds(self, take: Take) -> bool:
        """Whether a way to run fits."""
        return self.level(take) <= self.peak and take.kept <= self.kept

    def level(self, take: Take) -> int:
        """How high a way to run reaches.

        >>> Room(100, 40, 40).level(Take(80, 70, 30))
        110
        """
        return take.level(self.later, self.gone)

    def beyond(self, take: Take) -> tuple[int, int]:
        """How far a way to run is from fitting: first by its level, and where that fits by what it leaves behind.

        >>> room = Room(100, 40)
        >>> room.beyond(Take(80, 0, 50)) < room.beyond(Take(90, 0, 60)) < room.beyond(Take(120, 0, 30))
        True
        """
        return max(self.level(take), self.peak), take.kept
