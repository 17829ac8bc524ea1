"""What a compiler takes in one go: ops as an fx graph that writes nothing in place, and all that is known of its arguments.

Two kinds of it: a `Stretch` of a piece's steps (straight.py), and what lies `Within` a round of a loop (within.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Self

from torch import fx

from neaptide.graph import Graph
from neaptide.inner.look import Look
from neaptide.program import Program


@dataclass(frozen=True, slots=True)
class Home:
    """The memory that an argument lies in: equal for those that share it. Its `bytes` are Python source over sizes."""

    number: Hashable
    bytes: str
    goes: bool
    """Whether it goes when the code lets go of it: lent by nobody, and read by nobody afterwards."""


class Fragment(ABC):
    """Ops that run as one. Free sizes come first among the arguments, then what is given."""

    graph: Graph

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """The same for the same ops, whenever their piece is made."""

    @abstractmethod
    def at(self, dims: tuple[int, ...]) -> Self:
        """The same, for a compiler that is to have other sizes in mind."""

    @property
    @abstractmethod
    def module(self) -> fx.GraphModule:
        """The ops as an fx graph."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """The free sizes, and what a compiler is to have in mind for each."""

    @property
    @abstractmethod
    def looks(self) -> tuple[Look, ...]:
        """What the arguments behind the sizes look like."""

    @property
    @abstractmethod
    def homes(self) -> tuple[Home | None, ...]:
        """Where each of them lies; None for a number."""

    def begin(self) -> tuple[fx.Graph, list[fx.Node]]:
        """A graph with nothing in it but the arguments: sizes first, and what is given."""
        graph = fx.Graph()
        for name, _ in self.sizes:
            graph.placeholder(f"size_{name}")
        return graph, [graph.placeholder(f"given_{i}") for i in range(len(self.looks))]

    @abstractmethod
    def cases(self, dims: tuple[int, ...]) -> list[tuple[int, ...]]:
        """What the free sizes are when the graph's are `dims`: the largest first."""

    @abstractmethod
    def places(self, program: Program, begin: int) -> list[int]:
        """Where in its program it runs, in executed steps, in the piece that begins at a step."""

    def beside(self, dims: tuple[int, ...]) -> int:
        """Bytes that are made just before it begins, and are not there when the step of its place does."""
        return 0
