"""The ways to run one inference graph in parts, at one size after the other.

In: a graph; then dims and the room there is. Out: selections of regions, best guess first: each is judged by the program made
of it, and what the judge says goes into the next guess.
"""

from __future__ import annotations

from collections.abc import Iterator

from neaptide.graph import Graph
from neaptide.hardware import this_machine
from neaptide.search.chunk import Net, Selection, candidates, select
from neaptide.search.chunk.forms import Forms
from neaptide.search.chunk.kinds import Kinds
from neaptide.search.chunk.select import Paths
from neaptide.search.chunk.weigh import Prices, Scales

GUESSES = 6
AS_LOW = 0.99
WORTH = 1.05
"""What fits whole, once it is rewritten, runs in parts where that looks faster by more than this."""
LARGE = 1 / 64
"""What is below this share of the largest result is kept, however cheap it is."""


class Chunking:
    """What was found out about a graph's regions so far."""

    def __init__(self, graph: Graph) -> None:
        self.net = Net(graph)
        self._forms: list[tuple[Forms, Kinds]] = []
        self._paths: dict[tuple[int, ...], list[Paths]] = {}

    def ways(self, dims: tuple[int, ...], room: int | None, exact: bool) -> Ways:
        """Selections for a size: the fastest in the room there is, or without one the lowest."""
        if dims not in self._paths:
            self._paths[dims] = self._find_paths(dims)
        return Ways(self._paths[dims], room, exact)

    def _find_paths(self, dims: tuple[int, ...]) -> list[Paths]:
        machine = this_machine(self.net.graph.device)
        if not self._forms:
            self._look(Prices(self.net, dims, machine))
        prices = Prices(self.net, dims, machine)
        return [Paths(Scales(forms, prices), kinds) for forms, kinds in self._forms]

    def _look(self, prices: Prices) -> None:
        """Find the regions, as they are at one size: the table of sizes grows by those that they name."""
        scales = Scales(Forms(self.net), prices)
        variants = dict.fromkeys((frozenset(), self._better_again(scales, False), self._better_again(scales, True)))
        for late in variants:
            forms = Forms(self.net, late)
            forms.add(*candidates(self.net, Scales(forms, prices)))
            self._forms.append((forms, Kinds(forms)))

    def _better_again(self, scales: Scales, rows: bool) -> frozenset[int]:
        """The ops whose results are better made again for each use than kept: large, light, and made of little (masks).

        With `rows`, also what is made, row by row, of something that is there as long anyway (a norm of the residual).
        """
        graph, forms = self.net.graph, scales.forms
        largest = max((scales.storage_bytes(s) for s in forms.born), default=0)
        kept = {s for v in self.net.handed if (s := graph.values[v].storage) is not None}
        found: set[int] = set()

        def size(value: int) -> int:
            storage = graph.values[value].storage
            return 0 if storage is None else scales.storage_bytes(storage)

        def last(value: int) -> int:
            return forms.last.get(graph.values[value].storage or -1, forms.count)

        for op in sorted(self.net.light | self.net.norms if rows else self.net.light):
            made = graph.ops[op].outputs
            large = max(size(v) for v in made)
            if large < largest * LARGE or any(graph.values[v].storage in kept for v in made):
                continue
            needed = max(last(v) for v in made)
            given = [v for v in self.net.operands[op] if graph.maker[v] not in found]
            if given and self.net.is_view(op):  # it takes nothing, and what it looks at is there
                continue
            if all(size(v) <= large / 16 or (rows and last(v) >= needed) for v in given):
                found.add(op)
        return frozenset(found)


class Ways:
    """Selections one after the other, each told what the one before it really takes."""

    def __init__(self, paths: list[Paths], room: int | None, exact: bool) -> None:
        self._paths, self._room, self._exact = paths, room, exact
        self._excess = 0

    def told(self, peak: int) -> None:
        """The last selection really takes this much."""
        if self._room is not None:
            self._excess += max(peak - self._room, self._room // 500)

    def pays(self, way: Selection) -> bool:
        """Whether a selection is clearly faster than nothing in parts."""
        return way.seconds * WORTH < min(sum(p.seconds) for p in self._paths)

    def __iter__(self) -> Iterator[Selection]:
        if self._room is not None:
            for _ in range(GUESSES):
                found = select(self._paths, self._room - self._excess, self._exact)
                if found is None:
                    break
                yield found
        yield from self._lowest()

    def _lowest(self) -> Iterator[Selection]:
        """The selections with the smallest peak: changing no bit, and, if that is lower by more than nothing, changing some."""
        reached = None
        for exact in (True, False)[: 1 if self._exact else 2]:
            limit, paths = min(((p.lowest(exact), p) for p in self._paths), key=lambda pair: pair[0])
            if reached is None or limit < reached * AS_LOW:
                reached = limit
                found = paths.fastest(limit, exact)
                if found is not None:
                    yield found
