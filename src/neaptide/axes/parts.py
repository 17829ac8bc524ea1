"""One part of an op along an axis: which of its arguments are cut, which sizes are put in, how the results come together.

In: a call and an `Axis`. Out: the arguments of a part, its results, or the results of all parts as one. What is cut and what
is put in is decided on any values (tensors, nodes of a graph); only `run_part` and `join` need tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from neaptide.axes.rules import Axis, Flow

_COMBINED = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}


def cut_inputs(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    axis: Axis,
    cut: Callable[[Any, Flow], Any],
    is_tensor: Callable[[Any], bool] = torch.is_tensor,
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with `cut` done to each tensor that a dim of runs along the axis.

    >>> rows = Axis((Flow(0), None), (Flow(0),))
    >>> cut_inputs(("x", "w", 2), {}, rows, lambda name, flow: f"{name} along {flow.dim}", lambda leaf: isinstance(leaf, str))
    (['x along 0', 'w', 2], {})
    """
    leaves, form = tree_flatten((list(args), dict(kwargs)))
    entries = iter(axis.inputs)
    done = []
    for leaf in leaves:
        flow = next(entries) if is_tensor(leaf) else None
        done.append(leaf if flow is None else cut(leaf, flow))
    return tree_unflatten(done, form)


def put_sizes(args: Sequence[Any], axis: Axis, size: Any) -> list[Any]:
    """The arguments with `size`, how long a part is along the first result that flows, where they name it.

    >>> put_sizes(["x", [8, 128, 12, 64]], Axis((Flow(0),), (Flow(0),), sizes=((1, 0),)), 2)
    ['x', [2, 128, 12, 64]]
    """
    done = list(args)
    for argument, position in axis.sizes:
        if position is None:
            done[argument] = size
        else:
            done[argument] = [size if i == position else entry for i, entry in enumerate(done[argument])]
    return done


def part_arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any], axis: Axis, first: int, last: int
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the part from unit `first` up to `last`.

    >>> x = torch.arange(8).view(4, 2)
    >>> (part, shape), _ = part_arguments((x, [2, 2, 2]), {}, Axis((Flow(0, 2),), (Flow(0),), sizes=((1, 0),)), 1, 2)
    >>> part.tolist(), shape
    ([[4, 5], [6, 7]], [1, 2, 2])
    """

    def narrow(tensor: torch.Tensor, flow: Flow) -> torch.Tensor:
        return tensor.narrow(flow.dim, first * flow.block, (last - first) * flow.block)

    cut, named = cut_inputs(args, kwargs, axis, narrow)
    return put_sizes(cut, axis, (last - first) * axis.block), named


def run_part(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], axis: Axis, first: int, last: int) -> Any:
    """The results of the part from unit `first` up to `last`."""
    cut, named = part_arguments(args, kwargs, axis, first, last)
    if axis.instead is not None:
        return axis.instead(first * axis.block, last * axis.block, *cut, **named)
    return target(*cut, **named)


def join(axis: Axis, parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Each result of the whole op from those of its parts.

    >>> join(Axis((Flow(0),), (Flow(0), "sum")), [[torch.ones(2), torch.ones(1)], [torch.zeros(1), torch.ones(1)]])
    [tensor([1., 1., 0.]), tensor([2.])]
    """
    return [_joined(entry, pieces) for entry, *pieces in zip(axis.outputs, *parts, strict=True)]


def _joined(entry: Any, pieces: Sequence[Any]) -> Any:
    if entry is None:
        return pieces[0]
    return torch.cat(list(pieces), entry.dim) if isinstance(entry, Flow) else reduce(_COMBINED[entry], pieces)
