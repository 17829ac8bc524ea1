"""A stretch as plain data, so that another process can compile it.

In: a `Stretch`. Out: a `Message`, which pickles; and back, in that process, an fx graph and the fake tensors that stand for its
arguments, with the same symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from neaptide._torch import FakeTensorMode, new_size, new_sizes
from neaptide.graph import expression
from neaptide.inner.straight import Stretch
from neaptide.sizes import print_expression


@dataclass(frozen=True, slots=True)
class Name:
    """The result of an earlier node."""

    name: str


@dataclass(frozen=True, slots=True)
class Given:
    """An argument: a tensor by its shape and strides, or a number; sizes as Python source over the free ones."""

    name: str
    shape: tuple[str, ...]
    stride: tuple[str, ...] = ()
    dtype: torch.dtype | None = None
    device: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A call. Ops go by name, other functions as they are."""

    name: str
    target: Any
    args: Any
    kwargs: Any


@dataclass(frozen=True, slots=True)
class Message:
    """A stretch: its free sizes with values that they may have, its arguments, its calls, its results."""

    sizes: tuple[tuple[str, int], ...]
    given: tuple[Given, ...]
    nodes: tuple[Node, ...]
    made: tuple[Name, ...]
    trains: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What inductor made of a message: the source of its wrapper, and what it relied on about free sizes."""

    source: str
    conditions: tuple[str, ...]


def write(stretch: Stretch) -> Message:
    """The message that a stretch is."""
    free = stretch.graph.sizes
    names = {node: f"n{i}" for i, node in enumerate(stretch.module.graph.nodes)}  # those of identical layers are the same
    sizes = tuple((symbol.name, dim) for symbol, dim in zip(free.symbols, stretch.dims or free.hints, strict=True))
    holders = [node for node in stretch.module.graph.nodes if node.op == "placeholder"]
    given = [Given(names[node], (size,)) for node, (size, _) in zip(holders, sizes, strict=False)]
    values = [stretch.graph.values[v].fake for v in stretch.given]
    given += [_given(names[node], fake) for node, fake in zip(holders[len(sizes) :], values, strict=True)]
    calls = [node for node in stretch.module.graph.nodes if node.op == "call_function"]
    nodes = [Node(names[n], _target(n.target), _named(n.args, names), _named(n.kwargs, names)) for n in calls]
    (end,) = (node for node in stretch.module.graph.nodes if node.op == "output")
    return Message(sizes, tuple(given), tuple(nodes), _named(end.args[0], names), stretch.graph.trains)


def read(message: Message) -> tuple[fx.GraphModule, list[Any], FakeTensorMode, dict[Any, str]]:
    """The fx graph, what stands for its arguments, the mode that they are in, and the names of the free sizes there."""
    mode = new_sizes()
    known = {name: new_size(mode, name, hint) for name, hint in message.sizes}
    graph = fx.Graph()
    names: dict[str, fx.Node] = {}
    fakes: list[Any] = []
    with mode:
        for each in message.given:
            names[each.name] = graph.placeholder(each.name)
            shape = _numbers(each.shape, known)
            if each.dtype is None:
                fakes.append(shape[0])
            else:
                stride = _numbers(each.stride, known)
                fakes.append(torch.empty_strided(shape, stride, dtype=each.dtype, device=each.device))
    for node in message.nodes:
        args, kwargs = (_nodes(tree, names) for tree in (node.args, node.kwargs))
        names[node.name] = graph.create_node("call_function", _found(node.target), args, kwargs, node.name)
    graph.output(_nodes(message.made, names))
    return fx.GraphModule({}, graph), fakes, mode, {size.node.expr: name for name, size in known.items()}


def _given(name: str, fake: Any) -> Given:
    if not isinstance(fake, torch.Tensor):
        return Given(name, (_source(fake),))
    return Given(name, tuple(map(_source, fake.shape)), tuple(map(_source, fake.stride())), fake.dtype, str(fake.device))


def _source(size: Any) -> str:
    found = expression(size)
    return str(found) if isinstance(found, int) else print_expression(found)


def _numbers(sources: Sequence[str], known: Mapping[str, Any]) -> tuple[Any, ...]:
    # The source was printed from an expression over sizes by the process that asks.
    return tuple(eval(source, {"__builtins__": {}, "math": __import__("math")}, dict(known)) for source in sources)


def _target(target: Any) -> Any:
    return Name(str(target)) if isinstance(target, OpOverload) else target


def _found(target: Any) -> Any:
    if not isinstance(target, Name):
        return target
    found: Any = torch.ops
    for part in target.name.split("."):
        found = getattr(found, part)
    return found


def _named(tree: Any, names: Mapping[fx.Node, str]) -> Any:
    return tree_map(lambda leaf: Name(names[leaf]) if isinstance(leaf, fx.Node) else leaf, _plain(tree))


def _nodes(tree: Any, names: Mapping[str, fx.Node]) -> Any:
    return tree_map(lambda leaf: names[leaf.name] if isinstance(leaf, Name) else leaf, tree)


def _plain(tree: Any) -> Any:
    """Nested lists and dicts as Python has them, not as fx does."""
    if isinstance(tree, (list, tuple)):
        return type(tree)(map(_plain, tree)) if type(tree) in (list, tuple) else [_plain(each) for each in tree]
    return {key: _plain(value) for key, value in tree.items()} if isinstance(tree, dict) else tree
