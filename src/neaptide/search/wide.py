"""The wide places of a training step in parts: of what a block widens (an MLP, scores of attention) the backward has only a few
rows at a time.

In: a joint graph. Out: a region of the backward for each wide place, which makes what it needs of the forward once more. That
is what hangs together by values that are wider than the stream that runs through the whole model: in a transformer, the MLP of
one layer, from its first product in the forward to its last in the backward.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from neaptide.apply import reordered
from neaptide.graph import Graph
from neaptide.search.chunk.net import Net
from neaptide.search.chunk.regions import Region, grow
from neaptide.steps import reads_of_parts

aten = torch.ops.aten
WIDER = 1.5
"""What has so many times the bytes of the stream is wide."""
NARROW = 0.1
"""The share of the forward's places, the narrowest, that tells how wide the stream is."""
LOSSES = (aten.nll_loss_forward.default, aten.nll_loss_backward.default)


@dataclass(frozen=True, slots=True)
class Place:
    """What hangs together: the ops of the forward that make something wide, those of the backward that read or make it, and the
    memory that they have in common."""

    forward: frozenset[int]
    backward: tuple[int, ...]
    storages: frozenset[int]


def widened(graph: Graph) -> frozenset[int]:
    """The values of a graph that are wide, and those that are drawn of such."""
    found = _wide(graph)
    wide = {v for v, value in enumerate(graph.values) if value.storage in found}
    drawn = (op for op in graph.ops if op.random and not wide.isdisjoint(op.inputs))
    return frozenset(wide.union(v for op in drawn for v in op.outputs))


def gathered(graph: Graph) -> Graph:
    """The graph in which the ops of the backward at one wide place follow each other, with only what they need between them."""
    groups = [place.backward for place in places(graph)]
    return reordered(graph, one_behind_the_other(graph, groups)) if groups else graph


def one_behind_the_other(graph: Graph, groups: Iterable[Sequence[int]]) -> list[int]:
    """An order in which the ops of each group follow each other from where its first one was, each after what it needs."""
    first = {group[0]: group for group in groups}
    order: list[int] = []
    placed: set[int] = set()

    def place(op: int) -> None:
        for value in graph.ops[op].inputs:
            maker = graph.maker[value]
            if maker is not None and maker not in placed:
                place(maker)
        if op not in placed:
            placed.add(op)
            order.append(op)

    for op in range(len(graph.ops)):
        for each in first.get(op, (op,)):
            place(each)
    return order


def wide_regions(graph: Graph, taken: Collection[int] = ()) -> list[Region]:
    """Regions of the backward at the wide places of a graph that was `gathered`; ops in `taken` are in other regions."""
    net = Net(graph)
    found: list[Region] = []
    for place in places(graph, frozenset(taken)):
        region = _region(net, place)
        if region is not None and not any(op in taken for op in range(region.start, region.stop)):
            found.append(region)
    lined = sorted(found, key=lambda region: region.start)
    return [region for at, region in enumerate(lined) if not at or lined[at - 1].stop <= region.start]


def _region(net: Net, place: Place) -> Region | None:
    """A region that covers a place, if it can be along what grows with the inputs: rows rather than columns."""
    graph = net.graph
    start, stop = place.backward[0], place.backward[-1] + 1
    other: Region | None = None
    for seed in place.backward:
        for axis in () if net.is_view(seed) else net.axes(seed):
            region = grow(net, seed, axis, start, stop, place.forward, claims=True)
            if region is None or not _covers(graph, region, place):
                continue
            if graph.sizes.expressions[region.extent].free_symbols:
                return region
            other = other or region
    return other


def _covers(graph: Graph, region: Region, place: Place) -> bool:
    """Whether nothing wide is there whole: all that the backward does with it is in the region, and it is made there too."""
    looped = {part.op for part in region.parts}
    read = {graph.values[v].storage for v in reads_of_parts(graph, region.parts)}
    made = {graph.values[made.value].storage for made in region.made}
    return set(place.backward) <= looped and not (read | made) & place.storages


def places(graph: Graph, taken: frozenset[int] = frozenset()) -> list[Place]:
    """The wide places of a graph, but for those of ops in `taken`, of losses, and of what is random or has effects."""
    wide = _wide(graph)
    owner: dict[int, int] = {s: s for s in wide}

    def root(storage: int) -> int:
        while owner[storage] != storage:
            owner[storage] = storage = owner[owner[storage]]
        return storage

    touched: dict[int, list[int]] = {}
    for index, op in enumerate(graph.ops):
        own = [s for v in (*op.inputs, *op.outputs) if (s := graph.values[v].storage) in wide and s is not None]
        if own:
            touched[index] = own
            for other in own[1:]:
                owner[root(other)] = root(own[0])
    groups: dict[int, list[int]] = {}
    for index, own in touched.items():
        groups.setdefault(root(own[0]), []).append(index)
    found = []
    for group in groups.values():
        forward = frozenset(op for op in group if graph.ops[op].phase == "forward" and _makes(graph, op, wide))
        backward = tuple(op for op in group if graph.ops[op].phase == "backward")
        plain = all(_is_plain(graph, op) and op not in taken for op in (*forward, *backward))
        if forward and len(backward) > 1 and plain and _is_in_one_piece(graph, backward):
            found.append(Place(forward, backward, frozenset(s for op in group for s in touched[op])))
    return found


def _is_in_one_piece(graph: Graph, ops: Sequence[int]) -> bool:
    """Whether ops can follow each other: none of them needs something that others have made of what they make."""
    own = set(ops)
    mine: set[int] = set()
    others: set[int] = set()
    for index in range(ops[0], ops[-1] + 1):
        op = graph.ops[index]
        if index in own:
            if not others.isdisjoint(op.inputs):
                return False
            mine.update(op.outputs)
        elif not mine.isdisjoint(op.inputs) or not others.isdisjoint(op.inputs):
            others.update(op.outputs)
    return True


def _makes(graph: Graph, op: int, storages: Collection[int | None]) -> bool:
    return any(graph.values[v].storage in storages for v in graph.ops[op].outputs)


def _is_plain(graph: Graph, index: int) -> bool:
    op = graph.ops[index]
    return not (op.random or op.once or op.writes or op.target in LOSSES)


def _wide(graph: Graph) -> frozenset[int]:
    """The storages that are wide and the graph's own: neither given, nor handed out, nor drawn at random."""
    sizes = graph.sizes.evaluate(graph.sizes.hints)
    foreign = {graph.values[v].storage for v in (*graph.inputs, *graph.constants, *graph.tangents)}
    foreign |= {graph.values[v].storage for v in (*graph.outputs, *graph.gradients) if v is not None}
    foreign |= {graph.values[v].storage for op in graph.ops if op.random for v in op.outputs}
    least = WIDER * _stream(graph, sizes)
    return frozenset(s for s, held in enumerate(graph.held) if s not in foreign and least and sizes[held] >= least)


def _stream(graph: Graph, sizes: Sequence[int]) -> float:
    """Bytes of what is alive at the narrow places of the forward."""
    lent = {graph.values[v].storage for v in (*graph.inputs, *graph.constants)}
    born: dict[int, int] = {}
    last: dict[int, int] = {}
    forward = [op for op in graph.ops if op.phase == "forward"]
    for now, op in enumerate(forward):
        for value in (*op.inputs, *op.outputs):
            storage = graph.values[value].storage
            if storage is not None and storage not in lent:
                born.setdefault(storage, now)
                last[storage] = now
    change = np.zeros(len(forward) + 1)
    for storage, begin in born.items():
        change[begin] += sizes[graph.held[storage]]
        change[last[storage]] -= sizes[graph.held[storage]]
    width = change.cumsum()
    width = width[width > 0]
    return float(np.quantile(width, NARROW)) if len(width) else 0.0
