"""What to keep at a price for keeping: the cheapest choice, found exactly as a minimum cut.

In: what the backward wants, what each storage costs to keep and each op to run again. Out: the storages to keep. A storage that
is wanted is kept, or the op that makes it runs again and wants what it reads: a cut through such a net parts what is run again
from what is not, and its cost is what that choice costs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from neaptide.search.recompute.judge import Judge
from neaptide.search.recompute.replay import Storages

WHOLE = 1 << 28
"""What all costs together are scaled to: flows are counted in 32 bits."""
NEVER = 1 << 30


class Cutter:
    """The net of one joint graph; only its prices change."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        wanted = self._ever_wanted()
        self.storages = sorted(wanted)
        self.ops = sorted({judge.op[s] for s in wanted})
        place = {s: 2 + i for i, s in enumerate(self.storages)}
        again = {op: 2 + len(place) + i for i, op in enumerate(self.ops)}
        edges: list[tuple[int, int]] = [(0, place[s]) for s in judge.wanted if s in place]
        self._first = len(edges)
        edges += [(place[s], again[judge.op[s]]) for s in self.storages]
        self._second = len(edges)
        edges += [(again[op], 1) for op in self.ops]
        self._third = len(edges)
        reads = {judge.op[s]: judge.maker[s].reads for s in self.storages}
        edges += [(again[op], place[s]) for op in self.ops for s in reads[op] if s in place]
        self._edges = np.array(edges).reshape(-1, 2)
        self._count = 2 + len(place) + len(again)

    def _ever_wanted(self) -> set[int]:
        """What the backward may want if all is run again that can be."""
        judge = self.judge
        found: set[int] = set()
        todo = list(judge.wanted)
        while todo:
            storage = todo.pop()
            if storage in found or storage in judge.handed or storage in judge.pinned:
                continue
            found.add(storage)
            todo.extend(s for s in judge.maker[storage].reads if s in judge.maker)
        return found

    def cut(self, keeping: Mapping[int, float], running: Mapping[int, float]) -> Storages:
        """The cheapest choice, where keeping a storage and running an op again cost so much."""
        prices = np.zeros(len(self._edges))
        total = sum(running[op] for op in self.ops) or 1.0
        scale = WHOLE / total
        prices[: self._first] = NEVER
        for i, s in enumerate(self.storages):
            prices[self._first + i] = NEVER if s in self.judge.unkept else min(keeping[s] * scale, NEVER)
        for i, op in enumerate(self.ops):
            prices[self._second + i] = min(running[op] * scale, NEVER)
        prices[self._third :] = NEVER
        capacities = csr_array((np.maximum(prices, 0).astype(np.int32), self._edges.T), shape=(self._count, self._count))
        found = maximum_flow(capacities, 0, 1)
        left = capacities - found.flow
        left.data[left.data < 0] = 0
        left.eliminate_zeros()
        reached = np.zeros(self._count, dtype=bool)
        reached[breadth_first_order(left, 0, return_predecessors=False)] = True
        half = 2 + len(self.storages)
        runs = {op for i, op in enumerate(self.ops) if reached[half + i]}
        return frozenset(s for i, s in enumerate(self.storages) if reached[2 + i] and self.judge.op[s] not in runs)
