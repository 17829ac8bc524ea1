"""Every error that Neaptide raises on purpose: what was wrong, the limit, and the nearest thing that would work."""

from __future__ import annotations


class NeaptideError(Exception):
    """The base of all errors raised on purpose."""


class InputError(NeaptideError, ValueError):
    """Something passed in cannot be used; the message says what would work."""


class CaptureError(NeaptideError):
    """A model could not be captured as a graph."""


class OffloadError(NeaptideError, OSError):
    """Nothing can be sent away: there is no disk for it, or it is full."""


class BudgetError(NeaptideError, MemoryError):
    """The budget cannot be met. Carries the figures, so that a script can act on them.

    >>> error = BudgetError("needs 2 GiB, budget 1 GiB", need=2 << 30, limit=1 << 30, smallest=2 << 30)
    >>> error.need - error.limit
    1073741824
    """

    def __init__(self, message: str, *, need: int, limit: int, smallest: int) -> None:
        super().__init__(message)
        self.need = need
        self.limit = limit
        self.smallest = smallest
