"""The form of the table: an axis of an op, how a rule is registered, and how an axis is found from one of its tensors.

An axis is a direction along which an op can be done in parts: for each tensor it reads and makes, which dim runs along it.
A tensor that no dim of runs along it is needed whole by every part; a result that is reduced over it is put together from the
parts' results. Sizes are ints or sympy expressions alike, so that one rule serves a concrete call and a symbolic graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map_only

from neaptide.sizes import equal as equal
from neaptide.sizes import quotient as quotient
from neaptide.workspaces import Spec

Reduced = Literal["sum", "max", "min"]
Rule = Callable[..., Iterable["Axis"]]
RULES: dict[Any, Rule] = {}


@dataclass(frozen=True, slots=True)
class Flow:
    """A dim of a tensor that runs along an axis: one unit of the axis is `block` neighbouring positions of the dim."""

    dim: int
    block: Any = 1


@dataclass(frozen=True, slots=True)
class Axis:
    """One way to do an op in parts.

    `inputs` has an entry for each tensor among the arguments, in their order (nested lists and keywords flattened): the dim
    that is cut, or None where each part needs the whole. `outputs` has one for each result: the dim that the parts lie along,
    how the parts' results are combined, or None where there is no result or every part gives the same.

    A part runs the op itself on the cut inputs, with its size put in for the arguments that name it: `sizes` holds
    (argument, position in it), the position None where the argument is the number itself. Where the op depends on the
    position too (`arange`), `instead` is run: the part's first position and the one after its last come before the op's own
    arguments. Sizes and positions count along the dim of the first result that flows: units times its `block`. What it makes
    for itself is told by `beside`: bytes, of a part's arguments.
    """

    inputs: tuple[Flow | None, ...]
    outputs: tuple[Flow | Reduced | None, ...]
    sizes: tuple[tuple[int, int | None], ...] = ()
    instead: Callable[..., Any] | None = None
    beside: Callable[..., Any] | None = None

    @property
    def block(self) -> Any:
        """How many positions of the first result that flows one unit is; 1 where all results are reduced."""
        return next((flow.block for flow in self.outputs if isinstance(flow, Flow)), 1)

    def scaled(self, factor: Any) -> Axis:
        """The same axis in units of `factor` of its own."""
        if factor == 1:
            return self

        def widen(flow: Any) -> Any:
            return replace(flow, block=flow.block * factor) if isinstance(flow, Flow) else flow

        return replace(self, inputs=tuple(map(widen, self.inputs)), outputs=tuple(map(widen, self.outputs)))


def flows(*targets: Any) -> Callable[[Rule], Rule]:
    """Register a rule for some ops. It gets the op's own arguments, tensors as `Spec`s, and `out`, its results' (or None).

    Arguments come in the places that the op's schema gives them, however the call passed them. A rule may yield more than
    holds for the sizes at hand: an axis along which tensors disagree in size, or are of size 1, is left out.

    >>> @flows("my_library::scale_rows")
    ... def scale_rows(x, weights, *, out):
    ...     yield Axis((Flow(0), Flow(0)), (Flow(0),))
    >>> del RULES["my_library::scale_rows"]
    """

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, rule))
        return rule

    return register


def axes(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Sequence[Spec | None]) -> tuple[Axis, ...]:
    """The ways to do a call in parts; none for an op that nobody listed, which then stays whole.

    >>> x, w = Spec((128, 64), (64, 1), torch.float32), Spec((64, 32), (32, 1), torch.float32)
    >>> rows, columns, inner = axes(torch.ops.aten.mm.default, (x, w), {}, [Spec((128, 32), (32, 1), torch.float32)])
    >>> rows.inputs, rows.outputs
    ((Flow(dim=0, block=1), None), (Flow(dim=0, block=1),))
    >>> inner.outputs
    ('sum',)
    """
    rule, tensors = _rule(target), tensors_in(args, kwargs)
    made = tuple(spec if isinstance(spec, Spec) else None for spec in out)
    if rule is None or any(len(spec.stride) != len(spec.shape) for spec in (*tensors, *made) if spec is not None):
        return ()
    if kwargs:  # each tensor its own object, so that it is found again in another place
        args, kwargs = tree_map_only(Spec, replace, (tuple(args), dict(kwargs)))
    placed, named = _in_places(target, args, kwargs)
    found = (_as_given(axis, args, kwargs, placed, named) for axis in rule(*placed, **named, out=made))
    return tuple(axis for axis in found if axis is not None and _is_sound(axis, tensors, made))


def is_listed(target: Any) -> bool:
    """Whether anything is known of how an op can be done in parts.

    >>> is_listed(torch.ops.aten.mm.default), is_listed(torch.ops.aten.nonzero.default)
    (True, False)
    """
    return _rule(target) is not None


def _rule(target: Any) -> Rule | None:
    """The rule of an op: its own, or that of all pointwise ones, unless it writes to its arguments or draws numbers."""
    if not isinstance(target, OpOverload):
        return RULES.get(target)
    own = RULES.get(target) or RULES.get(target.name())
    if own is not None or torch.Tag.pointwise not in target.tags:
        return own
    apart = target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags
    return None if apart else RULES.get("pointwise")


def tensors_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Spec]:
    """The specs among the arguments, in the order of `Axis.inputs`."""
    return [leaf for leaf in tree_leaves((list(args), dict(kwargs))) if isinstance(leaf, Spec)]


def _in_places(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of a call with those that were named, and need not be, in their places."""
    if not kwargs or not isinstance(target, OpOverload):
        return args, kwargs
    further = [a for a in target._schema.arguments if not a.kwarg_only][len(args) :]
    given = 1 + max((i for i, a in enumerate(further) if a.name in kwargs), default=-1)
    placed = {a.name: kwargs.get(a.name, a.default_value) for a in further[:given]}
    return (*args, *placed.values()), {name: value for name, value in kwargs.items() if name not in placed}


def _as_given(
    axis: Axis, args: Sequence[Any], kwargs: Mapping[str, Any], placed: Sequence[Any], named: Mapping[str, Any]
) -> Axis | None:
    """An axis with its inputs in the order in which the call passed them; None where it would put a size in a keyword."""
    if len(placed) == len(args):
        return axis
    if any(argument >= len(args) for argument, _ in axis.sizes):
        return None
    entries = {id(spec): entry for spec, entry in zip(tensors_in(placed, named), axis.inputs, strict=True)}
    return replace(axis, inputs=tuple(entries[id(spec)] for spec in tensors_in(args, kwargs)))


def _is_sound(axis: Axis, tensors: Sequence[Spec], out: Sequence[Spec | None]) -> bool:
    """Whether all that runs along an axis has equally many units of it, and more than one."""
    if len(axis.inputs) != len(tensors) or len(axis.outputs) != len(out):
        return False
    pairs = zip((*tensors, *out), (*axis.inputs, *axis.outputs), strict=True)
    flowing = [(spec, flow) for spec, flow in pairs if isinstance(flow, Flow)]
    if not flowing or any(spec is None or not 0 <= flow.dim < len(spec.shape) for spec, flow in flowing):
        return False
    units = [quotient(spec.shape[flow.dim], flow.block) for spec, flow in flowing if spec is not None]
    return all(own is not None and equal(own, units[0]) for own in units) and units[0] not in (0, 1)


def along_input(found: Sequence[Axis], position: int, flow: Flow) -> Axis | None:
    """The axis that runs along `flow` in the input at `position`, in units of it."""
    return next(_matching(found, lambda axis: axis.inputs[position], flow), None)


def along_output(found: Sequence[Axis], position: int, flow: Flow) -> Axis | None:
    """The axis that runs along `flow` in the output at `position`, in units of it."""
    return next(_matching(found, lambda axis: axis.outputs[position], flow), None)


def _matching(found: Sequence[Axis], entry: Callable[[Axis], Any], flow: Flow) -> Iterator[Axis]:
    for axis in found:
        own = entry(axis)
        if isinstance(own, Flow) and own.dim == flow.dim and (factor := quotient(flow.block, own.block)) is not None:
            yield axis.scaled(factor)


def cuts(*arguments: tuple[Any, Flow | int | None]) -> tuple[Flow | None, ...]:
    """The `inputs` of an axis from each argument and the dim of it that is cut; those that are no tensors are passed over.

    >>> x = Spec((3, 4), (4, 1), torch.float32)
    >>> cuts((x, 0), (None, 0), (x, None))
    (Flow(dim=0, block=1), None)
    """
    return tuple(Flow(cut) if isinstance(cut, int) else cut for spec, cut in arguments if isinstance(spec, Spec))


def results(out: Sequence[Spec | None], *entries: Flow | Reduced | None) -> tuple[Flow | Reduced | None, ...]:
    """The `outputs` of an axis, without those of results that an op was told not to make."""
    return tuple(None if spec is None else entry for spec, entry in zip(out, entries, strict=False))


def alike(tensors: Sequence[Spec], out: Sequence[Spec], but: Collection[int] = ()) -> Iterator[Axis]:
    """An axis along each dim, the same in every tensor, except along some."""
    rank = len(out[0].shape) if out else 0
    if all(len(spec.shape) == rank for spec in (*tensors, *out)):
        for dim in range(rank):
            if dim not in but:
                yield Axis((Flow(dim),) * len(tensors), (Flow(dim),) * len(out))


def broadcast(spec: Any, rank: int, dim: int) -> Flow | None:
    """What runs along `dim` of a result of `rank` dims in an operand that is broadcast to it; None where that is whole."""
    own = dim - rank + len(spec.shape) if isinstance(spec, Spec) else -1
    return Flow(own) if own >= 0 and spec.shape[own] != 1 else None
