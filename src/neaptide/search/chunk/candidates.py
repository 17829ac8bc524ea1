"""The regions worth a look: around whatever is large, as wide as they can be, and narrower between the waists of the graph.

In: a net and the sizes at which to look. Out: regions. A waist is a place where little is alive: what begins and ends there has
little to read and to hand on.
"""

from __future__ import annotations

from collections.abc import Iterator

from neaptide.axes import Axis, Flow
from neaptide.search.chunk.net import Net
from neaptide.search.chunk.regions import Region, grow
from neaptide.search.chunk.weigh import Scales

LARGE = 1 / 16
"""What is below this share of the largest result seeds no region of its own."""
WAISTS = 6


def candidates(net: Net, scales: Scales) -> tuple[Region, ...]:
    """Regions of a graph, with cheap makers of what they read left outside or run again."""
    found: dict[Region, None] = {}
    seen: set[tuple[int, object]] = set()
    for seed, axis in _seeds(net, scales):
        if (seed, _key(axis)) in seen:
            continue
        widest = grow(net, seed, axis, 0, scales.forms.count, scales.forms.late)
        if widest is None:
            continue
        seen.update((part.op, _key(part.axis)) for part in widest.parts)
        found[widest] = None
        found.update(dict.fromkeys(_narrower(net, scales, widest)))
    return tuple(found)


def _key(axis: Axis) -> object:
    return axis.inputs, axis.outputs


def _seeds(net: Net, scales: Scales) -> Iterator[tuple[int, Axis]]:
    """The ops that make something large, largest first, with each of their axes."""
    graph = net.graph
    size: dict[int, int] = {}
    for index in range(len(graph.ops)):
        if not net.is_view(index) and index not in scales.forms.late:
            size[index] = sum(scales.storage_bytes(s) for s in _storages(net, index) if s in scales.forms.born)
    largest = max(size.values(), default=0)
    for index in sorted(size, key=lambda i: (-size[i], i)):
        if size[index] < largest * LARGE:
            return
        for axis in net.axes(index):
            if any(isinstance(how, Flow) for how in axis.outputs):
                yield index, axis


def _narrower(net: Net, scales: Scales, widest: Region) -> Iterator[Region]:
    """The regions between any two of the lowest waists of a wide one."""
    inside = range(widest.start + 1, widest.stop)
    lows = [
        p
        for p in inside
        if scales.entry[p] <= scales.entry[p - 1] and scales.entry[p] <= scales.entry[min(p + 1, scales.forms.count)]
    ]
    waists = sorted(sorted(lows, key=lambda p: scales.entry[p])[:WAISTS])
    bounds = [widest.start, *waists, widest.stop]
    axis_of = {part.op: part.axis for part in widest.parts}
    largest = {op: max((scales.storage_bytes(s) for s in _storages(net, op)), default=0) for op in axis_of}
    for first, start in enumerate(bounds):
        for stop in bounds[first + 1 :]:
            inner = [op for op in axis_of if start <= op < stop]
            if inner and (start, stop) != (widest.start, widest.stop):
                seed = max(inner, key=lambda op: largest[op])
                region = grow(net, seed, axis_of[seed], start, stop, scales.forms.late)
                if region is not None:
                    yield region


def _storages(net: Net, op: int) -> list[int]:
    values = net.graph.values
    return [s for v in net.graph.ops[op].outputs if (s := values[v].storage) is not None]
