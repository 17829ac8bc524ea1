"""Reads what AOTAutograd traced as a `Graph`: ops with their places in the model, values, storages, sizes.

In: an fx graph whose nodes carry fake tensors, and what is known of its inputs. Out: a `Graph`. What aliases what is told by
the fake tensors' storages, not by op names; a result of several parts is one op with several values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from neaptide._torch import InputMutationAOTOutput
from neaptide.graph import Graph, Input, Op, Storage, Value, described, expression
from neaptide.ops import is_once, is_random, written_arguments
from neaptide.sizes import Sizes
from neaptide.symbols import fixed_sizes, free_sizes, free_symbols, largest
from neaptide.timeline import Kind
from neaptide.workspaces import workspace

aten = torch.ops.aten
COPY_ALL_MEMORY = frozenset({aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default})
"""Ops whose kernels copy the whole memory that their first argument is a part of, unless that repeats what is in it."""


def build_graph(
    module: fx.GraphModule,
    described: Mapping[str, Input],
    forward_outputs: int | None = None,
    tangents: Sequence[str] = (),
    name: str = "graph",
) -> Graph:
    """The `Graph` of an AOTAutograd module; with `forward_outputs`, of a joint forward and backward."""
    return _Builder(module, described, forward_outputs, frozenset(tangents), name).build()


class _Builder:
    def __init__(
        self,
        module: fx.GraphModule,
        described: Mapping[str, Input],
        forward_outputs: int | None,
        tangents: frozenset[str],
        name: str,
    ) -> None:
        self.module, self.described, self.name = module, described, name
        self.tangents = tangents
        self.sizes = Sizes(free_sizes(module, described))
        self.nothing = self.sizes.add(0)
        self.values: list[Value] = []
        self.storages: list[Storage] = []
        self.maker: list[int | None] = []
        self.ops: list[Op] = []
        self.of_node: dict[fx.Node, tuple[int, ...]] = {}
        self.of_storage: dict[int, int] = {}
        self.notes: list[str] = []
        outputs = tree_leaves(next(n for n in reversed(module.graph.nodes) if n.op == "output").args)
        split = len(outputs) if forward_outputs is None else forward_outputs
        self.outputs, self.gradients = outputs[:split], outputs[split:]
        self.backward = _backward_nodes(module, tangents) if forward_outputs is not None else frozenset()
        self.threads = torch.get_num_threads()

    def build(self) -> Graph:
        inputs, tangents, constants = [], [], []
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                about = self.described.get(node.name, Input(node.name, "gradient" if node.name in self.tangents else "input"))
                value = self._value(node, node.meta.get("val"), about.kind, about.path, "", about.name)
                (tangents if node.name in self.tangents else inputs).append(value)
                self.of_node[node] = (value,)
            elif node.op == "get_attr":
                value = self._constant(node)
                constants.append(value)
                self.of_node[node] = (value,)
            elif node.op == "call_function":
                self._op(node)
        for node in self.gradients:
            self._mark(node, "gradient")
        for node in self.outputs:
            self._mark(node, "output")
        return Graph(
            self.name,
            tuple(self.ops),
            tuple(self.values),
            tuple(self.storages),
            tuple(inputs),
            tuple(tangents),
            tuple(constants),
            tuple(self._index(n) for n in self.outputs),
            tuple(self._index(n) for n in self.gradients),
            self.sizes,
            self.module,
            tuple(self.maker),
            self._mutated(),
            {values[0]: node for node, values in self.of_node.items() if len(values) == 1},
            fixed_sizes(self.module, self.described),
            self._device(inputs),
            self.nothing,
            tuple(dict.fromkeys(self.notes)),
        )

    def _index(self, node: Any) -> int | None:
        return self.of_node[node][0] if isinstance(node, fx.Node) else None

    def _mark(self, node: Any, kind: Kind) -> None:
        """A storage that the graph makes and hands out is an output or a gradient, not a temporary."""
        value = self._index(node)
        storage = None if value is None else self.values[value].storage
        if storage is not None and self.storages[storage].kind == "temporary":
            old = self.storages[storage]
            self.storages[storage] = Storage(old.name, old.size, kind, old.device, old.path, old.source)

    def _mutated(self) -> frozenset[int]:
        placeholders = {v for v, maker in enumerate(self.maker) if maker is None}
        inside = {v for op in self.ops for v in op.writes if v in placeholders}
        by_description = {self.values[v].node.meta.get("desc"): v for v in placeholders}
        end = next(n for n in reversed(self.module.graph.nodes) if n.op == "output")
        after = [d.mutated_input for d in tree_leaves(end.meta.get("desc", [])) if isinstance(d, InputMutationAOTOutput)]
        return frozenset(inside | {by_description[d] for d in after if d in by_description})

    def _device(self, inputs: Sequence[int]) -> str:
        """Where the graph runs: the first device among its inputs, then its results, that is not the CPU; else the CPU."""
        given = [self.values[v].storage for v in inputs]
        order = [self.storages[s] for s in given if s is not None] + self.storages
        return next((s.device for s in order if s.device not in ("cpu", "meta")), "cpu")

    def _constant(self, node: fx.Node) -> int:
        held: Any = self.module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        val = node.meta.get("val", held if isinstance(held, torch.Tensor) else None)
        return self._value(node, val, "other", "", "", str(node.target))

    def _op(self, node: fx.Node) -> None:
        base: Any = node.args[0] if node.args else None
        if node.target is getitem and isinstance(base, fx.Node):
            position = node.args[1]
            parts = self.of_node[base]
            if isinstance(base.meta.get("val"), (tuple, list)) and self.values[parts[0]].part is not None:
                self.of_node[node] = (next(v for v in parts if self.values[v].part == position),)
                return
        path, source = module_path(node), _source(node)
        val = node.meta.get("val")
        self._bound_unbacked(node, val)
        outputs: list[int] = []
        parts = enumerate(val) if isinstance(val, (tuple, list)) else [(None, val)]
        for part, item in parts:
            name = node.name if part is None else f"{node.name}.{part}"
            outputs.append(self._value(node, item, "temporary", path, source, name, part, len(self.ops)))
        self.of_node[node] = tuple(outputs)
        if node.target in COPY_ALL_MEMORY and isinstance(base, fx.Node):
            self._take_as_much(outputs[0], self.of_node[base][0])
        read = dict.fromkeys(v for a in node.all_input_nodes for v in self.of_node[a])
        written = (v for a in written_arguments(node) for v in self.of_node[a])
        self.ops.append(
            Op(
                node.name,
                node,
                tuple(read),
                tuple(outputs),
                tuple(dict.fromkeys(written)),
                "backward" if node in self.backward else "forward",
                is_random(node),
                is_once(node),
                self.sizes.add(_workspace(node, self.threads)),
                path,
                source,
            )
        )

    def _value(
        self,
        node: fx.Node,
        val: Any,
        kind: Kind,
        path: str,
        source: str,
        name: str,
        part: int | None = None,
        op: int | None = None,
    ) -> int:
        storage = self._storage(val, kind, path, source, name) if isinstance(val, torch.Tensor) else None
        self.values.append(Value(node.name if part is None else name, storage, node, part))
        self.maker.append(op)
        return len(self.values) - 1

    def _storage(self, fake: torch.Tensor, kind: Kind, path: str, source: str, name: str) -> int | None:
        if fake.layout is not torch.strided:
            key, size = id(fake), expression(fake.numel()) * fake.element_size()
        else:
            memory = fake.untyped_storage()
            key, size = memory._cdata, expression(memory.nbytes())
            if any(not self.sizes.knows(symbol.name) for symbol in free_symbols(memory.nbytes())):
                size = expression(fake.numel()) * fake.element_size()  # an input in a larger memory, whose size is not told
        known = self.of_storage.get(key)
        if known is None:
            known = self.of_storage[key] = len(self.storages)
            self.storages.append(Storage(name, self.sizes.add(size), kind, fake.device.type, path, source))
        return known

    def _take_as_much(self, made: int, given: int) -> None:
        """Let a result take as much as the memory in which what it was made of lies."""
        own, whole = self.values[made].storage, self.values[given].storage
        repeats = any(stride == 0 for stride in self.values[given].fake.stride())
        if own is not None and whole is not None and own != whole and not repeats:
            self.storages[own] = replace(self.storages[own], size=self.storages[whole].size)

    def _bound_unbacked(self, node: fx.Node, val: Any) -> None:
        """A size that only the run will tell (the count of a `nonzero`) is counted at the most it can be."""
        for symbol in free_symbols(val):
            if self.sizes.knows(symbol.name):
                continue
            most = largest(node, symbol)
            self.sizes.bind(symbol.name, most if most is not None else 0)
            said = f"at most {most}" if most is not None else "unknown, counted as 0"
            self.notes.append(f"{node.name}: a size that depends on data ({symbol.name}), {said}")


def _workspace(node: fx.Node, threads: int) -> Any:
    if not isinstance(node.target, torch._ops.OpOverload):
        return 0
    args, kwargs = described(node)
    return workspace(node.target, args, kwargs, threads)


def _backward_nodes(module: fx.GraphModule, tangents: frozenset[str]) -> frozenset[fx.Node]:
    """What needs a tangent, or was traced in the backward, less the writes to inputs that belong to the forward."""
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node.op == "placeholder" and node.name in tangents:
            found.add(node)
        elif node.op == "call_function" and node.meta.get("partitioner_tag") != "must_be_in_forward":
            traced = node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")
            if traced or any(a in found for a in node.all_input_nodes):
                found.add(node)
    return frozenset(found)


def module_path(node: fx.Node) -> str:
    """The module that an op came from, as `named_modules` calls it."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = list(stack.values())[-1][0].replace("__dict__['_modules']", "_modules")
    return re.sub(r"^L\['\w+'\]\.?", "", path).replace("._modules['", ".").replace("_modules['", "").replace("']", "")


def _source(node: fx.Node) -> str:
    """The innermost line of the user's or the library's model code, as file:line."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return f"{lines[-1][0]}:{lines[-1][1]}" if lines else ""
