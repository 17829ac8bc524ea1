"""The end of a forward and the beginning of its backward in parts: of a loss over classes only a few rows are ever there.

In: a joint graph in which losses are sums (`rewrite.rows`). Out: the graph, with what reads something large right behind it;
a region of the forward, from the last that is small to the loss; and one of the backward, from the loss back to where it is
small again, which makes what it needs of the forward once more.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from neaptide.apply import reordered
from neaptide.axes import Axis, Flow
from neaptide.graph import Graph
from neaptide.search.chunk.net import Net
from neaptide.search.chunk.regions import Region, grow
from neaptide.search.wide import one_behind_the_other

aten = torch.ops.aten
NEARLY = 0.4
"""What has this share of the bytes of the scores, or more, is as large as they are: half of them, in half the precision."""


def has_loss(graph: Graph) -> bool:
    """Whether there is a loss over classes."""
    return any(op.target is aten.nll_loss_forward.default for op in graph.ops)


def loss_regions(graph: Graph) -> tuple[Graph, Region, Region] | None:
    """The graph and the regions of forward and backward; None where there is no such loss, or no way to make it in parts."""
    forward = _only(graph, aten.nll_loss_forward.default, "forward")
    backward = _only(graph, aten.nll_loss_backward.default, "backward")
    if forward is None or backward is None:
        return None
    net = Net(graph)
    along, back = _by_rows(net, forward), _by_rows(net, backward)
    if along is None or back is None:
        return None
    scores = net.operands[forward][0]
    sizes = _Sizes(graph, scores)
    made, readers = sizes.makers(net, scores), sizes.readers(net, backward)
    order = one_behind_the_other(graph, [readers])
    graph, stop = reordered(graph, order), order.index(readers[-1]) + 1
    net = Net(graph)
    after = grow(net, backward, back, backward, stop, made) if made else None
    if after is None:
        return None
    looped = {part.op for part in after.parts}
    again = {v for op in looped if op < after.start for v in graph.ops[op].outputs}
    for value in again:  # what the backward makes again for itself it does not read from the forward
        net.users[value] = [(user, at) for user, at in net.users[value] if user not in looped or user < after.start]
    before = grow(net, forward, along, min(made), forward + 1)
    return None if before is None else (graph, before, after)


def _only(graph: Graph, target: object, phase: str) -> int | None:
    """The one op of a kind."""
    found = [i for i, op in enumerate(graph.ops) if op.target is target and op.phase == phase]
    return found[0] if len(found) == 1 else None


def _by_rows(net: Net, op: int) -> Axis | None:
    """The axis along the rows of a loss."""
    return next((axis for axis in net.axes(op) if Flow(0) in axis.inputs), None)


class _Sizes:
    """What is as large as the scores."""

    def __init__(self, graph: Graph, scores: int) -> None:
        self.graph = graph
        self._bytes = graph.sizes.evaluate(graph.sizes.hints)
        self._least = NEARLY * self._of(scores)

    def _of(self, value: int) -> int:
        storage = self.graph.values[value].storage
        return 0 if storage is None else self._bytes[self.graph.storages[storage].size]

    def is_large(self, values: Iterable[int]) -> bool:
        return any(self._of(v) >= self._least for v in values)

    def makers(self, net: Net, scores: int) -> frozenset[int]:
        """The ops of the forward that the scores come from, as far back as what they make is as large, and not handed out."""
        found: set[int] = set()
        todo = [scores]
        while todo:
            op = self.graph.maker[todo.pop()]
            if op is not None and op not in found and self._is_to_be_made(op):
                found.add(op)
                todo.extend(net.operands[op])
        return frozenset(found)

    def _is_to_be_made(self, op: int) -> bool:
        """Whether an op makes something as large that is not there in any case, to be handed out."""
        graph = self.graph
        handed = {graph.values[v].storage for v in graph.outputs if v is not None}
        made = graph.ops[op].outputs
        return self.is_large(made) and not any(graph.values[v].storage in handed for v in made)

    def readers(self, net: Net, first: int) -> list[int]:
        """Op `first` and all that read something as large that comes from it."""
        found: set[int] = set()
        todo = [first]
        while todo:
            op = todo.pop()
            if op not in found:
                found.add(op)
                if self.is_large(self.graph.ops[op].outputs):
                    todo.extend(user for v in self.graph.ops[op].outputs for user, _ in net.users[v])
        return sorted(found)
