"""What of a loop's round a compiler may take in one go.

In: a `Round`. Out: its nodes in order, those that can run as one put together. Writes to the results stay outside, behind the
kernels; so does what depends on where in the whole a part lies. A round's rows are a free size like the others, so that the
same kernels do a shorter part.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import sympy
import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import map_arg

from neaptide._torch import new_size, new_sizes
from neaptide.axes import Flow
from neaptide.graph import Graph
from neaptide.inner.calls import Fuse, call
from neaptide.inner.compiler import Kernels
from neaptide.inner.fragment import Fragment, Home
from neaptide.inner.look import Look, look
from neaptide.inner.straight import FEWEST, home
from neaptide.loops import signature
from neaptide.memory import executed, sizes_at
from neaptide.program import Program
from neaptide.rounds import Round
from neaptide.shapes import rows_of
from neaptide.sizes import print_expression
from neaptide.steps import Loop

aten = torch.ops.aten
ROWS, FIRST = "rows", "first"
"""How many units a part has, and where it begins, as free sizes."""
WRITES = aten.copy_.default
NUMBERS = frozenset({operator.sub, operator.mul})
VIEWS = frozenset({aten.reshape.default, operator.getitem})


@dataclass(frozen=True, eq=False)
class Within(Fragment):
    """Nodes of a round that run as one, with the writes and the numbers that stand between them."""

    round: Round
    nodes: tuple[fx.Node, ...]
    dims: tuple[int, ...] = ()

    @property
    def graph(self) -> Graph:
        return self.round.source

    @cached_property
    def key(self) -> Hashable:
        return (signature(self.graph, self.round.loop), self.first)

    @property
    def first(self) -> int:
        """Which part of the loop begins it."""
        return next((node.meta["part"] for node in self.inside if "part" in node.meta), 0)

    @cached_property
    def inside(self) -> tuple[fx.Node, ...]:
        """What is compiled."""
        return tuple(node for node in self.nodes if is_plain(node))

    @property
    def numbers(self) -> tuple[fx.Node, ...]:
        """What comes before it, computed from numbers."""
        return tuple(node for node in self.nodes if node.target in NUMBERS)

    @property
    def writes(self) -> tuple[fx.Node, ...]:
        """What comes behind it."""
        return tuple(node for node in self.nodes if node.target is WRITES)

    @cached_property
    def given(self) -> tuple[fx.Node, ...]:
        """What comes from outside, numbers included."""
        inside = set(self.inside)
        return tuple(dict.fromkeys(a for node in self.inside for a in node.all_input_nodes if a not in inside))

    @cached_property
    def made(self) -> tuple[fx.Node, ...]:
        """What is read or written behind it."""
        inside = set(self.inside)
        return tuple(node for node in self.inside if any(user not in inside for user in node.users))

    def at(self, dims: tuple[int, ...]) -> Within:
        return replace(self, dims=dims)

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        free = self.graph.sizes
        dims = self.dims or free.hints
        return (*((s.name, dim) for s, dim in zip(free.symbols, dims, strict=True)), (ROWS, self.cases(dims)[0][-1]))

    @cached_property
    def module(self) -> fx.GraphModule:
        made, given = self.begin()
        names = dict(zip(self.given, given, strict=True))
        for node in self.inside:
            names[node] = made.node_copy(node, names.__getitem__)
        made.output(tuple(names[node] for node in self.made))
        return fx.GraphModule({}, made)

    @property
    def looks(self) -> tuple[Look, ...]:
        return tuple(self._followed.looks[node] for node in self.given)

    @property
    def homes(self) -> tuple[Home | None, ...]:
        nodes = list(self.round.graph.nodes)
        later = nodes[nodes.index(self.nodes[-1]) + 1 :]
        read = {a for node in (*later, *self.nodes) if node not in set(self.inside) for a in node.all_input_nodes}
        found = self._followed.homes
        stay = {found[node] for node in read if node in found}
        mine = (found[node] for node in self.given)
        return tuple(replace(home, goes=False) if home is not None and home in stay else home for home in mine)

    @property
    def _followed(self) -> Followed:
        return follow(self.round, self.dims or self.graph.sizes.hints)

    def cases(self, dims: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [(*dims, rows) for rows in rows_at(self.round, dims)]

    def beside(self, dims: tuple[int, ...]) -> int:
        if self.first:
            return 0
        taken, values = sizes_at(self.graph, dims), self.graph.values
        fresh = (values[m.value].storage for m in self.round.loop.made if m.onto is None)
        return sum(taken[self.graph.storages[s].size] for s in fresh if s is not None)

    def places(self, program: Program, begin: int) -> list[int]:
        own, found, now = signature(self.graph, self.round.loop), [], 0
        for step in program.steps:
            if isinstance(step, Loop) and signature(self.graph, step) == own:
                found.append(now + self.first)
            now += executed(step)
        return found


@dataclass(frozen=True, slots=True)
class Followed:
    """What the nodes of a round look like, and where they lie."""

    looks: dict[fx.Node, Look]
    homes: dict[fx.Node, Home | None]


def rows_at(given: Round, dims: tuple[int, ...]) -> list[int]:
    """How many units the parts of a loop have: the most, and the fewest."""
    extent = given.source.sizes.evaluate(dims)[given.loop.extent]
    parts = max(-(-extent // given.loop.chunk), 1)
    return list(dict.fromkeys((rows_of(extent, given.loop.chunk), extent // parts)))


@lru_cache(maxsize=16)
def follow(given: Round, dims: tuple[int, ...]) -> Followed:
    """Run a round on fake tensors with symbolic sizes."""
    graph = given.source
    mode = new_sizes()
    rows = rows_at(given, dims)[0]
    hints = {s.name: dim for s, dim in zip(graph.sizes.symbols, dims, strict=True)} | {ROWS: rows, FIRST: rows}
    known = {name: new_size(mode, name, hint) for name, hint in hints.items()}
    names = {size.node.expr: sympy.Symbol(name, integer=True, positive=True) for name, size in known.items()}
    looks, homes = _outside(given)
    fakes: dict[fx.Node, Any] = {}
    owners: dict[int, Home | None] = {}
    with mode, torch.no_grad():
        for node in given.graph.nodes:
            if node.op == "placeholder":
                fakes[node] = looks[node].fake(known)
                if homes[node] is not None:
                    owners[_memory(fakes[node])] = homes[node]
            elif node.op == "call_function":
                args, kwargs = map_arg((node.args, node.kwargs), fakes.__getitem__)
                fakes[node] = made = node.target(*args, **kwargs)
                if isinstance(made, torch.Tensor):
                    held = made.untyped_storage().nbytes()
                    home = owners.setdefault(_memory(made), Home(node.name, look(held, names).shape[0], True))
                    looks[node], homes[node] = look(made, names), home
                elif isinstance(made, (int, torch.SymInt)):
                    looks[node], homes[node] = look(made, names), None
    return Followed(looks, homes)


def _memory(fake: torch.Tensor) -> int:
    return fake.untyped_storage()._cdata


def _outside(given: Round) -> tuple[dict[fx.Node, Look], dict[fx.Node, Home | None]]:
    """What comes into a round: numbers, parts of what is there and of what is made, and what is read whole."""
    graph = given.source
    holders = [node for node in given.graph.nodes if node.op == "placeholder"]
    sources = [FIRST, f"{FIRST} + {ROWS}", *(print_expression(graph.sizes.canonical(extra)) for extra in given.extras)]
    looks = {node: Look((source,)) for node, source in zip(holders, sources, strict=False)}
    homes: dict[fx.Node, Home | None] = dict.fromkeys(looks)
    tensors = [(node, cut.value, cut.flow) for cut, node in given.given.items()]
    tensors += [(given.results[m.value], m.value, m.how if isinstance(m.how, Flow) else None) for m in given.loop.made]
    for node, value, flow in tensors:
        looks[node] = _cut(look(graph.values[value].fake), flow)
        homes[node] = home(graph, value, False)
    return looks, homes


def _cut(whole: Look, flow: Flow | None) -> Look:
    if flow is None:
        return whole
    block = flow.block if isinstance(flow.block, int) else print_expression(flow.block)
    shape = list(whole.shape)
    shape[flow.dim] = f"{ROWS} * ({block})"
    return replace(whole, shape=tuple(shape))


def within(given: Round) -> Iterator[fx.Node | Within]:
    """The calls of a round in order, those that can run as one put together."""
    nodes = [node for node in given.graph.nodes if node.op == "call_function"]
    begin = 0
    while begin < len(nodes):
        end = begin
        while end < len(nodes) and (is_plain(nodes[end]) or _may_wait(nodes[end])):
            end += 1
        found = tuple(nodes[begin:end])
        if sum(is_plain(node) and _computes(node) for node in found) >= FEWEST:
            yield Within(given, found)
        else:
            yield from found
            yield from nodes[end : end + 1]
            end += 1
        begin = end


def with_kernels(given: Round, fuse: Fuse) -> tuple[fx.Graph, list[Kernels]]:
    """The graph of a round with what can run as one as one call, and its writes behind that; and what is called there."""
    graph, names, found = fx.Graph(), {}, []

    def copy(nodes: Iterable[fx.Node]) -> None:
        names.update((node, graph.node_copy(node, names.__getitem__)) for node in nodes)

    copy(node for node in given.graph.nodes if node.op == "placeholder")
    rows = graph.call_function(operator.sub, (names[given.hi], names[given.lo]))
    for each in within(given):
        kernels = fuse(each) if isinstance(each, Within) else None
        if kernels is None or isinstance(each, fx.Node):
            copy((each,) if isinstance(each, fx.Node) else each.nodes)
            continue
        copy(each.numbers)
        taken = (*(names[size] for size in given.sizes), rows, *(names[v] for v in each.given))
        names.update(zip(each.made, call(graph, len(found), taken, len(each.made)), strict=True))
        copy(each.writes)
        found.append(kernels)
    graph.output(())
    return graph, found


def is_plain(node: fx.Node) -> bool:
    """Whether a node does nothing but make tensors from others."""
    if node.target is operator.getitem:
        return is_plain(node.all_input_nodes[0])
    return isinstance(node.target, OpOverload) and not node.target._schema.is_mutable


def _may_wait(node: fx.Node) -> bool:
    """Whether a node may as well come behind what follows it, a write, or before what precedes it, a number."""
    return node.target is WRITES or node.target in NUMBERS


def _computes(node: fx.Node) -> bool:
    """Whether a node makes memory."""
    if node.target in VIEWS or not isinstance(node.target, OpOverload):
        return False
    return all(result.alias_info is None for result in node.target._schema.returns)
