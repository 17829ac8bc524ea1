"""Attention that is written out, as it is found in a graph: a product, changes of its scores, a softmax, a second product.

In: a softmax over the last dim. Out: an `Attention` that says what is multiplied, by how much it is scaled and what is added
to the scores or taken out of them on the way; None where the scores are used for anything else, or anything else is done to
them. The copies and other shapes that AOTAutograd puts between are looked through.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from neaptide._torch import FakeTensor
from neaptide.axes import equal
from neaptide.ops import argument
from neaptide.rewrite.forms import (
    VIEWS,
    after,
    before,
    earliest,
    forms,
    is_matrix_transpose,
    is_tensor,
    same_sizes,
    shape,
    spec,
)

aten = torch.ops.aten

SOFTMAX = frozenset({aten._softmax.default, aten.softmax.int, aten._safe_softmax.default})
PRODUCTS = frozenset({aten.matmul.default, aten.bmm.default, aten.mm.default})
MULTIPLIES = frozenset({aten.mul.Tensor, aten.mul.Scalar})
DIVIDES = frozenset({aten.div.Tensor, aten.div.Scalar})
FILLS = frozenset({aten.masked_fill.Scalar, aten.masked_fill.Tensor})
CONSTANTS = frozenset({aten.full.default, aten.scalar_tensor.default})

ABSORBS = -1e30
"""A fill so low that a score added to it changes nothing, so that to add it is to put it in the score's place."""


@dataclass(frozen=True, slots=True)
class Added:
    """Something is added to the scores, which have the shape `onto` then."""

    mask: fx.Node
    onto: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Filled:
    """Scores are put at `low`, where `condition` is not `keep`."""

    condition: fx.Node
    keep: bool
    low: float
    onto: tuple[Any, ...]


Change: TypeAlias = Added | Filled


@dataclass(frozen=True, slots=True)
class Scores:
    """A first product, what it is scaled by, and what is then done to it, in order."""

    left: fx.Node
    right: fx.Node
    scale: float = 1.0
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Attention:
    """`softmax(scores) @ values`; `lead` are the dims before the rows and columns of the scores."""

    softmax: fx.Node
    scores: Scores
    product: fx.Node
    lead: tuple[Any, ...]

    @property
    def values(self) -> Any:
        return self.product.args[1]

    @property
    def is_safe(self) -> bool:
        """Whether a row in which nothing takes part gives zeros, not NaN."""
        return self.softmax.target is aten._safe_softmax.default


def read_attention(softmax: fx.Node) -> Attention | None:
    """The attention around a softmax, if that is what it is."""
    x: Any = softmax.args[0]
    dims = len(shape(softmax))
    if dims < 2 or softmax.args[1] not in (-1, dims - 1):
        return None
    scores, product = read_scores(x), _product_with_values(softmax)
    if scores is None or product is None:
        return None
    *lead, rows, columns = shape(softmax)
    found = Attention(softmax, scores, product, tuple(lead))
    sides = (shape(scores.left)[-2], shape(scores.right)[-1], *shape(product.args[0])[-2:])
    if not same_sizes(sides, (rows, columns, rows, columns)):
        return None
    wanted = (*lead, rows, shape(product)[-1])
    fits = product.target is aten.bmm.default or same_sizes(shape(product), wanted)
    masks = all(_fits(change, (*lead, rows, columns)) for change in scores.changes)
    return found if fits and masks and _is_replaceable(product, wanted) else None


def read_scores(node: Any) -> Scores | None:
    """What scores are made of, from the product on; None where anything else is done to them, or takes them."""
    if not is_tensor(node) or len(node.users) != 1 or node.op != "call_function":
        return None
    if node.target in PRODUCTS:
        return Scores(node.args[0], node.args[1])
    if node.target is aten.baddbmm.default:
        return _of_baddbmm(node)
    if (source := node.args[0] if _is_conversion(node) else before(node)) is not None:
        return read_scores(source) if _leads_only_to(source, node) else None
    if (scaled := _scaled(node)) is not None:
        source, factor = scaled
        inner = read_scores(source)
        return replace(inner, scale=inner.scale * factor) if inner is not None and not inner.changes else None
    for source, change in _changes(node):
        inner = read_scores(source) if same_sizes(shape(source), shape(node)) else None
        if inner is not None:
            return replace(inner, changes=(*inner.changes, change))
    return None


def operand(node: fx.Node, lead: tuple[Any, ...]) -> fx.Node | None:
    """An operand with the leading dims of the scores, before it was copied into another shape; None if it never had them."""
    return earliest(node, (*lead, *shape(node)[-2:]))


def untransposed(right: fx.Node) -> fx.Node | None:
    """The keys, where the second operand of the first product is their transpose."""
    return next((form.args[0] for form in forms(right) if is_matrix_transpose(form)), None)


def unrepeated(node: fx.Node) -> fx.Node:
    """Keys or values with fewer heads than the queries, before each head was repeated for its group; else the node itself."""
    *_, spread = forms(node)
    if spread.target is not aten.expand.default or len(shape(spread)) != 5 or len(shape(node)) != 4:
        return node
    batch, heads, groups, *rest = shape(spread)
    before = earliest(spread.args[0], (batch, heads, *rest))
    is_whole = same_sizes(shape(spread.args[0]), (batch, heads, 1, *rest))
    if before is None or not is_whole or not same_sizes(shape(node), (batch, heads * groups, *rest)):
        return node
    return before


def _of_baddbmm(node: fx.Node) -> Scores | None:
    onto, left, right = node.args
    beta, alpha = argument(node, "beta"), argument(node, "alpha")
    if not isinstance(alpha, (int, float)) or beta not in (0, 1):
        return None
    changes = (Added(onto, shape(node)),) if beta else ()  # type: ignore[arg-type]
    return Scores(left, right, float(alpha), changes)  # type: ignore[arg-type]


def _is_conversion(node: fx.Node) -> bool:
    """Whether a call only changes the floating type."""
    if node.target is not aten._to_copy.default or set(node.kwargs) - {"dtype", "device", "layout", "memory_format"}:
        return False
    source, made = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    return source.is_floating_point() and made.is_floating_point() and source.device == made.device


def _scaled(node: fx.Node) -> tuple[Any, float] | None:
    if node.kwargs or len(node.args) != 2:
        return None
    first, second = node.args
    if node.target in DIVIDES and (factor := _constant(second)):
        return first, 1 / factor
    if node.target in MULTIPLIES:
        for source, other in ((first, second), (second, first)):
            if is_tensor(source) and (factor := _constant(other)) is not None:
                return source, factor
    return None


def _changes(node: fx.Node) -> Iterator[tuple[Any, Change]]:
    """What a call may add to scores or take out of them, with the scores as they were before: each way to read it."""
    onto = shape(node)
    if node.target is aten.add.Tensor and not node.kwargs:
        first, second = node.args[:2]
        for source, mask in ((first, second), (second, first)):
            if is_tensor(source) and is_tensor(mask):
                yield source, Added(mask, onto)  # type: ignore[arg-type]
    elif node.target is aten.where.self:
        condition, first, second = node.args
        for source, other, keep in ((first, second, True), (second, first, False)):
            if (low := _low(node, other)) is not None:
                yield source, Filled(condition, keep, low, onto)  # type: ignore[arg-type]
    elif node.target in FILLS:
        source, condition, other = node.args
        if (low := _low(node, other)) is not None:
            yield source, Filled(condition, False, low, onto)  # type: ignore[arg-type]


def _low(node: fx.Node, given: Any) -> float | None:
    """The number that is put in the place of scores, if it is low enough, as their type has it."""
    low = _constant(given)
    if low is None or low > ABSORBS:
        return None
    return low if low >= torch.finfo(spec(node).dtype).min else -math.inf


def _constant(given: Any) -> float | None:
    """The number that an argument is, be it in a tensor."""
    if isinstance(given, (int, float)):
        return float(given) if not math.isnan(given) else None
    if not is_tensor(given) or math.prod(shape(given)) != 1:
        return None
    if given.target in CONSTANTS:
        return _constant(argument(given, "fill_value" if given.target is aten.full.default else "s"))
    if given.op == "get_attr":
        held = getattr(given.graph.owning_module, str(given.target), None)
        return float(held.item()) if isinstance(held, torch.Tensor) and not isinstance(held, FakeTensor) else None
    if given.target in (aten.lift_fresh_copy.default, aten._to_copy.default):
        return _constant(given.args[0])
    return _constant(before(given)) if before(given) is not None else None


def _product_with_values(node: fx.Node) -> fx.Node | None:
    while len(node.users) == 1:
        (user,) = node.users
        if user.target in PRODUCTS:
            return user if user.args[0] is node and user.args[1] is not node else None
        following = user if _is_conversion(user) else after(node)
        if following is None:
            return None
        node = following
    return None


def _leads_only_to(source: Any, node: fx.Node) -> bool:
    """Whether all that is made of a value on the way to a later form of it is that form."""
    while node is not source:
        node = node.args[0]  # type: ignore[assignment]
        if len(node.users) != 1:
            return False
    return True


def _is_replaceable(product: fx.Node, wanted: tuple[Any, ...]) -> bool:
    """Whether all that takes a product can take it in another shape: that of the scores, which may have more dims."""
    return same_sizes(shape(product), wanted) or all(user.target in VIEWS for user in product.users)


def _fits(change: Change, wanted: tuple[Any, ...]) -> bool:
    """Whether what was added in one shape can be added in another: the same one, or one in which the first dim is several."""
    if same_sizes(change.onto, wanted):
        return True
    mask = shape(change.mask if isinstance(change, Added) else change.condition)
    split = len(change.onto) == 3 and len(wanted) > 3 and same_sizes(change.onto[1:], wanted[-2:])
    return split and (len(mask) < 3 or mask[0] == 1 or equal(mask[0], change.onto[0]))
