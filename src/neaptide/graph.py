"""What a model means: ATen ops over values, values over storages, every storage's bytes a symbolic expression.

In: an fx graph from AOTAutograd (inference, or forward and backward in one), whose nodes carry fake tensors. Out: a
frozen `Graph`. A value is a name; a storage is memory. Views and in-place ops make several values of one storage, which
costs its bytes once and lives until its last value dies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any, Literal

import sympy
import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from neaptide._torch import InputMutationAOTOutput
from neaptide.ops import is_once, is_random, written_arguments
from neaptide.sizes import Sizes, Symbol
from neaptide.timeline import Kind
from neaptide.workspaces import Spec, workspace

Phase = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory: `size` is the index of its bytes in the graph's `Sizes`."""

    name: str
    size: int
    kind: Kind
    device: str
    path: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A name for a tensor (or, where `storage` is None, for a size). `node` carries its fake tensor in `meta["val"]`."""

    name: str
    storage: int | None
    node: fx.Node
    part: int | None = None
    """The position in the op's result, where the op returns several."""

    @property
    def fake(self) -> Any:
        """The fake tensor (or symbolic size) that stands for the value."""
        val = self.node.meta.get("val")
        return val if self.part is None else val[self.part]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One call: what it reads, makes and writes in place, and where in the user's model it came from."""

    name: str
    node: fx.Node
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    writes: tuple[int, ...]
    phase: Phase
    random: bool
    once: bool
    workspace: int
    path: str = ""
    source: str = ""

    def __repr__(self) -> str:
        return f"Op({self.name}: {self.label})"

    @property
    def target(self) -> Any:
        return self.node.target

    @property
    def label(self) -> str:
        """The op's name as a person would say it, with its module path."""
        name = getattr(self.target, "__name__", str(self.target))
        if isinstance(self.target, torch._ops.OpOverload):
            name = self.target.name().split("::")[-1].removesuffix(".default")
        return f"{name} @ {self.path}" if self.path else name


@dataclass(frozen=True, slots=True)
class Input:
    """What is known of a graph input beforehand: its name, what it is for, the module it belongs to."""

    name: str
    kind: Kind
    path: str = ""


@dataclass(frozen=True, eq=False)
class Graph:
    """A captured graph. `values[i]` is made by `maker[i]` (an op's index), or is an input or constant (None)."""

    name: str
    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    storages: tuple[Storage, ...]
    inputs: tuple[int, ...]
    tangents: tuple[int, ...]
    constants: tuple[int, ...]
    outputs: tuple[int | None, ...]
    gradients: tuple[int | None, ...]
    sizes: Sizes
    module: fx.GraphModule
    maker: tuple[int | None, ...]
    mutated: frozenset[int]
    """The inputs that a run of the graph changes, inside it or right after it."""
    holders: Mapping[int, fx.Node]
    """For each value, the node whose own result it is (for a part of a result, the node that takes it out)."""
    fixed: Mapping[str, str]
    """Input sizes that PyTorch took as constants, and why."""
    device: str
    nothing: int
    """The index of the size 0."""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.ops)} ops, {len(self.values)} values, {len(self.storages)} storages)"

    @property
    def trains(self) -> bool:
        return bool(self.gradients)

    def storage_of(self, value: int) -> int | None:
        return self.values[value].storage

    def source_text(self) -> str:
        """The graph as PyTorch prints it."""
        return str(self.module.graph)


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
        self.sizes = Sizes(_symbols(module, described))
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
        for kind, nodes in (("gradient", self.gradients), ("output", self.outputs)):
            for node in nodes:
                self._mark(node, kind)
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
            _fixed(self.module, self.described),
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
        if node.target is getitem and isinstance(node.args[0], fx.Node):
            base, position = node.args
            parts = self.of_node[base]
            if isinstance(base.meta.get("val"), (tuple, list)) and self.values[parts[0]].part is not None:
                self.of_node[node] = (next(v for v in parts if self.values[v].part == position),)
                return
        path, source = _path(node), _source(node)
        val = node.meta.get("val")
        self._bound_unbacked(node, val)
        outputs: list[int] = []
        parts = enumerate(val) if isinstance(val, (tuple, list)) else [(None, val)]
        for part, item in parts:
            name = node.name if part is None else f"{node.name}.{part}"
            outputs.append(self._value(node, item, "temporary", path, source, name, part, len(self.ops)))
        self.of_node[node] = tuple(outputs)
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
        self, node: fx.Node, val: Any, kind: Kind, path: str, source: str, name: str, part: int | None = None, op: int | None = None
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
            if any(not self.sizes.knows(symbol.name) for symbol in _free_symbols(memory.nbytes())):
                size = expression(fake.numel()) * fake.element_size()  # an input in a larger memory, whose size is not told
        known = self.of_storage.get(key)
        if known is None:
            known = self.of_storage[key] = len(self.storages)
            self.storages.append(Storage(name, self.sizes.add(size), kind, fake.device.type, path, source))
        return known

    def _bound_unbacked(self, node: fx.Node, val: Any) -> None:
        """A size that only the run will tell (the count of a `nonzero`) is counted at the most it can be."""
        for symbol in _free_symbols(val):
            if self.sizes.knows(symbol.name):
                continue
            most = _most(node, symbol)
            self.sizes.bind(symbol.name, most if most is not None else 0)
            said = f"at most {most}" if most is not None else "unknown, counted as 0"
            self.notes.append(f"{node.name}: a size that depends on data ({symbol.name}), {said}")


def expression(size: Any) -> Any:
    """A size as a plain int or a sympy expression."""
    return size.node.expr if isinstance(size, torch.SymInt) else int(size)


def spec_of(fake: torch.Tensor) -> Spec:
    """The shape, strides, dtype and device of a fake tensor, as expressions."""
    strides = tuple(expression(s) for s in fake.stride()) if fake.layout is torch.strided else ()
    return Spec(tuple(expression(s) for s in fake.shape), strides, fake.dtype, fake.device.type)


def _workspace(node: fx.Node, threads: int) -> Any:
    if not isinstance(node.target, torch._ops.OpOverload):
        return 0

    def as_spec(arg: Any) -> Any:
        val = arg.meta.get("val") if isinstance(arg, fx.Node) else arg
        if isinstance(val, torch.Tensor):
            return spec_of(val)
        return expression(val) if isinstance(val, torch.SymInt) else val

    args = tree_map(as_spec, list(node.args))
    kwargs = {k: tree_map(as_spec, v) for k, v in node.kwargs.items()}
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


def _symbols(module: fx.GraphModule, described: Mapping[str, Input]) -> list[Symbol]:
    """The free sizes of a graph's inputs, each with the first place it is seen."""
    found: dict[str, Symbol] = {}
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for node, size, place in _input_sizes(placeholders):
        for symbol in _free_symbols(size):
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


def _fixed(module: fx.GraphModule, described: Mapping[str, Input]) -> dict[str, str]:
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
            return f"the model's code asks for this very size ({place})" if place else "the model's code asks for this very size"
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


def _free_symbols(val: Any) -> list[sympy.Symbol]:
    found: dict[sympy.Symbol, None] = {}
    for leaf in tree_leaves(val):
        sizes = [leaf] if isinstance(leaf, torch.SymInt) else list(leaf.shape) if isinstance(leaf, torch.Tensor) else []
        for size in sizes:
            if isinstance(size, torch.SymInt):
                found.update(dict.fromkeys(sorted(size.node.expr.free_symbols, key=str)))
    return list(found)


def _most(node: fx.Node, symbol: sympy.Symbol) -> Any:
    """The largest a data-dependent size can be: the elements that the op has to choose from, or its declared range."""
    tensors = [a.meta["val"] for a in node.all_input_nodes if isinstance(a.meta.get("val"), torch.Tensor)]
    if isinstance(node.meta.get("val"), torch.SymInt):
        env = node.meta["val"].node.shape_env
        bounds = env.var_to_range.get(symbol)
        small = bounds is not None and bounds.upper.is_Integer and int(bounds.upper) < 2**31
        return int(bounds.upper) if small else None
    return expression(max(tensors, key=lambda t: t.dim()).numel()) if tensors else None


def _path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = list(stack.values())[-1][0]
    return re.sub(r"^L\['\w+'\]\.?", "", path).replace("._modules['", ".").replace("']", "")


def _source(node: fx.Node) -> str:
    """The innermost line of the user's or the library's model code, as file:line."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return f"{lines[-1][0]}:{lines[-1][1]}" if lines else ""
