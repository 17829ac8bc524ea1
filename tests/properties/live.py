"""A brute-force count of what is alive while code runs: the oracle of the timeline."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neaptide.allocator import allocated


class Live(TorchDispatchMode):
    """After each op, the bytes of all storages that any op has returned, or that were there before, and still live."""

    def __init__(self, there: list[Any]) -> None:
        super().__init__()
        self.bytes: list[int] = []
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self._see(there)

    def _see(self, tree: Any) -> None:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self._known[storage._cdata] = (StorageWeakRef(storage), allocated(storage.nbytes()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._known = {key: held for key, held in self._known.items() if not held[0].expired()}
        self._see(out)
        self.bytes.append(sum(size for _, size in self._known.values()))
        return out
