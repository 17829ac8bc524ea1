"""Values that are known without running the model, so that data-dependent code can be followed on fake tensors.

Small integer inputs and buffers have values, and so has what follows from them and from constants: lengths, positions,
padding masks, an optimizer's step count. Ops on those are computed beside the fake ones. A question about any other
value is answered by an assumption that is noted, or refused with a `CaptureError` where sizes may hang on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neaptide._torch import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from neaptide.errors import CaptureError
from neaptide.twins import KNOWN_BYTES

aten = torch.ops.aten

UNINITIALISED = {aten.empty.memory_format, aten.empty_strided.default, aten.new_empty.default, aten.empty_like.default}


class Values:
    """Runs ops on fake tensors and keeps the values that are known beside them, in an attribute of each.

    The attribute holds the real tensor and a cell that all its views share: a write of something unknown into one
    of them makes all of them unknown.
    """

    def __init__(self, here: Callable[[], str]) -> None:
        self.notes: dict[str, None] = {}
        self._here = here
        self._hidden = 0

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = [leaf for leaf in pytree.arg_tree_leaves(*args, **kwargs) if isinstance(leaf, torch.Tensor)]
        known = all(value_of(tensor) is not None for tensor in tensors)
        if func is aten._local_scalar_dense.default:
            return self._item(args[0])
        if func is aten.index.Tensor and not known:
            args = (args[0], [part for index in args[1] for part in self._spread(index)])
        try:
            out = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException) as error:
            out = self._dependent(func, args, kwargs, known, error)
        except UnsupportedOperatorException as error:
            raise CaptureError(
                f"{func} has no fake kernel, so that it can't be estimated (at {self._here()}): "
                f"register one with torch.library.register_fake, or measure a real step"
            ) from error
        if known:
            self._follow(func, args, kwargs, tensors, out)
        elif func._schema.is_mutable:
            _forget(func, args, kwargs)
        return out

    def take_hidden(self) -> int:
        """Bytes that the last op took for positions, beside what the table of workspaces knows."""
        hidden, self._hidden = self._hidden, 0
        return hidden

    def _item(self, tensor: torch.Tensor) -> Any:
        value = value_of(tensor)
        if value is not None:
            with unset_fake_temporarily():
                return value.item()
        if tensor.dtype.is_floating_point or tensor.dtype is torch.bool:
            answer = False if tensor.dtype is torch.bool else 0.0
            self.notes[f"{self._here()} asks for a value that only a real run knows: taken as {answer}"] = None
            return answer
        raise CaptureError(
            f"{self._here()} asks for an integer that only a real run knows, and sizes may hang on it: measure a real "
            f"step instead, or pass that number as an int"
        )

    def _spread(self, index: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """A mask as an index becomes positions, as the real kernel makes them."""
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            return (index,)
        positions = self._nonzero(index)
        self._hidden += positions.nbytes
        return positions.unbind(1)

    def _nonzero(self, mask: torch.Tensor) -> torch.Tensor:
        value = value_of(mask)
        if value is not None:
            with unset_fake_temporarily():
                count = int(torch.count_nonzero(value))
        else:
            count = mask.numel()
            self.notes[f"{self._here()} picks elements by a mask that only a real run knows: all were taken"] = None
        return torch.empty((mask.dim(), count), dtype=torch.int64, device=mask.device).t()

    def _dependent(self, func: Any, args: Any, kwargs: Any, known: bool, error: Exception) -> Any:
        """An op whose output's size depends on values: as they are where known, at the most where that is bounded."""
        if known:
            with unset_fake_temporarily():
                real = func(*_reals(args), **_reals(kwargs))
            return pytree.tree_map_only(torch.Tensor, lambda t: args[0].new_empty(t.shape, dtype=t.dtype), real)
        if func is aten.nonzero.default:
            return self._nonzero(args[0])
        if func is aten.masked_select.default:
            return args[0].new_empty(self._nonzero(torch.broadcast_tensors(args[1], args[0])[0]).shape[0])
        if func in (aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default):
            self.notes[f"{self._here()} drops duplicates that only a real run knows: none were dropped"] = None
            whole = args[0].reshape(-1) if func is aten._unique2.default else args[0]
            positions = torch.empty_like(whole, dtype=torch.int64)
            return whole.clone(), positions, positions.clone()
        raise CaptureError(
            f"the size of what {func} returns at {self._here()} depends on values that only a real run knows: "
            f"measure a real step instead"
        ) from error

    def _follow(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor], out: Any) -> None:
        """Compute the op on the known values too, where the result is small and not random."""
        results = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        small = all(t.numel() * t.element_size() <= KNOWN_BYTES for t in results)
        if not small or func in UNINITIALISED or torch.Tag.nondeterministic_seeded in func.tags:
            if func._schema.is_mutable:
                _forget(func, args, kwargs)
            return
        try:
            with unset_fake_temporarily(), torch.no_grad():
                named = dict(_reals(kwargs))
                if named.get("device") is not None:
                    named["device"] = torch.device("cpu")
                reals = pytree.tree_leaves(func(*_reals(args), **named))
        except Exception:  # the values are a courtesy: without them the op is merely unknown
            return
        shares = func.is_view or func._schema.is_mutable
        cell = _cell(tensors[0]) if shares and tensors else None
        for fake, real in zip(pytree.tree_leaves(out), reals, strict=False):
            if isinstance(fake, torch.Tensor) and isinstance(real, torch.Tensor) and fake.shape == real.shape:
                fake._known = (real, cell or [True])  # type: ignore[attr-defined]


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The real tensor behind a fake one, if its values are known; a small real tensor is known by itself."""
    known = getattr(tensor, "_known", None)
    if known is not None:
        return known[0] if known[1][0] else None
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
    if plain and tensor.numel() * tensor.element_size() <= KNOWN_BYTES:
        with unset_fake_temporarily():
            return tensor.detach().clone()
    return None


def _cell(tensor: torch.Tensor) -> list[bool] | None:
    known = getattr(tensor, "_known", None)
    return known[1] if known is not None else None


def _reals(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, value_of, tree)


def _forget(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What an op has written something unknown into is unknown from now on, and so are its views."""
    for position, declared in enumerate(func._schema.arguments):
        if declared.alias_info is not None and declared.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(declared.name)
            for tensor in given if isinstance(given, (list, tuple)) else (given,):
                cell = _cell(tensor) if isinstance(tensor, torch.Tensor) else None
                if cell is not None:
                    cell[0] = False
