"""The sizes of a traced graph: which are free, which PyTorch fixed and why, and how large a data-dependent one can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from neaptide.graph import Input, expression
from neaptide.sizes import Symbol


def free_sizes(module: fx.GraphModule, described: Mapping[str, Input]) -> list[Symbol]:
    """The free sizes of a graph's inputs, each with the first place it is seen."""
    found: dict[str, Symbol] = {}
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for node, size, place in _input_sizes(placeholders):
        for symbol in free_symbols(size):
            shape_env = size.node.shape_env
            about = described.get(node.name)
            origin = f"{about.name if about else node.name}{place}"
            seen = found.get(symbol.name)
            if seen is not None:
                continue
            bounds = shape_env.var_to_range.get(symbol)
            hint = shape_env.backed_var_to_val.get(symbol, 2)
            low = int(bounds.lower) if bounds is not None and bounds.lower.is_Integer else 2
            high = int(bounds.upper) if bounds is not None and bounds.upper.is_Integer else None
            found[symbol.name] = Symbol(symbol.name, origin, max(low, 0), high, int(hint))
    return list(found.values())


def fixed_sizes(module: fx.GraphModule, described: Mapping[str, Input]) -> dict[str, str]:
    """The sizes of inputs (not of parameters and buffers) that are constants in the graph."""
    found: dict[str, str] = {}
    for node in module.graph.nodes:
        val, about = node.meta.get("val"), described.get(node.name)
        if node.op == "placeholder" and isinstance(val, torch.Tensor) and about is not None and about.kind == "input":
            for dim, size in enumerate(val.shape):
                if isinstance(size, int):
                    found[f"{about.name}.shape[{dim}]={size}"] = _why(val, size)
    return found


def _why(fake: torch.Tensor, size: int) -> str:
    """Why PyTorch made a size a constant, as far as it kept a record."""
    env = getattr(getattr(fake, "fake_mode", None), "shape_env", None)
    for symbol, value in getattr(env, "replacements", {}).items():
        if value.is_Integer and int(value) == size:
            place = getattr(env, "replacements_slocs", {}).get(symbol)
            return (
                f"the model's code asks for this very size ({place})" if place else "the model's code asks for this very size"
            )
    return "sizes 0 and 1 are always captured apart" if size in (0, 1) else "it was not free when the model was captured"


def _input_sizes(placeholders: Sequence[fx.Node]) -> Iterator[tuple[fx.Node, torch.SymInt, str]]:
    for node in placeholders:
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt):
            yield node, val, ""
        elif isinstance(val, torch.Tensor):
            for i, size in enumerate(val.shape):
                if isinstance(size, torch.SymInt):
                    yield node, size, f".shape[{i}]"


def free_symbols(val: Any) -> list[sympy.Symbol]:
    """The symbols in the shapes of a fake result, or in a symbolic size."""
    found: dict[sympy.Symbol, None] = {}
    for leaf in tree_leaves(val):
        sizes = [leaf] if isinstance(leaf, torch.SymInt) else list(leaf.shape) if isinstance(leaf, torch.Tensor) else []
        for size in sizes:
            if isinstance(size, torch.SymInt):
                found.update(dict.fromkeys(sorted(size.node.expr.free_symbols, key=str)))
    return list(found)


def largest(node: fx.Node, symbol: sympy.Symbol) -> Any:
    """The largest a data-dependent size can be: the elements that the op has to choose from, or its declared range."""
    tensors = [a.meta["val"] for a in node.all_input_nodes if isinstance(a.meta.get("val"), torch.Tensor)]
    if isinstance(node.meta.get("val"), torch.SymInt):
        env = node.meta["val"].node.shape_env
        bounds = env.var_to_range.get(symbol)
        upper = bounds.upper if bounds is not None else None
        return int(upper) if upper is not None and upper.is_Integer and int(upper) < 2**31 else None
    return expression(max(tensors, key=lambda t: t.dim()).numel()) if tensors else None
