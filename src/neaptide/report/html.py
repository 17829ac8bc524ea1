"""Timelines as one self-contained page: stacked areas by kind, the peak marked, who holds each step on hover.

In: named timelines (before and after, say), lines to draw across them (a budget, a measured peak), and ways to run a step, to
be drawn by peak and time. Out: HTML that loads nothing from anywhere. The page is `page.html` beside this file; only data is
put into it, so that its script can be read by itself. The `KEPT` largest lives are sent one by one; the rest are sums by kind,
which bounds the page.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from neaptide.errors import InputError
from neaptide.report.table import LABELS, format_bytes
from neaptide.timeline import Kind, Timeline

KEPT = 8000

STACK: tuple[Kind, ...] = (
    "parameter",
    "buffer",
    "optimizer",
    "gradient",
    "other",
    "input",
    "activation",
    "output",
    "temporary",
    "workspace",
)
"""From the bottom of the picture upwards: what stays first, so that what comes and goes is on top."""


@dataclass(frozen=True, slots=True)
class Point:
    """A way to run a step, in the picture of peaks and times; `front` says that none beats it in both."""

    method: str
    peak: int
    seconds: float
    throughput: float
    lossy: bool
    fits: bool
    front: bool
    best: bool
    note: str


def render_html(
    timelines: Timeline | Mapping[str, Timeline],
    title: str = "Neaptide",
    lines: Mapping[str, int] | None = None,
    points: Sequence[Point] = (),
) -> str:
    """The page as text. `lines` are horizontal lines by name, in bytes; `points` are drawn above, by peak and time.

    >>> from neaptide.timeline import Life
    >>> before = Timeline(("mm", "add"), (Life("x", "input", 10, 0, 2), Life("y", "temporary", 90, 1, 2)))
    >>> page = render_html({"before": before}, title="tiny <model>", lines={"budget": 80})
    >>> "tiny &lt;model&gt;" in page, "https:" in page
    (True, False)
    """
    named = {"": timelines} if isinstance(timelines, Timeline) else dict(timelines)
    if not named:
        raise InputError("there is no timeline to draw; pass one, or a dict of them by name")
    data = {
        "kinds": [[kind, LABELS[kind]] for kind in STACK],
        "lines": sorted((lines or {}).items(), key=lambda line: line[1]),
        "points": [asdict(point) for point in points],
        "charts": [_pack(name, line) for name, line in named.items()],
    }
    summary = "; ".join(f"{name + ': ' if name else ''}peak {format_bytes(line.peak)}" for name, line in named.items())
    page = resources.files("neaptide.report").joinpath("page.html").read_text(encoding="utf-8")
    values = {"title": html.escape(title), "summary": html.escape(summary), "data": _embed(data)}
    # In one pass, so that a name that looks like a place to fill in stays a name.
    return re.sub(r"{{(\w+)}}", lambda place: values[place[1]], page)


def write_html(
    path: str | Path,
    timelines: Timeline | Mapping[str, Timeline],
    title: str = "Neaptide",
    lines: Mapping[str, int] | None = None,
    points: Sequence[Point] = (),
) -> Path:
    """Write the page to a file and return its path.

    >>> import tempfile
    >>> write_html(Path(tempfile.mkdtemp()) / "run.html", Timeline(("mm",), ())).name
    'run.html'
    """
    path = Path(path)
    path.write_text(render_html(timelines, title, lines, points), encoding="utf-8")
    return path


def _embed(data: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever a name contains."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _pack(name: str, timeline: Timeline) -> dict[str, Any]:
    """A timeline in little space: strings once each, lives as rows of numbers, small lives as changes by kind."""
    strings: dict[str, int] = {}

    def place(text: str) -> int:
        return strings.setdefault(text, len(strings))

    row = {kind: index for index, kind in enumerate(STACK)}
    lives = sorted((life for life in timeline.lives if life.bytes), key=lambda life: -life.bytes)
    kept = [
        [place(life.name), place(life.path), place(life.source), row[life.kind], life.bytes, life.born, life.dies]
        for life in lives[:KEPT]
    ]
    changes: dict[tuple[int, int], int] = {}
    for life in lives[KEPT:]:
        for step, bytes in ((life.born, life.bytes), (life.dies, -life.bytes)):
            changes[step, row[life.kind]] = changes.get((step, row[life.kind]), 0) + bytes
    return {
        "name": name,
        "steps": [place(step) for step in timeline.steps],
        "lives": kept,
        "small": [[step, kind, bytes] for (step, kind), bytes in changes.items() if bytes],
        "strings": list(strings),
    }
