"""One captured graph at run time: the sizes of a call choose a rung, the rung's pieces run.

Here is what both kinds of graph share; inference.py and training.py are the two.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from neaptide.graph import Graph
from neaptide.memory import Envelope, envelope, kept_at_turn, peak_beyond
from neaptide.program import Loop, Program, Rerun
from neaptide.runtime.room import Room

if TYPE_CHECKING:
    from neaptide.runtime.session import Session

Dims = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Rung:
    """One way to run a graph: what it recomputes, its program, and the peak that follows at every size."""

    number: int
    name: str
    program: Program
    usual: Program
    """The program with the tangents that are usually absent left out: what a step is expected to take."""

    rewrites: tuple[str, ...] = ()
    """What was put in for something else of the same meaning."""
    _peaks: dict[Dims, int] = field(default_factory=dict, init=False, repr=False)
    _kept: dict[Dims, int] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        return tuple(step for step in self.usual.steps if isinstance(step, Loop))

    @cached_property
    def _envelope(self) -> Envelope:
        return envelope(self.usual)

    def peak(self, dims: Dims) -> int:
        """Bytes at the highest step, beyond parameters, buffers and inputs."""
        if dims not in self._peaks:
            self._peaks[dims] = peak_beyond(self.usual, dims) if self.loops else self._envelope.peak(dims)
        return self._peaks[dims]

    def kept(self, dims: Dims) -> int:
        """Bytes that the forward leaves behind."""
        if dims not in self._kept:
            self._kept[dims] = kept_at_turn(self.usual, dims) if self.loops else self._envelope.kept(dims)
        return self._kept[dims]

    @cached_property
    def reruns(self) -> int:
        return sum(isinstance(step, Rerun) for step in self.usual.steps)


class Unit:
    """What inference and training graphs share: reading the sizes off the arguments, and the rung for them."""

    def __init__(self, graph: Graph, session: Session) -> None:
        self.graph, self.session = graph, session
        self.rungs: tuple[Rung, ...] = ()
        self.chosen: dict[Hashable, Rung] = {}
        """The rung for each of the situations that were met."""
        self.current: Rung | None = None
        self.last: Dims = ()
        self.given: dict[int, int] = {}
        """For each input of the last call at new sizes, which memory it was in."""
        self.handed: dict[int, int] = {}
        """The same for the outputs: what one graph hands to the next is one memory."""
        self._where = graph.places

    @cached_property
    def customary(self) -> Envelope:
        """What PyTorch itself would take at best."""
        return self.rungs[0]._envelope

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the plan should know of how it was found."""
        return ()

    def tighter(self, dims: Dims, room: Room | None) -> Rung | None:
        """A way to run that takes no more than `room`, beyond the rungs; without a room, the one that takes least."""
        return None

    def least(self, dims: Dims, last: bool) -> Room:
        """What the graph takes and leaves behind at least, as the last call of a step or an earlier one."""
        rung = self.rungs[0]
        return Room(rung.peak(dims), rung.kept(dims) if self.graph.trains else 0)

    def catch_up(self) -> None:
        """Go on with what earlier calls taught."""

    def situation(self, dims: Dims) -> Hashable:
        """What the choice of a rung depends on."""
        return dims

    def repeated(self, dims: Dims) -> Rung | None:
        """The rung of the call that this one repeats, if it does."""
        return None

    def forget(self) -> None:
        """Choose anew from here on."""
        self.chosen.clear()
        self.current = None

    def rung(self, args: Sequence[Any]) -> Rung:
        """The rung for a call: a look-up where the situation was met before."""
        dims = self.last = tuple([args[i] if d is None else args[i].shape[d] for i, d in self._where])
        self.session.arrives(self)
        found = self.repeated(dims)
        if found is None:
            situation = self.situation(dims)
            found = self.chosen.get(situation)
            if found is None:
                found = self.chosen[situation] = self.session.choose(self, dims)
                self.given = memories(found.program.graph.inputs, args)
                self.handed = {}
        self.current = found
        self.session.called(self)
        return found


def memories(values: Sequence[int | None], tensors: Sequence[Any]) -> dict[int, int]:
    """Which memory each value is in, as a number that is equal where the memory is the same."""
    pairs = zip(values, tensors, strict=False)
    return {v: t.untyped_storage()._cdata for v, t in pairs if v is not None and isinstance(t, torch.Tensor)}
