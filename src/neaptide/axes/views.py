"""Other shapes over the same elements: reshaping, reordering, adding and dropping dims of size 1, expanding.

Reshaping splits and merges groups of neighbouring dims. Of such a group only the outermost dim on either side is cut into
pieces that are contiguous on the other, in blocks of as many positions as the inner dims are large.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import torch

from neaptide.axes.rules import Axis, Flow, alike, equal, flows, quotient
from neaptide.workspaces import Spec
from neaptide.workspaces.rules import product

aten = torch.ops.aten


def relabel(pairs: Iterable[tuple[int, int]]) -> Iterator[Axis]:
    """An axis for each dim of the one input and the dim of the result that it becomes."""
    for dim, becomes in pairs:
        yield Axis((Flow(dim),), (Flow(becomes),))


@flows(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def reshape(x: Spec, shape: Any, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """The outermost dims of each group; the shape's entry for one is put in, unless it is to be inferred."""
    if not isinstance(shape, (list, tuple)) or len(shape) != len(out[0].shape):
        return
    for axis, dim in _regrouped(x.shape, out[0].shape):
        yield Axis(axis.inputs, axis.outputs, sizes=() if shape[dim] == -1 else ((1, dim),))


@flows(aten.flatten.using_ints)
def flatten(x: Spec, start: int = 0, end: int = -1, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """As reshaping; there is no size to put in."""
    for axis, _ in _regrouped(x.shape, out[0].shape):
        yield axis


def _regrouped(before: Sequence[Any], after: Sequence[Any]) -> Iterator[tuple[Axis, int]]:
    """The axes of a reshape, each with the dim of the result that runs along it."""
    for old, new in groups(before, after):
        inner = product([before[dim] for dim in old[1:]]), product([after[dim] for dim in new[1:]])
        blocks = _common(*inner)
        if blocks is not None:
            yield Axis((Flow(old[0], blocks[0]),), (Flow(new[0], blocks[1]),)), new[0]


def _common(a: Any, b: Any) -> tuple[Any, Any] | None:
    """How many `a` are how many `b`, as few as can be told."""
    if (ratio := quotient(a, b)) is not None:
        return 1, ratio
    if (ratio := quotient(b, a)) is not None:
        return ratio, 1
    if isinstance(a, int) and isinstance(b, int):
        return lcm(a, b) // a, lcm(a, b) // b
    return None


def groups(before: Sequence[Any], after: Sequence[Any]) -> Iterator[tuple[list[int], list[int]]]:
    """Neighbouring dims of two shapes that hold the same elements, as few at a time as can be told; size 1 is passed over.

    >>> list(groups((8, 128, 768), (8, 1, 128, 12, 64)))
    [([0], [0]), ([1], [2]), ([2], [3, 4])]
    >>> list(groups((8, 128, 768), (1024, 768)))
    [([0, 1], [0]), ([2], [1])]
    """
    if 0 in before or 0 in after:
        return
    left = [dim for dim, size in enumerate(before) if size != 1]
    right = [dim for dim, size in enumerate(after) if size != 1]
    while left and right:
        old, new = [left.pop(0)], [right.pop(0)]
        a, b = before[old[0]], after[new[0]]
        while not equal(a, b):
            order = _compare(a, b)
            grows, joins = order <= 0 and bool(left), order >= 0 and bool(right)
            if not grows and not joins:
                return
            if grows:
                old.append(left.pop(0))
                a = a * before[old[-1]]
            if joins:
                new.append(right.pop(0))
                b = b * after[new[-1]]
        yield old, new


def _compare(a: Any, b: Any) -> int:
    """Whether there are fewer (-1) or more (1) elements in `a` than in `b`; 0 where that cannot be told."""
    if isinstance(a, int) and isinstance(b, int):
        return -1 if a < b else 1
    return -1 if quotient(b, a) is not None else 1 if quotient(a, b) is not None else 0


@flows(aten.view.dtype)
def reinterpret(x: Spec, dtype: torch.dtype, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """All dims where the types are of one width; else all but the last, whose size changes."""
    same = x.dtype.itemsize == out[0].dtype.itemsize
    yield from alike((x,), out, () if same else (len(x.shape) - 1,))


@flows(aten.view_as_real.default, aten.view_as_complex.default)
def pair_up(x: Spec, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """A last dim of two comes or goes."""
    yield from relabel((dim, dim) for dim in range(min(len(x.shape), len(out[0].shape))))


@flows(aten.permute.default)
def permute(x: Spec, dims: Sequence[int], *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Dims in the order given."""
    yield from relabel((dim % len(x.shape), i) for i, dim in enumerate(dims))


@flows(aten.transpose.int, aten.swapaxes.default)
def transpose(x: Spec, first: int, second: int, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Two dims change places."""
    order = list(range(len(x.shape)))
    if order:
        order[first], order[second] = order[second], order[first]
    yield from relabel((dim, i) for i, dim in enumerate(order))


@flows(aten.t.default, aten.numpy_T.default)
def turn(x: Spec, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Dims from the last to the first."""
    rank = len(x.shape)
    yield from relabel((dim, rank - 1 - dim) for dim in range(rank))


@flows(aten.movedim.int, aten.movedim.intlist)
def move(x: Spec, source: Any, destination: Any, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Some dims go to their destinations, the others fill up what is left in their order."""
    rank = len(x.shape)
    sources = [dim % rank for dim in ([source] if isinstance(source, int) else source)]
    destinations = [dim % rank for dim in ([destination] if isinstance(destination, int) else destination)]
    places = dict(zip(sources, destinations, strict=True))
    free = (i for i in range(rank) if i not in destinations)
    yield from relabel((dim, places[dim] if dim in places else next(free)) for dim in range(rank))


@flows(aten.unsqueeze.default)
def unsqueeze(x: Spec, dim: int, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Dims behind the new one move back."""
    added = dim % len(out[0].shape)
    yield from relabel((own, own + (own >= added)) for own in range(len(x.shape)))


@dataclass(frozen=True, slots=True)
class Squeeze:
    """Drops the dims that are of size 1 in the whole: a part may be of size 1 along its axis as well, which must stay."""

    __name__ = "squeeze_part"  # what a graph asks of a function that it calls
    dims: tuple[int, ...]

    def __call__(self, first: Any, last: Any, x: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        return aten.squeeze.dims(x, self.dims)


@flows(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(x: Spec, dim: Any = None, *, out: tuple[Spec, ...]) -> Iterator[Axis]:
    """Dims behind those of size 1 that are dropped move up."""
    rank = len(x.shape)
    named = range(rank) if dim is None else [d % rank for d in ([dim] if isinstance(dim, int) else dim)] if rank else []
    dropped = tuple(d for d in named if x.shape[d] == 1)
    kept = [d for d in range(rank) if d not in dropped]
    for place, d in enumerate(kept):
        yield Axis((Flow(d),), (Flow(place),), instead=Squeeze(dropped) if d in named else None)


@flows(aten.expand.default)
def expand(x: Spec, size: Any, *, out: tuple[Spec, ...], **named: Any) -> Iterator[Axis]:
    """A dim that is new or was of size 1 needs its input whole; an entry of -1 leaves the input's size."""
    rank = len(out[0].shape)
    if not isinstance(size, (list, tuple)) or len(size) != rank:
        return
    for dim in range(rank):
        own = dim - rank + len(x.shape)
        entry = Flow(own) if own >= 0 and x.shape[own] != 1 else None
        yield Axis((entry,), (Flow(dim),), sizes=() if size[dim] == -1 else ((1, dim),))
