"""What a forward leaves for its backward, whichever of the programs of a graph it runs.

In: a joint graph and its programs. Out: the slots that AOTAutograd carries across the turn, the inputs that have to be copied
until a step has shown that they stay, and the store of what is sent away.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from neaptide.away import Store
from neaptide.emit import Slots
from neaptide.graph import Graph
from neaptide.program import Program

STORE = "neaptide_store"


def new_store(owner: Any) -> Store:
    """A store for what a call sends away. It lives as long as its owner: the context that autograd keeps for the backward."""
    store = Store()
    setattr(owner, STORE, store)
    return store


def superset(graph: Graph, programs: Sequence[Program], candidates: Collection[int]) -> Slots:
    """The tensors, the sizes and the random ops that any of the programs carries across the turn, and `candidates`.

    Tensors that autograd is not to check for changes stand last, as AOTAutograd wants them.
    """
    saved = dict.fromkeys([*(v for p in programs for v in p.saved), *candidates])
    tensors = [v for v in saved if isinstance(graph.values[v].fake, torch.Tensor)]
    tensors.sort(key=lambda v: bool(graph.holders[v].meta.get("saved_tensor_with_no_vc_check")))
    sizes = (v for v in saved if graph.values[v].storage is None)
    marks = dict.fromkeys(m for p in programs for m in p.marks)
    return Slots(tuple(tensors), tuple(graph.values[v].fake.dim() for v in tensors), tuple(marks), tuple(sizes))


def only_recomputed(graph: Graph, programs: Sequence[Program]) -> frozenset[int]:
    """The inputs that a backward reads only in order to recompute: eager does not save them, so they may be changed.

    They are copied until one whole step has shown that they stay as they are. Parameters are taken to stay.
    """
    extra = {v for p in programs[1:] for v in p.saved} - set(programs[0].saved) - graph.mutated
    storages = {v: graph.values[v].storage for v in extra if v in graph.inputs}
    return frozenset(v for v, s in storages.items() if s is not None and graph.storages[s].kind in ("input", "buffer"))
