"""A timeline as the pickle that PyTorch's memory_viz opens (https://pytorch.org/memory_viz, or offline
`python -m torch.cuda._memory_viz trace_plot FILE.pickle -o OUT.html`).

In: a `Timeline`. Out: one trace of `alloc` and `free_completed` events, as a caching allocator would have recorded it;
the events of segments are there because the viewer's history of the allocator places each block in one.
"""

from __future__ import annotations

import pickle
from itertools import accumulate
from pathlib import Path
from typing import Any

from neaptide.timeline import Life, Timeline

_ALIGNMENT = 512
"""Addresses are made up; that of each life is its own, so that a viewer cannot confuse two of them."""


def build_snapshot(timeline: Timeline, title: str = "neaptide") -> dict[str, Any]:
    """The snapshot as plain dicts and lists.

    >>> lives = Life("x", "input", 512, 0, 2), Life("y", "temporary", 1024, 0, 1, "fc", "net.py:7")
    >>> line = Timeline(("a", "b"), lives)
    >>> snapshot = build_snapshot(line)
    >>> events = [event for event in snapshot["device_traces"][0] if not event["action"].startswith("segment")]
    >>> [(event["action"], event["size"]) for event in events]
    [('alloc', 512), ('alloc', 1024), ('free_completed', 1024)]
    >>> events[1]["frames"][0]
    {'name': 'y (temporary)', 'filename': 'net.py', 'line': 7}
    """
    lives = [life for life in timeline.lives if life.bytes > 0 and life.born < life.dies]
    starts = accumulate((-(-life.bytes // _ALIGNMENT) * _ALIGNMENT for life in lives), initial=_ALIGNMENT << 20)
    placed = list(zip(lives, starts, strict=False))
    end = len(timeline.steps)
    # At one step what dies goes before what is born, as `Timeline` counts it.
    order = [(life.dies, 0, life, address) for life, address in placed if life.dies < end]
    order += [(life.born, 1, life, address) for life, address in placed]
    order.sort(key=lambda entry: entry[:2])
    frames = {address: _frames(timeline, life, title) for life, address in placed}
    events = []
    for step, born, life, address in order:
        for action in ("segment_alloc", "alloc") if born else ("free_completed", "segment_free"):
            events.append(_event(action, step, life, address, frames[address]))
    segments = [_segment(life, address, frames[address]) for life, address in placed if life.dies >= end]
    return {"segments": segments, "device_traces": [events], "allocator_settings": {}, "external_annotations": []}


def write_snapshot(path: str | Path, timeline: Timeline, title: str = "neaptide") -> Path:
    """Write the pickle; it holds dicts, lists, strings and ints alone.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "run.pickle"
    >>> write_snapshot(file, Timeline(("a",), (Life("x", "input", 512, 0, 1),))) == file
    True
    """
    path = Path(path)
    path.write_bytes(pickle.dumps(build_snapshot(timeline, title), protocol=4))
    return path


def _frames(timeline: Timeline, life: Life, title: str) -> list[dict[str, Any]]:
    """The innermost first: what it is and where it was written, the module it belongs to, the step that made it."""
    file, _, line = life.source.rpartition(":")
    known = line.strip().isdigit()
    frames = [
        {
            "name": f"{life.name} ({life.kind})",
            "filename": (file if known else life.source) or title,
            "line": int(line) if known else 0,
        }
    ]
    if life.path:
        frames.append({"name": life.path, "filename": "module", "line": 0})
    frames.append({"name": timeline.steps[life.born], "filename": "step", "line": life.born})
    return frames


def _event(action: str, step: int, life: Life, address: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": life.bytes, "stream": 0, "time_us": step, "frames": frames}


def _segment(life: Life, address: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    """What is still there at the end. Each life is a segment of its own: no free space between lives is claimed."""
    size = life.bytes
    block = {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": frames}
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "allocated_size": size,
        "active_size": size,
        "requested_size": size,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": [block],
    }
