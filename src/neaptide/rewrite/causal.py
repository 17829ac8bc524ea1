"""Masks that say nothing, or nothing but "not what comes later", are left to the attention kernel, which then skips the work.

In: an fx graph with attention calls that take a mask. Out: the same graph, changed in place. A model that is traced builds its
mask even where plain PyTorch would see that it need not. A mask that depends on sizes alone is made at many sizes, among them
those around every number that its making mentions (a window, a block), and taken out if it is the same mask at all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from neaptide._torch import real_tensors
from neaptide.axes import equal
from neaptide.graph import expression
from neaptide.ops import is_once, is_random
from neaptide.rewrite.forms import shape

aten = torch.ops.aten
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
OF_SHAPES = frozenset(
    (
        aten.new_ones.default,
        aten.new_zeros.default,
        aten.new_full.default,
        aten.new_empty.default,
        aten.ones_like.default,
        aten.zeros_like.default,
        aten.full_like.default,
        aten.empty_like.default,
    )
)
"""Ops that look at what a tensor is like, not at what is in it."""
SAMPLES = (2, 3, 5, 8, 17, 33)
LARGEST = 300
"""A mask whose making mentions a larger whole number is left alone: it would have to be made at that size."""
HIDDEN = -1e30


def drop_known_masks(module: fx.GraphModule) -> list[str]:
    """Take out every mask that the kernel knows by itself; says what was done."""
    known: dict[fx.Node, str] = {}
    done: list[str] = []
    for node in module.graph.nodes:
        mask = node.kwargs.get("attn_mask") if node.target is ATTENTION else None
        if not isinstance(mask, fx.Node) or (len(node.args) > 4 and node.args[4]):
            continue
        if mask not in known:
            known[mask] = _kind(mask)
        square = equal(shape(node.args[0])[-2], shape(node.args[1])[-2])
        if known[mask] == "all" or (known[mask] == "causal" and square):
            node.kwargs = {name: given for name, given in node.kwargs.items() if name != "attn_mask"}
            node.args = (*node.args[:3], node.args[3] if len(node.args) > 3 else 0.0, known[mask] == "causal")
            done.append(
                f"the mask of {node.name}, which is {'causal' if known[mask] == 'causal' else 'empty'}, left to the kernel"
            )
    return done


def _kind(mask: fx.Node) -> str:
    """What a mask is at every size tried: "causal", "all" (it hides nothing) or "" for anything else."""
    makers = _makers(mask)
    if makers is None:
        return ""
    numbers = {n for node in makers for n in _whole_numbers(node)}
    if any(n > LARGEST for n in numbers):
        return ""
    tried = sorted({*SAMPLES, *(n + more for n in numbers for more in (-1, 0, 1, 2) if n + more > 1)})
    symbols = sorted({s for node in makers for s in _symbols(node)}, key=str)
    with real_tensors():
        kinds = {_kind_at(mask, makers, sizes) for sizes in _samples(symbols, tried)}
    return kinds.pop() if len(kinds) == 1 else ""


def _samples(symbols: list[Any], tried: list[int]) -> Iterator[dict[Any, int]]:
    """All sizes alike, each apart from the others, and each much smaller and larger: one of them may be a window."""
    for size in tried:
        yield dict.fromkeys(symbols, size)
        yield {symbol: size + i for i, symbol in enumerate(symbols)}
        for symbol in symbols[: len(symbols) if len(symbols) > 1 else 0]:
            yield {**dict.fromkeys(symbols, size), symbol: 2}
            yield {**dict.fromkeys(symbols, size), symbol: 3 * size}


def _makers(mask: fx.Node) -> list[fx.Node] | None:
    """The calls that make a mask, in order; None where it depends on anything but sizes."""
    found: set[fx.Node] = set()
    todo = [mask]
    while todo:
        node = todo.pop()
        if node in found or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        if node.op != "call_function" or is_random(node) or is_once(node):
            return None
        found.add(node)
        if node.target not in OF_SHAPES:
            todo.extend(node.all_input_nodes)
    return [node for node in mask.graph.nodes if node in found]


def _whole_numbers(node: fx.Node) -> Iterator[int]:
    """The whole numbers among a call's arguments; an index as large as they come means the end."""
    for leaf in tree_leaves((list(node.args), dict(node.kwargs))):
        if isinstance(leaf, int) and not isinstance(leaf, bool) and 1 < abs(leaf) < 1 << 62:
            yield abs(leaf)
        elif isinstance(leaf, float) and leaf.is_integer() and 1 < abs(leaf) < 1e9:
            yield int(abs(leaf))
        elif isinstance(leaf, fx.Node) and isinstance(leaf.meta.get("val"), torch.SymInt):
            yield from (int(abs(n)) for n in expression(leaf.meta["val"]).atoms(sympy.Integer) if abs(n) > 1)


def _symbols(node: fx.Node) -> set[Any]:
    found: set[Any] = set()
    for given in (node, *node.all_input_nodes):
        val = given.meta.get("val")
        sizes = val.shape if isinstance(val, torch.Tensor) else (val,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                found |= expression(size).free_symbols
    return found


def _kind_at(mask: fx.Node, makers: list[fx.Node], sizes: dict[Any, int]) -> str:
    made: dict[fx.Node, Any] = {}

    def number(size: Any) -> int:
        found = expression(size)
        return found if isinstance(found, int) else int(found.subs(sizes))

    def given(node: fx.Node) -> Any:
        if node in made:
            return made[node]
        val = node.meta["val"]
        if isinstance(val, torch.Tensor):
            return torch.empty([number(s) for s in val.shape], dtype=val.dtype)
        return number(val)

    try:
        for node in makers:
            args, kwargs = map_arg((node.args, node.kwargs), given)
            if "device" in kwargs:
                kwargs = {**kwargs, "device": torch.device("cpu")}
            made[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception:  # a mask that cannot be made here costs a mask, not the plan
        return ""
    seen = made[mask]
    visible = seen if seen.dtype is torch.bool else seen == 0
    hidden = ~visible if seen.dtype is torch.bool else seen <= HIDDEN
    if seen.dim() < 2 or not bool((visible | hidden).all()):
        return ""
    if bool(visible.all()):
        return "all"
    return "causal" if torch.equal(visible, torch.ones_like(visible).tril()) and visible.shape[-1] == visible.shape[-2] else ""
