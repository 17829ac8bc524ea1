"""A loop becomes Python: a function around the fx graph of its body.

In: a `Loop` step. Out: a module whose `forward` takes the graph's free sizes and what the loop reads, and gives back what it
makes. Results are allocated once, with the strides that the whole result has; each round works on slices, never copies, and
writes its part of the results. The parts are as equal as they can be, so that none is short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import fx, nn

from neaptide.axes import Flow
from neaptide.graph import Graph, expression
from neaptide.sizes import Expr, print_expression
from neaptide.steps import Cut, Loop, reads

EVERY = slice(None)
LAST = slice(-1, None)
"""Which rounds to run: all of them, or the last, which is none of the shorter ones."""
FIRST = {"sum": "0", "max": "lowest", "min": "highest"}


class Looped(nn.Module):
    """A loop that runs; `source` is what it runs."""

    def __init__(self, name: str, source: str, body: Callable[[list[Any]], Any], module: fx.GraphModule) -> None:
        super().__init__()
        self.source = source
        self.module = module
        space: dict[str, Any] = {"torch": torch, "math": math, "lowest": lowest, "highest": highest}
        # The source is made here, from names and sizes of a graph; nothing that came from a file gets in.
        exec(source, space)  # noqa: S102
        self.function: Callable[..., Any] = space[name]
        self.body = body

    def forward(self, *args: Any) -> Any:
        return self.function(self.body, EVERY, *args)


def write_loop(name: str, graph: Graph, loop: Loop, cuts: Sequence[Cut], extras: Sequence[Expr]) -> str:
    """The source of a loop. Its body is given `lo`, `hi`, the numbers `extras`, each cut and each result's part to write to."""
    names = {v: _name(graph, v) for v in reads(graph, loop)}
    made = [f"{_name(graph, m.value)}_whole" for m in loop.made]
    dims = [s.name for s in graph.sizes.symbols]
    taken = ", ".join(["body", "rounds", *dims, *names.values()])
    lines = [f"def {name}({taken}):", f"    n = {_size(graph, graph.sizes.expressions[loop.extent])}"]
    for result, whole in zip(loop.made, made, strict=True):
        lines.append(
            f"    {whole} = {_allocation(graph, result.value, result.how) if result.onto is None else names[result.onto]}"
        )
    lines += [
        f"    parts = -(-n // {loop.chunk})",
        "    for i in range(parts)[rounds]:",
        "        lo, hi = n * i // parts, n * (i + 1) // parts",
    ]
    given = ["lo", "hi", *(_size(graph, extra) for extra in extras)]
    given += [_slice(graph, names[cut.value], cut.flow) for cut in cuts]
    given += [
        _slice(graph, whole, m.how) if isinstance(m.how, Flow) else whole for m, whole in zip(loop.made, made, strict=True)
    ]
    lines.append("        body([" + ", ".join(given) + "])")
    lines.append(f"    return {made[0] if len(made) == 1 else ', '.join(made)}")
    return "\n".join(lines) + "\n"


def signature(graph: Graph, loop: Loop) -> Hashable:
    """What two loops have in common if they run the same code on other values, as those of identical layers do."""
    numbers: dict[int, int] = {}

    def number(value: int) -> int:
        return numbers.setdefault(value, len(numbers))

    def form(argument: Any) -> Hashable:
        if isinstance(argument, fx.Node):
            return ("value", number(graph.value_of[argument]))
        if isinstance(argument, (list, tuple)):
            return tuple(map(form, argument))
        return (type(argument), argument)

    given = tuple(map(number, reads(graph, loop)))
    parts: list[Hashable] = []
    for part in loop.parts:
        op = graph.ops[part.op]
        named = tuple((name, form(value)) for name, value in op.node.kwargs.items())
        made = tuple((number(v), graph.values[v].part) for v in op.outputs)
        parts.append((op.target, form(op.node.args), named, made, part.axis))
    results = [(number(m.value), m.how, None if m.onto is None else number(m.onto), _look(graph, m.value)) for m in loop.made]
    return (loop.extent, loop.chunk, given, tuple(parts), tuple(results))


def _look(graph: Graph, value: int) -> Hashable:
    """The shape, strides and kind of a tensor."""
    fake = graph.values[value].fake
    return (*map(expression, fake.shape), *map(expression, fake.stride()), fake.dtype, str(fake.device))


def lowest(dtype: torch.dtype) -> float:
    """What no number of a dtype is below."""
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min if dtype is not torch.bool else False


def highest(dtype: torch.dtype) -> float:
    """What no number of a dtype is above."""
    return torch.inf if dtype.is_floating_point else torch.iinfo(dtype).max if dtype is not torch.bool else True


def _allocation(graph: Graph, value: int, how: Any) -> str:
    fake = graph.values[value].fake
    shape = ", ".join(_size(graph, expression(size)) for size in fake.shape)
    stride = ", ".join(_size(graph, expression(step)) for step in fake.stride())
    made = f"torch.empty_strided(({shape},), ({stride},), dtype={fake.dtype}, device={str(fake.device)!r})"
    if fake.dim() == 0:
        made = f"torch.empty((), dtype={fake.dtype}, device={str(fake.device)!r})"
    if isinstance(how, Flow):
        return made
    return f"{made}.fill_({FIRST[how] if how == 'sum' else f'{FIRST[how]}({fake.dtype})'})"


def _slice(graph: Graph, name: str, flow: Flow | None) -> str:
    if flow is None:
        return name
    if flow.block == 1:
        return f"{name}.narrow({flow.dim}, lo, hi - lo)"
    block = _size(graph, flow.block)
    return f"{name}.narrow({flow.dim}, lo * ({block}), (hi - lo) * ({block}))"


def _size(graph: Graph, size: Any) -> str:
    return print_expression(graph.sizes.canonical(size))


def _name(graph: Graph, value: int) -> str:
    return graph.values[value].name.replace(".", "_part")
