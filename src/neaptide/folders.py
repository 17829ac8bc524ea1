"""Where Neaptide keeps what the next process can use."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`NEAPTIDE_CACHE`, or the user's folder for such things."""
    own = os.environ.get("NEAPTIDE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "neaptide"
