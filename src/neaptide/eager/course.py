"""A call of the model under way: what its plan depends on, the way of each block, and when what it left behind is gone.

In: arguments; a choice; an output. Out: a `Situation`, a `Course`, a `Pending`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neaptide.accounting import tensors_in
from neaptide.eager.blocks import Unit
from neaptide.eager.choose import Choice
from neaptide.eager.figures import CallFigures, Figures
from neaptide.eager.predict import Shapes
from neaptide.eager.strengths import FULL, Way

NEAR = 1.03
"""Sizes that are smaller by no more than this can share a plan."""


@dataclass(frozen=True)
class Situation:
    """What a plan depends on: the form of what a model is given, its sizes, and whether there are gradients to add to.

    Sizes of one belong to the form: ops need no copies then that they need otherwise.
    """

    form: Any
    shapes: Shapes
    accumulates: bool


def situation_of(args: tuple[Any, ...], kwargs: dict[str, Any], accumulates: bool) -> Situation:
    """The situation of a call.

    >>> situation_of((torch.ones(2, 3),), {"mask": torch.ones(2, dtype=torch.bool)}, False).shapes
    ((2, 3), (2,))
    """
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    rest = tuple(_simple(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor))
    kinds = tuple((t.dtype, tuple(d == 1 for d in t.shape), t.requires_grad, _is_full(t)) for t in tensors)
    cast = tuple(torch.get_autocast_dtype(d) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d))
    form = (len(args), tuple(kwargs), rest, kinds, cast)
    return Situation(form, tuple(tuple(t.shape) for t in tensors), accumulates)


def _simple(leaf: Any) -> Any:
    return leaf if isinstance(leaf, (bool, int, float, str, type(None))) else type(leaf).__name__


def _is_full(tensor: torch.Tensor) -> bool | None:
    """Whether a mask is all ones: models then do without it, and their ops are others. None for what is no mask."""
    if tensor.device.type != "cpu" or tensor.dtype not in (torch.bool, torch.int64) or not tensor.numel():
        return None
    if tensor.dtype is torch.int64 and (tensor.dim() < 2 or int(tensor.max()) > 1 or int(tensor.min()) < 0):
        return None
    return bool(tensor.all())


def is_near(smaller: Shapes, larger: Shapes) -> bool:
    """Whether a plan for one size serves another that is a little smaller.

    >>> is_near(((8, 126),), ((8, 128),)), is_near(((8, 128),), ((8, 126),)), is_near(((8, 100),), ((8, 128),))
    (True, False, False)
    """
    pairs = [(a, b) for one, other in zip(smaller, larger, strict=True) for a, b in zip(one, other, strict=True)]
    return all(a <= b <= NEAR * a for a, b in pairs)


class Course:
    """One call of the model under way: the way of each call of a block."""

    def __init__(self, choice: Choice | None, figures: Figures | None) -> None:
        self._ways: dict[tuple[str, int], tuple[Way, CallFigures]] = {}
        self._counts: dict[str, int] = {}
        self.open: tuple[Way, CallFigures] | None = None
        counts: dict[str, int] = {}
        blocks = [call for call in figures.calls if call.is_block] if figures is not None else []
        for way, call in zip(choice.ways if choice is not None else (), blocks, strict=True):
            number = counts[call.name] = counts.get(call.name, -1) + 1
            self._ways[call.name, number] = (way, call)

    def next(self, unit: Unit) -> tuple[Way, CallFigures | None]:
        """The way of this call of a block; one that nobody expected is checkpointed."""
        number = self._counts[unit.name] = self._counts.get(unit.name, -1) + 1
        return self._ways.get((unit.name, number), (FULL, None))


class Pending:
    """A call whose backward is yet to come: what it left behind is there until then, or until its graph is gone."""

    def __init__(self, kept: int, output: Any, over: Callable[[Pending], None]) -> None:
        self.kept = kept
        self._large = [(number, weakref.ref(t)) for number, t in enumerate(tensors_in(output)) if t.dim()]
        for node in {t.grad_fn for t in tensors_in(output) if t.grad_fn is not None}:
            node.register_prehook(lambda _: over(self))
            token = _Token()
            metadata: Any = node.metadata  # declared as a method, and a dict
            metadata["neaptide"] = token
            weakref.finalize(token, over, self)

    @property
    def held(self) -> frozenset[int]:
        """Which of the tensors that the model gave, beside its loss, someone holds."""
        return frozenset(number for number, reference in self._large if reference() is not None)


class _Token:
    """Lives as long as the graph that it is put into."""
