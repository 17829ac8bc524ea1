"""How far work has come that takes a while: a bar on a terminal, a line in the log.

In: what is done, in how many parts. Out: a function to call after each of them. Nothing is shown before half a second has
passed, nor where nobody looks: the log (`TORCH_LOGS="+neaptide"`) says how long it took.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SOON = 0.5
"""Seconds before anything is shown."""

log = logging.getLogger(__name__)


@contextmanager
def progress(what: str, parts: int) -> Iterator[Callable[[], None]]:
    """Show how far `what` has come, of so many parts.

    >>> with progress("counting", 3) as advance:
    ...     for _ in range(3):
    ...         advance()
    """
    begin = time.perf_counter()
    done = 0
    shown: Any = None

    def advance() -> None:
        nonlocal done, shown
        done += 1
        if shown is None and time.perf_counter() - begin > SOON and sys.stderr.isatty():
            shown = _bar(what, parts)
        if shown is not None:
            shown.update(shown.task_ids[0], completed=done, refresh=True)

    try:
        yield advance
    finally:
        if shown is not None:
            shown.stop()
        log.info("%s took %.1f s", what, time.perf_counter() - begin)


def _bar(what: str, parts: int) -> Any:
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    bar.add_task(f"neaptide: {what}", total=parts)
    bar.start()
    return bar
