"""One captured graph at run time: the sizes of a call choose a rung, the rung's pieces run.

Here is what both kinds of graph share; inference.py and training.py are the two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from neaptide.graph import Graph
from neaptide.memory import Envelope, envelope, sizes_at
from neaptide.program import Program
from neaptide.runtime.room import Room
from neaptide.search.chain import Take
from neaptide.steps import Loop, Rerun

if TYPE_CHECKING:
    from neaptide.runtime.session import Session

Dims = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Rung:
    """One way to run a graph: what it recomputes, its program, and the peak that follows at every size."""

    number: int
    name: str
    usual: Program
    """The program with the tangents that are usually absent left out: what a step is expected to take."""
    whole: Callable[[], Program] | None = None
    """Makes the program with all tangents, where that is another one: nobody needs it before the rung runs."""
    absent: frozenset[int] = frozenset()
    """The tangents that are usually absent."""
    rewrites: tuple[str, ...] = ()
    """What was put in for something else of the same meaning."""
    _takes: dict[Dims, Take] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def program(self) -> Program:
        """The program with all tangents."""
        return self.usual if self.whole is None else self.whole()

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        return tuple(step for step in self.usual.steps if isinstance(step, Loop))

    @cached_property
    def envelope(self) -> Envelope:
        return envelope(self.usual)

    def take(self, dims: Dims) -> Take:
        """Bytes beyond parameters, buffers and inputs."""
        if dims not in self._takes:
            if self.usual.graph.trains:
                front, back, kept, outputs = self.envelope.figures(dims)
                self._takes[dims] = Take(front, back, kept, outputs=outputs)
            else:
                self._takes[dims] = Take(self.envelope.peak(dims), 0, 0)
        return self._takes[dims]

    def peak(self, dims: Dims) -> int:
        """Bytes at the highest step."""
        return self.take(dims).peak

    @cached_property
    def reruns(self) -> int:
        return sum(isinstance(step, Rerun) for step in self.usual.steps)


@dataclass(eq=False)
class Call:
    """One call of a graph in a step, at one size; and which memory its inputs and outputs were in, one number for each."""

    unit: Unit
    dims: Dims
    given: list[int | None]
    rung: Rung = field(init=False, repr=False)
    handed: Sequence[int | None] = ()
    """What one graph hands to the next is one memory."""
    held: bool = False
    """Whether something that it handed out was still there when its backward ran last."""

    def on(self, rung: Rung) -> Call:
        """The call itself, on a rung."""
        self.rung = rung
        return self

    @property
    def inputs(self) -> Mapping[int, int]:
        """The memories of what is given beside parameters and buffers, and the bytes of each."""
        return self._sized(("input",), self.unit.graph.inputs)

    @cached_property
    def gradients(self) -> Mapping[int, int]:
        """The memories of the parameters that get a gradient, and the bytes of each."""
        return self._sized(("parameter",), self.unit.graph.gradients)

    def _sized(self, kinds: Collection[str], values: Sequence[int | None]) -> Mapping[int, int]:
        graph = self.unit.graph
        sizes, found = sizes_at(graph, self.dims), {}
        for given, value, memory in zip(graph.inputs, values, self.given, strict=False):
            home, size = graph.values[given].storage, None if value is None else graph.values[value].storage
            if memory is not None and home is not None and size is not None and graph.storages[home].kind in kinds:
                found[memory] = sizes[graph.held[size]]
        return found


class Unit:
    """What inference and training graphs share: reading the sizes off the arguments, and the rung for them."""

    def __init__(self, graph: Graph, session: Session) -> None:
        self.graph, self.session = graph, session
        self.rungs: tuple[Rung, ...] = ()
        self.chosen: dict[Hashable, Call] = {}
        """The call in each of the situations that were met."""
        self.last: Dims = ()
        self._where = graph.places
        homes = ((at, graph.values[v].storage) for at, v in enumerate(graph.inputs))
        self._fed = [at for at, home in homes if home is not None and graph.storages[home].kind == "input"]
        """The inputs that are others with every call."""

    @cached_property
    def customary(self) -> Envelope:
        """What PyTorch itself would take at best."""
        return self.rungs[0].envelope

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the plan should know of how it was found."""
        return ()

    def tighter(self, dims: Dims, room: Room | None) -> Rung | None:
        """A way to run that takes no more than `room`, beyond the rungs; without a room, the one that takes least."""
        return None

    def takes(self, dims: Dims) -> list[Take]:
        """What the ways to run the graph take."""
        return [rung.take(dims) for rung in self.rungs]

    def allowed(self, planned: int) -> int | None:
        """Bytes that fused kernels may take where so many were planned; None where there is no limit."""
        return planned if self.session.bounded else None

    def catch_up(self) -> None:
        """Go on with what earlier calls taught."""

    def comes(self, dims: Dims) -> None:
        """A size comes, maybe one that was met before."""

    def situation(self, dims: Dims) -> Hashable:
        """What the choice of a rung depends on."""
        return dims

    def repeated(self, dims: Dims) -> Rung | None:
        """The rung of the call that this one repeats, if it does."""
        return None

    def forget(self) -> None:
        """Choose anew from here on."""
        self.chosen.clear()

    def knows(self, call: Call) -> bool:
        """Whether a call's rung is still the one for its situation."""
        return any(call.rung is each.rung for each in self.chosen.values())

    def call(self, args: Sequence[Any]) -> Call:
        """The call with its rung: a look-up where the situation was met before."""
        dims = self.last = tuple([args[i] if d is None else args[i].shape[d] for i, d in self._where])
        again = self.repeated(dims)
        if again is not None:
            return Call(self, dims, []).on(again)
        self.session.arrives(self)
        self.comes(dims)
        situation = self.situation(dims)
        call = self.chosen.get(situation)
        is_new = call is None
        if call is None:
            call = Call(self, dims, memories(args))
            self.chosen[situation] = call.on(self.session.choose(call))
        elif call in self.session.steps.calls:  # a second time in this step, maybe with other parameters
            call = self.chosen[situation] = Call(self, dims, memories(args)).on(call.rung)
        else:
            for position in self._fed:
                call.given[position] = args[position].untyped_storage()._cdata
        self.session.called(call, is_new)
        return call


def memories(tensors: Sequence[Any]) -> list[int | None]:
    """Which memory each of these is in, as a number that is equal where the memory is the same."""
    return [t.untyped_storage()._cdata if isinstance(t, torch.Tensor) else None for t in tensors]
