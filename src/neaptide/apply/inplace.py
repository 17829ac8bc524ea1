"""Puts in-place back: an op whose first input dies with it writes its result over that input.

In: a program. Out: the same program, with less memory. AOTAutograd makes every in-place write functional; this finds
where writing in place is safe again, also where the user's code did not ask for it. A graph input that the graph itself
overwrites at its end (a cache) is written directly, and the copy at the end is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import fx

from neaptide.graph import Graph
from neaptide.instances import Instances
from neaptide.legality import check
from neaptide.ops import can_write_onto_first
from neaptide.program import Program, with_drops
from neaptide.steps import Add, Drop, Fetch, Loop, Rerun, Run, Same, Send, Step, Turn, reads

COPY = torch.ops.aten.copy_.default


def write_in_place(program: Program) -> Program:
    """The program with every safe in-place write put in."""
    graph = program.graph
    last, candidates = _last_reads(program)
    state = _State(graph, last, candidates, _overwritten_inputs(graph), Instances(program))
    steps: list[Step] = []
    for position, step in enumerate(program.steps):
        chosen = step
        if isinstance(step, (Run, Rerun)):
            onto = state.target(position)
            if onto is not None:
                chosen = type(step)(step.op, onto)
            elif (there := state.copied_already(step.op)) is not None:
                chosen = Same(step.op, there)
        fresh, _ = state.merged.follow(chosen)
        if isinstance(chosen, (Run, Rerun, Fetch, Loop)):
            state.ours.update(fresh)
        elif isinstance(chosen, Turn):  # what the forward saved may be read by a second backward
            state.ours.clear()
        if not isinstance(chosen, Drop):
            steps.append(chosen)
    return check(with_drops(graph, steps, program.absent, program.carried))


@dataclass(slots=True)
class _State:
    """Where values live with the in-place writes chosen so far (`merged`); without them, the last read of each memory and, by
    position, the inputs that could be written over and their memory."""

    graph: Graph
    last: dict[int, int]
    candidates: dict[int, tuple[int, int]]
    overwritten: frozenset[int]
    merged: Instances
    ours: set[int] = field(default_factory=set)

    def target(self, position: int) -> int | None:
        """The input that the op at a position may write over, if there is one."""
        found = self.candidates.get(position)
        if found is None or self.last.get(found[1]) != position:
            return None
        memory = self.merged.home[found[0]]
        mine = memory in self.ours or memory in {self.merged.home.get(v) for v in self.overwritten}
        return found[0] if mine else None

    def copied_already(self, index: int) -> int | None:
        """The value that op `index` copies, if that lives already in the memory that it is copied onto."""
        op = self.graph.ops[index]
        if op.target is not COPY or len(op.inputs) != 2:
            return None
        (onto, value) = op.inputs if op.inputs[0] == op.writes[0] else op.inputs[::-1]
        home = self.merged.home[onto]
        same = self.graph.spec(onto) == self.graph.spec(value)
        return value if same and home is not None and home == self.merged.home[value] else None


def overwritable(graph: Graph, index: int, home: Callable[[int], int | None]) -> int | None:
    """The input that an op could write its result over if nothing else needed it: of the same kind, and at home where no other
    input is."""
    first = _alike(graph)[index]
    if first is None:
        return None
    own = home(first)
    return first if all(v == first or home(v) != own for v in graph.ops[index].inputs) else None


_found: WeakKeyDictionary[Graph, list[int | None]] = WeakKeyDictionary()


def _alike(graph: Graph) -> list[int | None]:
    """For each op its first input, where the result could lie in its place: it can be written over, and is of the same kind."""
    if graph not in _found:
        _found[graph] = [_like_first(graph, index) for index in range(len(graph.ops))]
    return _found[graph]


def _like_first(graph: Graph, index: int) -> int | None:
    op, first = graph.ops[index], _first(graph, index)
    if first is None or len(op.outputs) != 1 or not can_write_onto_first(op.target):
        return None
    old, new = graph.values[first], graph.values[op.outputs[0]]
    if old.storage is None or new.storage is None or new.storage == old.storage:
        return None
    (made,), sizes = op.outputs, [graph.storages[s].size for s in (old.storage, new.storage)]
    return first if sizes[0] == sizes[1] and graph.spec(first) == graph.spec(made) else None


def _first(graph: Graph, index: int) -> int | None:
    """The value that is the first argument of an op."""
    node = graph.ops[index].node
    given = node.args[0] if node.args else None
    if not isinstance(given, fx.Node):
        return None
    return next((v for v in graph.ops[index].inputs if _names(graph, v, given)), None)


def _names(graph: Graph, value: int, node: fx.Node) -> bool:
    """Whether `node` stands for `value`: it made it, or takes it out of a result of several parts."""
    owner = graph.values[value]
    if owner.part is None:
        return owner.node is node
    return node.op == "call_function" and node.args[0] is owner.node and node.args[1:] == (owner.part,)


def _last_reads(program: Program) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """For each instance, the position of the last step that reads any of its values; what is handed out: past the end. And for
    each position the input that its op could write over, with its instance."""
    graph, memory = program.graph, Instances(program)
    last: dict[int, int] = {}
    candidates: dict[int, tuple[int, int]] = {}
    for position, step in enumerate(program.steps):
        if isinstance(step, (Run, Rerun)):
            op = graph.ops[step.op]
            overwrites = op.writes[0] if op.target is COPY else None
            read = {memory.home[v] for v in op.inputs if v != overwrites}
            last.update((home, position) for home in read if home is not None)
            first = overwritable(graph, step.op, memory.home.__getitem__)
            home = None if first is None else memory.home[first]
            if first is not None and home is not None:
                candidates[position] = (first, home)
        elif isinstance(step, (Send, Same, Add, Loop)):
            homes = (memory.home[v] for v in reads(graph, step))
            last.update((home, position) for home in homes if home is not None)
        elif isinstance(step, Turn):
            carried = (memory.home.get(v) for v in program.carried)
            last.update((home, position) for home in carried if home is not None)
        memory.follow(step)
    for value in program.handed:
        home = memory.home[value]
        if home is not None:
            last[home] = len(program.steps)
    return last, candidates


def _overwritten_inputs(graph: Graph) -> frozenset[int]:
    """The inputs that an inference graph overwrites whole, with a `copy_` at its end.

    Not in training: a forward that fails must leave its inputs as they were, so that it can be tried again.
    """
    if graph.trains:
        return frozenset()
    copied = {op.writes[0] for op in graph.ops if op.target is COPY}
    storages = [graph.values[v].storage for v in graph.inputs]
    return frozenset(v for v in graph.inputs if v in copied and storages.count(graph.values[v].storage) == 1)
