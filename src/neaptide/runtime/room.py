"""What a graph may take: at its peak, and of that what it may leave behind for its backward."""

from __future__ import annotations

from dataclasses import dataclass

ANYTHING = 1 << 62
"""More bytes than there are."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes beyond what is there before a graph runs.

    >>> Room(100, 40).holds(80, 30), Room(100, 40).holds(80, 50)
    (True, False)
    """

    peak: int
    kept: int

    def holds(self, peak: int, kept: int) -> bool:
        """Whether something that takes `peak` and leaves `kept` behind fits."""
        return peak <= self.peak and kept <= self.kept

    def beyond(self, peak: int, kept: int) -> tuple[int, int]:
        """How far something is from fitting: first by its peak, and where that fits by what it leaves behind.

        >>> Room(100, 40).beyond(80, 50) < Room(100, 40).beyond(90, 60) < Room(100, 40).beyond(120, 30)
        True
        """
        return max(peak, self.peak), kept
