"""One sheltered step, watched: every storage's life, and the call of a block that it belongs to.

In: a model whose blocks are all checkpointed, while one step runs, on fake tensors (nothing is executed) or for real. Out:
a `Record`. A sheltered step shows each block's forward twice without running it twice for this: once leaving nothing
behind, and once more in the backward, keeping all that a plain forward would have kept. Calls of alike blocks with alike
arguments need not all be run on fakes: a stand-in gives back results and gradients of the same form, and the first of them
speaks for all.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import set_checkpoint_early_stop

from neaptide._torch import autograd_sequence, current_autograd_node
from neaptide.accounting import Accounting, Entry, storages, tensors_in
from neaptide.eager.blocks import Unit
from neaptide.eager.record import AGAIN, BACKWARD, FORWARD, GRADIENT, OUTPUT, WHOLE, Record
from neaptide.eager.strengths import KEPT_OPS, checkpointed

LATE = 1 << 62
"""Numbers from here on are of autograd's nodes that add up gradients: they run as soon as they can."""
KEPT_NAMES = frozenset(op._schema.name.removeprefix("aten::") for op in KEPT_OPS)


@dataclass(eq=False, slots=True)
class Seen:
    """One call of a block: which, where it stands among all, and what came out of it the first time and again."""

    unit: Unit
    place: int
    speaks: int
    """The place of the call that speaks for it: its own, or that of one that is alike."""
    given: list[Entry | None] = field(default_factory=list)
    """The storages of its tensor arguments, in order."""
    results: list[Entry] = field(default_factory=list)
    again: list[Entry] = field(default_factory=list)
    parts: list[list[Entry]] = field(default_factory=list)


class Trail:
    """Follows a step: for each op, the place (calls of blocks are odd, what lies before, between and after them is even),
    whether it belongs to a forward, one that is repeated, or a backward, and the part of the block."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, int, int]] = [(0, FORWARD, WHOLE)]
        self.calls: list[Seen] = []
        self.place_now = 0
        self.accounting: Accounting | None = None
        """Who is told whether an op is autograd's own."""
        self.reads: dict[int, set[tuple[int, int]]] = {}
        """Of storages that ops of a backward read: the places and parts of those ops."""
        self._inside: list[tuple[int, int, int]] = []
        self._numbers: list[int] = []
        self._places: list[tuple[int, int]] = []

    def place(self) -> tuple[str, str]:
        """Called once for each op."""
        node = current_autograd_node()
        if self._inside:
            self.marks.append(self._inside[-1])
        elif node is None:
            self.marks.append((self.place_now, FORWARD, WHOLE))
        else:
            number = node._sequence_nr()
            place, part = self.marks[-1][0], self.marks[-1][2]
            if number < LATE:
                at = bisect.bisect_right(self._numbers, number) - 1
                place, part = self._places[at] if at >= 0 else (0, WHOLE)
            self.marks.append((place, BACKWARD, part))
        if self.accounting is not None:
            self.accounting.backward = self.marks[-1][1] == BACKWARD
        return "", ""

    def line(self) -> str:
        return ""

    def read(self, entry: Entry) -> None:
        """The op at hand, autograd's own, reads a storage."""
        self.reads.setdefault(id(entry), set()).add((self.marks[-1][0], self.marks[-1][2]))

    def goes_on(self, place: int, part: int = WHOLE) -> None:
        """From here on, ops of a forward are of another place."""
        self._numbers.append(autograd_sequence())
        self._places.append((place, part))

    @contextmanager
    def inside(self, place: int, phase: int, part: int = WHOLE) -> Iterator[None]:
        before = self._inside[-1] if self._inside else (self.place_now, phase, WHOLE)
        self._inside.append((place, phase, part))
        if phase == FORWARD:
            self.goes_on(place, part)
        try:
            yield
        finally:
            self._inside.pop()
            if phase == FORWARD:
                self.goes_on(before[0], before[2])

    @property
    def innermost(self) -> tuple[int, int, int] | None:
        return self._inside[-1] if self._inside else None


class Observer:
    """What the switches of blocks and parts call while a sheltered step runs."""

    def __init__(self, real: bool) -> None:
        self.trail = Trail()
        self.accounting = self.trail.accounting = Accounting(where=self.trail, real=real)
        self.accounting.reads = self.trail.read
        self._stands_in = not real
        self._known: dict[Any, tuple[Seen, list[Any], Any]] = {}

    def block(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a block, checkpointed whole."""
        trail = self.trail
        key = (unit.alike, _form(args, kwargs)) if self._stands_in else None
        known = self._known.get(key)
        place = trail.place_now = 2 * len(trail.calls) + 1
        seen = Seen(unit, place, place if known is None else known[0].place)
        seen.given = [next(self.accounting.entries_of(tensor), None) for tensor in tensors_in((args, kwargs))]
        trail.calls.append(seen)

        def around(repeats: bool, call: Callable[[], Any]) -> Any:
            with trail.inside(place, AGAIN if repeats else FORWARD):
                result = call()
            if repeats:
                seen.again = list(self.accounting.entries_of(result))
            return result

        if known is None:
            seen.parts = [[] for _ in unit.parts]
            with set_checkpoint_early_stop(False):
                result = checkpointed(unit, args, kwargs, around)
            if key is not None:
                self._known[key] = (seen, *_pattern(result, args, kwargs))
        else:
            with trail.inside(place, FORWARD):
                result = _stand_in(unit, known[1], known[2], args, kwargs)
        seen.results = list(self.accounting.entries_of(result))
        trail.place_now = place + 1
        trail.goes_on(place + 1)
        return result

    def part(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a part of a block."""
        now = self.trail.innermost
        if now is None or now[2] != WHOLE:
            return unit.plain(*args, **kwargs)
        seen = self.trail.calls[now[0] // 2]
        number = next((n for n, part in enumerate(seen.unit.parts) if part is unit), WHOLE)
        with self.trail.inside(now[0], now[1], number):
            result = unit.plain(*args, **kwargs)
        if now[1] == AGAIN and number != WHOLE:
            seen.parts[number] += self.accounting.entries_of(result)
        return result

    def record(self, turn: int, gradients: Iterable[torch.Tensor | None], outputs: Iterable[Entry | None] = ()) -> Record:
        """All that was seen; the backward began at step `turn`, and left these gradients; the model gave these `outputs`."""
        mine = {id(entry): OUTPUT + number for number, entry in enumerate(outputs) if entry is not None}
        mine |= {id(entry): GRADIENT for entry in self.accounting.entries_of(list(gradients))}
        places = [self.trail.marks[entry.born] for entry in self.accounting.entries]
        self.accounting.settle()  # which moves the births of some, not where they belong
        return _record(self.trail, self.accounting, turn, mine, places)


def _record(
    trail: Trail, accounting: Accounting, turn: int, stay: dict[int, int], places: Sequence[tuple[int, int, int]]
) -> Record:
    end = 1 + max((n for n, mark in enumerate(trail.marks) if mark[1] != FORWARD), default=len(trail.marks) - 1)
    results = {id(e): 1 for seen in trail.calls for e in seen.results}
    results |= {id(e): 3 for seen in trail.calls for part in seen.parts for e in part}
    results |= {id(e): 2 for seen in trail.calls for e in seen.again}
    rows, asked = [], []
    numbers: dict[int, int] = {}
    for entry, at in zip(accounting.entries, places, strict=True):
        if entry.born == 0 or entry.born >= end:
            continue
        dies = end if entry.dies < 0 else min(entry.dies, end)
        told = (stay.get(id(entry), 0), results.get(id(entry), 0), entry.name in KEPT_NAMES and entry.kind != "workspace")
        numbers[id(entry)] = len(rows)
        rows.append((entry.born, dies, *at, *map(int, told)))
        asked.append(entry.asked)
    calls = tuple(
        (seen.unit.name, seen.unit.alike, seen.speaks, tuple(part.name for part in seen.unit.parts)) for seen in trail.calls
    )
    lives = np.array(rows, dtype=np.int64).reshape(-1, 8)
    given = tuple(tuple(-1 if e is None else numbers.get(id(e), -1) for e in seen.given) for seen in trail.calls)
    reads = sorted((numbers[key], *at) for key, places in trail.reads.items() if key in numbers for at in places)
    told_reads = np.array(reads, dtype=np.int64).reshape(-1, 3)
    marks = np.array(trail.marks[:end], dtype=np.int64)
    return Record(marks, lives, np.array(asked, dtype=np.int64), turn, calls, given, told_reads)


def _form(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The form of arguments: two calls with the same one, of alike blocks, take the same memory."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    return (str(spec), *(_form_of(leaf) for leaf in leaves))


def _form_of(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.requires_grad
    return leaf if isinstance(leaf, (bool, int, float, str, type(None))) else type(leaf)


def _pattern(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """The form of a result, from which a stand-in can be made: each leaf an argument, a new tensor, or what it is."""
    given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    owners = {storage._cdata: number for number, leaf in enumerate(given) for storage in storages(leaf)}
    leaves, spec = pytree.tree_flatten(result)
    made: list[Any] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            made.append(leaf)
            continue
        owner = next((owners[s._cdata] for s in storages(leaf) if s._cdata in owners), None)
        made.append(("given", owner) if owner is not None else ("new", tuple(leaf.shape), leaf.dtype, leaf.requires_grad))
    return made, spec


def _stand_in(unit: Unit, made: Sequence[Any], spec: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    new = [one for one in made if isinstance(one, tuple) and one and one[0] == "new"]
    own = [p for p in unit.module.parameters() if p.requires_grad]
    fresh = iter(_StandIn.apply(new, len(given), *given, *own) if new else ())
    leaves = []
    for one in made:
        is_tensor = isinstance(one, tuple) and bool(one)
        leaves.append((given[one[1]] if one[0] == "given" else next(fresh)) if is_tensor else one)
    return pytree.tree_unflatten(leaves, spec)


class _StandIn(torch.autograd.Function):
    """Results and gradients of some form, out of nothing. Like a checkpoint it holds what it was given."""

    @staticmethod
    def forward(ctx: Any, new: Any, count: int, *tensors: torch.Tensor) -> Any:
        ctx.save_for_backward(*tensors[:count])
        ctx.forms = [(t.shape, t.dtype) for t in tensors]
        made = tuple(torch.empty(shape, dtype=dtype, device=tensors[0].device) for _, shape, dtype, _ in new)
        ctx.mark_non_differentiable(*(t for t, one in zip(made, new, strict=True) if not one[3]))
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        held = ctx.saved_tensors
        device = held[0].device if held else torch.device("cpu")
        wanted = ctx.needs_input_grad[2:]
        forms = zip(ctx.forms, wanted, strict=True)
        return (None, None, *(torch.empty(s, dtype=d, device=device) if w else None for (s, d), w in forms))
