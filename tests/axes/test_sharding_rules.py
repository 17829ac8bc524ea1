"""Against torch's own rules for sharded tensors, which say the same of devices: what is sharded how, before and after an op.

`Shard(d)` is a dim that is cut, `Replicate()` a tensor that is needed whole, `Partial("sum")` a result that is combined.
Their rules are private; they are asked here, where a change of theirs breaks a test and nothing else.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy, TupleStrategy
from torch.distributed.tensor._ops.single_dim_strategy import _ShardingPlaceholder
from torch.utils._pytree import tree_map_only

from neaptide.axes import Axis, Flow
from tests.axes.cases import CASES, Case

aten = torch.ops.aten
PROPAGATOR = DTensor._op_dispatcher.sharding_propagator
Placements = tuple[Any, ...]


def meta(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)


def placement(entry: Any) -> Any:
    """An entry of an axis in their words."""
    return Shard(entry.dim) if isinstance(entry, Flow) else Partial(entry) if isinstance(entry, str) else Replicate()


def pure_rules(case: Case) -> list[tuple[Placements, Placements]]:
    """What their rules for one dim of a mesh say, as pairs of inputs and outputs."""
    args, kwargs = tree_map_only(torch.Tensor, meta, (case.args, case.kwargs))
    found = PROPAGATOR.op_single_dim_strategy_funcs[case.op](case.op, args, kwargs)
    made = len(case.whole)
    plain = [tuple(Shard(p.dim) if isinstance(p, _ShardingPlaceholder) else p for p in rule) for rule in found]
    return [(rule[made:], rule[:made]) for rule in plain]


def mesh_rules(case: Case, axis: Axis, mesh: DeviceMesh) -> list[tuple[Placements, Placements]]:
    """What their rules for a mesh make of inputs that are placed as an axis cuts them."""
    entries = iter(axis.inputs)

    def place(tensor: torch.Tensor) -> OpStrategy:
        spec = DTensorSpec(mesh, (placement(next(entries)),), tensor_meta=meta(tensor))
        return OpStrategy([OpSpec(spec)])

    def bundle(value: Any) -> Any:
        lists = isinstance(value, (list, tuple)) and value and all(isinstance(item, OpStrategy) for item in value)
        return TupleStrategy(tuple(value)) if lists else value

    args, kwargs = tree_map_only(torch.Tensor, place, (case.args, case.kwargs))
    schema = OpSchema(case.op, tuple(map(bundle, args)), {name: bundle(value) for name, value in kwargs.items()})
    strategy = PROPAGATOR.op_strategy_funcs[case.op](schema)
    rules = []
    for option in strategy.strategies if isinstance(strategy, OpStrategy) else ():
        made = (
            option.output_specs if isinstance(option.output_specs, (tuple, list)) else [option.output_specs] * len(case.whole)
        )
        given = option.input_specs if option.input_specs is not None else [option.output_spec] * len(axis.inputs)
        rules.append((tuple(s.placements[0] for s in given), tuple(s and s.placements[0] for s in made)))
    return rules


UNEVEN = "they cut into equal shards only; probing cuts anywhere"
UNCUT = "nothing is cut that comes in: they make the whole on every device"
POSITION = "parts run another call, which knows where they begin"
GROUPS = "parts run another call, with fewer groups"
CHANNELS = "theirs knows of convolutions what spatial parallelism needs, the batch and the columns"
STATISTICS = "theirs is written for training, where statistics are made from the batch"
SILENT: dict[Any, str] = {
    aten.tril.default: POSITION,
    aten.triu.default: POSITION,
    aten.reshape.default: UNEVEN,
    aten.view.default: UNEVEN,
    aten._unsafe_view.default: UNEVEN,
    aten.view_as_real.default: "theirs knows it as a split of the last dim",
    aten.addmm.default: "theirs does not look at beta = 0",
    aten.cat.default: "theirs does not pass over empty tensors",
    aten.convolution.default: CHANNELS,
    aten.grid_sampler_2d.default: "theirs knows the batch alone",
    aten.native_group_norm.default: GROUPS,
    aten._native_batch_norm_legit_no_training.default: STATISTICS,
    aten.native_batch_norm.default: STATISTICS,
}
"""Axes of which theirs says nothing: they would communicate. Probing confirms each of them."""

DIFFERENT: dict[Any, str] = {
    aten.new_zeros.default: UNCUT,
    aten.new_ones.default: UNCUT,
    aten.new_full.default: UNCUT,
    aten.new_empty.default: UNCUT,
    aten.expand.default: UNCUT,
    aten.repeat.default: UNCUT,
    aten._native_batch_norm_legit_no_training.default: "what is saved is empty, and cannot be sharded",
    aten.native_batch_norm.default: "what is saved is empty, and cannot be sharded",
    aten.sum.dim_IntList: "theirs takes an empty list of dims for none, where it means all",
    aten.any.dim: "the sum of truth values is their largest",
    aten.any.dims: "the sum of truth values is their largest",
    aten.any.default: "the sum of truth values is their largest",
    aten.all.dim: "the product of truth values is their smallest",
    aten.all.default: "the product of truth values is their smallest",
}
"""Axes whose results theirs combines otherwise. Probing confirms each of them."""

BEYOND: dict[Any, str] = {
    aten.bucketize.Tensor: "counts could be added over parts of the boundaries, which are few",
    aten.native_batch_norm.default: "in training it writes to the running statistics",
    aten.embedding_dense_backward.default: "theirs does not look at the scaling by frequency, which counts all indices",
    aten.index.Tensor: "sizes depend on what a mask holds",
}
"""Shardings of theirs that the table does not have."""


@pytest.fixture(scope="module")
def mesh() -> DeviceMesh:
    """Two devices that need not be there."""
    return DeviceMesh("cpu", torch.arange(2), _init_backend=False, _rank=0)


def verdict(case: Case, axis: Axis, mesh: DeviceMesh) -> str:
    """What theirs says of an axis: the same, nothing, or something else."""
    try:
        rules = pure_rules(case) if is_pure(case) else mesh_rules(case, axis, mesh)
    except RuntimeError as error:
        if "unevenly sharded" in str(error):
            return "silent"
        raise
    given, made = (tuple(map(placement, entries)) for entries in (axis.inputs, axis.outputs))
    theirs = [outputs for inputs, outputs in rules if inputs == given]
    if not theirs:
        return "silent"
    same = any(all(a is None or a == b for a, b in zip(outputs, made, strict=True)) for outputs in theirs)
    return "same" if same else "different"


def is_pure(case: Case) -> bool:
    return case.op in PROPAGATOR.op_single_dim_strategy_funcs


def asked() -> list[Case]:
    """The cases that theirs has a rule for, called in the way that it expects."""
    known = {*PROPAGATOR.op_single_dim_strategy_funcs, *PROPAGATOR.op_strategy_funcs}
    return [case for case in CASES if case.op in known and case.tensors and not {"self", "implicit"} & set(case.kwargs)]


def test_the_table_agrees_with_the_rules_for_sharded_tensors(mesh: DeviceMesh) -> None:
    found: dict[str, set[Any]] = {"same": set(), "silent": set(), "different": set()}
    for case in asked():
        for axis in case.axes:
            found[verdict(case, axis, mesh)].add(case.op)
    assert len(found["same"]) > 100
    assert found["silent"] == set(SILENT)
    assert found["different"] == set(DIFFERENT)


def test_the_table_has_every_sharding_that_the_pure_rules_allow() -> None:
    beyond = set()
    for case in filter(is_pure, asked()):
        ours = {tuple(map(placement, axis.inputs)) for axis in case.axes}
        for inputs, _ in pure_rules(case):
            plain = all(isinstance(p, (Shard, Replicate)) for p in inputs)
            cut = [t.shape[p.dim] for t, p in zip(case.tensors, inputs, strict=True) if isinstance(p, Shard)]
            if plain and cut and min(cut) > 1 and inputs not in ours:
                beyond.add(case.op)
    assert beyond == set(BEYOND)
