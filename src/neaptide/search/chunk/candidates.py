"""The regions worth a look: around whatever is large, as wide as they can be, and narrower between the waists of the graph.

In: a net and the sizes at which to look. Out: regions. A waist is a place where little is alive: what begins and ends there has
little to read and to hand on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product

from neaptide.axes import Axis
from neaptide.search.chunk.net import Net
from neaptide.search.chunk.regions import Region, grow
from neaptide.search.chunk.stretches import Moved, Stretches
from neaptide.search.chunk.weigh import Scales

LARGE = 1 / 16
"""What is below this share of the largest result seeds no region of its own."""
WAISTS = 6
CLOSE = 3
"""How many waists away one is still close by."""


def candidates(net: Net, scales: Scales) -> tuple[tuple[Region, ...], Mapping[Region, Moved]]:
    """Regions of a graph, with cheap makers of what they read left outside or run again; and which are others, moved."""
    forms = scales.forms
    stretches = Stretches(net, forms.late, forms.born, forms.last)
    found: dict[Region, None] = {}
    seen: set[tuple[int, object]] = set()
    for seed, axis in _seeds(net, scales):
        if (seed, _key(axis)) in seen:
            continue
        widest = grow(net, seed, axis, 0, forms.count, forms.late)
        if widest is None:
            continue
        seen.update((part.op, _key(part.axis)) for part in widest.parts)
        found[widest] = None
        found.update(dict.fromkeys(_narrower(stretches, scales, widest)))
    return tuple(found), stretches.moved


def _key(axis: Axis) -> object:
    return axis.inputs, axis.outputs


def _seeds(net: Net, scales: Scales) -> Iterator[tuple[int, Axis]]:
    """The ops that make something large, or have it made again for them, largest first, with each of their axes."""
    graph = net.graph
    size: dict[int, int] = {}
    for index in range(len(graph.ops)):
        if not net.is_view(index) and index not in scales.forms.late:
            made = [s for s in _storages(net, index) if s in scales.forms.born]
            size[index] = sum(scales.storage_bytes(s) for s in (*made, *scales.forms.again([index])))
    largest = max(size.values(), default=0)
    for index in sorted(size, key=lambda i: (-size[i], i)):
        if size[index] < largest * LARGE:
            return
        for axis in net.axes(index):
            if any(how is not None for how in axis.outputs):
                yield index, axis


def _narrower(stretches: Stretches, scales: Scales, widest: Region) -> Iterator[Region]:
    """Its heads and tails at every waist, and what lies between any two of the lowest waists, or two close together."""
    axis_of = {part.op: part.axis for part in widest.parts}
    largest = {op: max((scales.storage_bytes(s) for s in _storages(stretches.net, op)), default=0) for op in axis_of}
    for start, stop in _bounds(scales, widest):
        inner = [op for op in axis_of if start <= op < stop and op not in scales.forms.late]
        if inner:
            seed = max(inner, key=lambda op: largest[op])
            region = stretches.grow(seed, axis_of[seed], start, stop)
            if region is not None:
                yield region


def _bounds(scales: Scales, widest: Region) -> Iterator[tuple[int, int]]:
    """Where a narrower region may begin and end: at either end of a waist, which may be long (views take nothing)."""
    entry, inside = scales.entry, range(widest.start + 1, widest.stop)
    waists: list[list[int]] = [[widest.start, widest.start]]
    for p in inside:
        if entry[p] <= entry[p - 1] and entry[p] <= entry[min(p + 1, scales.forms.count)]:
            if waists[-1][1] == p - 1 and entry[p] == entry[p - 1]:
                waists[-1][1] = p
            else:
                waists.append([p, p])
    waists.append([widest.stop, widest.stop])
    last = len(waists) - 1
    low = sorted(sorted(range(1, last), key=lambda w: entry[waists[w][0]])[:WAISTS])
    pairs = dict.fromkeys(combinations([0, *low, last], 2))
    for w in range(last):
        pairs.update(dict.fromkeys([(0, w + 1), (w, last), *((w, v) for v in range(w + 1, min(w + CLOSE, last) + 1))]))
    found = dict.fromkeys(bounds for w, v in pairs for bounds in product(waists[w], waists[v]))
    return (bounds for bounds in found if bounds != (widest.start, widest.stop))


def _storages(net: Net, op: int) -> list[int]:
    values = net.graph.values
    return [s for v in net.graph.ops[op].outputs if (s := values[v].storage) is not None]
