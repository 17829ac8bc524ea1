"""A fragment as plain data, so that another process can compile it.

In: a `Fragment`. Out: a `Message`, which pickles; and back, in that process, an fx graph and the fake tensors that stand for
its arguments, with the same symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from neaptide._torch import FakeTensorMode, new_size, new_sizes
from neaptide.inner.fragment import Fragment
from neaptide.inner.look import Look


@dataclass(frozen=True, slots=True)
class Name:
    """The result of an earlier node."""

    name: str


@dataclass(frozen=True, slots=True)
class Node:
    """A call. Ops go by name, other functions as they are."""

    name: str
    target: Any
    args: Any
    kwargs: Any


@dataclass(frozen=True, slots=True)
class Message:
    """A fragment: its free sizes with values that they may have, its arguments, its calls, its results."""

    sizes: tuple[tuple[str, int], ...]
    given: tuple[tuple[str, Look], ...]
    nodes: tuple[Node, ...]
    made: tuple[Name, ...]
    trains: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What inductor made of a message: the source of its wrapper, and what it relied on about free sizes."""

    source: str
    conditions: tuple[str, ...]


def write(fragment: Fragment) -> Message:
    """The message that a fragment is."""
    graph = fragment.module.graph
    names = {node: f"n{i}" for i, node in enumerate(graph.nodes)}  # those of identical layers are the same
    sizes = fragment.sizes
    holders = [node for node in graph.nodes if node.op == "placeholder"]
    looks = [*(Look((name,)) for name, _ in sizes), *fragment.looks]
    given = tuple((names[node], look) for node, look in zip(holders, looks, strict=True))
    calls = [node for node in graph.nodes if node.op == "call_function"]
    nodes = [Node(names[n], _target(n.target), _named(n.args, names), _named(n.kwargs, names)) for n in calls]
    (end,) = (node for node in graph.nodes if node.op == "output")
    return Message(sizes, given, tuple(nodes), _named(end.args[0], names), fragment.graph.trains)


def read(message: Message) -> tuple[fx.GraphModule, list[Any], FakeTensorMode, dict[Any, str]]:
    """The fx graph, what stands for its arguments, the mode that they are in, and the names of the free sizes there."""
    mode = new_sizes()
    known = {name: new_size(mode, name, hint) for name, hint in message.sizes}
    graph = fx.Graph()
    names: dict[str, fx.Node] = {}
    fakes: list[Any] = []
    with mode:
        for name, look in message.given:
            names[name] = graph.placeholder(name)
            fakes.append(look.fake(known))
    for node in message.nodes:
        args, kwargs = (_nodes(tree, names) for tree in (node.args, node.kwargs))
        names[node.name] = graph.create_node("call_function", _found(node.target), args, kwargs, node.name)
    graph.output(_nodes(message.made, names))
    return fx.GraphModule({}, graph), fakes, mode, {size.node.expr: name for name, size in known.items()}


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
