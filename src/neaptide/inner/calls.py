"""Calls of kernels in the source that a piece, or a round of a loop, is written as."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import fx, nn

from neaptide.inner.compiler import Kernels
from neaptide.inner.fragment import Fragment

Fuse: TypeAlias = Callable[[Fragment], Kernels | None]
"""Has a compiler make kernels of a fragment; None where it is to run as it is."""


class Fused(nn.Module):
    """What a compiler made kernels of."""

    def __init__(self, kernels: Kernels) -> None:
        super().__init__()
        self.forward = kernels.run


def modules(kernels: Sequence[Kernels]) -> dict[str, Fused]:
    """What the calls are of, by name."""
    return {_name(number): Fused(each) for number, each in enumerate(kernels)}


def call(graph: fx.Graph, number: int, given: Sequence[fx.Node], results: int) -> list[fx.Node]:
    """A call of kernels, by their number, and its results. Arguments come in a list, so that each goes at its last use."""
    made = graph.call_module(_name(number), (graph.call_function(in_a_list, tuple(given)),))
    return [graph.call_function(operator.getitem, (made, position)) for position in range(results)]


def in_a_list(*values: Any) -> list[Any]:
    """The arguments of a call that clears them."""
    return list(values)


def _name(number: int) -> str:
    return f"fused_{number}"
