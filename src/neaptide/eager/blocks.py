"""The blocks of a model, and a switch in each of them.

In: a module, and maybe names or types of blocks. Out: `Unit`s, each a block with its parts. A block is a member, with
modules and parameters of its own, of an outermost `ModuleList` or `Sequential`; its parts (attention, MLP) are the modules
of that kind right inside it. The switch replaces `forward` on the instance, or the compiled call where there is one: class,
module tree, `state_dict`, `repr`, signature, hooks and copies are as they were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from torch import nn

from neaptide.errors import InputError

CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
Call = Callable[..., Any]


@dataclass(eq=False, slots=True)
class Unit:
    """A module that can be told how much to keep, and those right inside it that can be told apart."""

    name: str
    module: nn.Module
    parts: tuple[Unit, ...] = ()
    alike: int = 0
    """Units with the same number are the same up to their values."""
    plain: Call = field(default=lambda *args, **kwargs: None, repr=False)
    """Its own call, once there is a switch in front of it."""

    @property
    def is_compiled(self) -> bool:
        """Whether it was compiled by itself: then nothing inside it can be switched."""
        return self.module._compiled_call_impl is not None or hasattr(self.module, "_orig_mod")


def find_blocks(model: nn.Module, blocks: Sequence[str | type[nn.Module]] | None = None) -> tuple[Unit, ...]:
    """The blocks of a model: those that were asked for by name (or pattern) or type, else the members of its outermost lists.

    >>> layers = [nn.TransformerEncoderLayer(8, 2, 16) for _ in range(2)]
    >>> [(unit.name, [part.name for part in unit.parts]) for unit in find_blocks(nn.Sequential(*layers))]
    [('0', ['self_attn']), ('1', ['self_attn'])]
    """
    if blocks is None:
        found = dict(_members(model, ""))
    else:
        found = {name: module for name, module in model.named_modules() if name and _is_asked_for(name, module, blocks)}
        found = {name: module for name, module in found.items() if not any(name.startswith(f"{outer}.") for outer in found)}
    if not found:
        raise InputError(
            f"no blocks were found in {type(model).__name__}: name them, such as blocks=['encoder.layer.*'] or blocks=[Block]"
        )
    units = [Unit(name, module) for name, module in found.items()]
    numbers: dict[Any, int] = {}
    for unit in units:
        if not unit.is_compiled:
            unit.parts = tuple(Unit(name, module) for name, module in _parts(unit.module))
        unit.alike = numbers.setdefault(_likeness(unit.module), len(numbers))
    return tuple(units)


def _is_asked_for(name: str, module: nn.Module, blocks: Sequence[str | type[nn.Module]]) -> bool:
    return any(fnmatch(name, one) if isinstance(one, str) else isinstance(module, one) for one in blocks)


def _is_block(module: nn.Module) -> bool:
    return any(True for _ in module.children()) and any(True for _ in module.parameters())


def _members(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Blocks inside a module: a list's members, where a list among them is looked into; else those of the modules inside."""
    inner = [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]
    if isinstance(module, CONTAINERS):
        blocks = [(name, child) for name, child in inner if _is_block(child)]
        if len(blocks) >= (2 if isinstance(module, nn.Sequential) else 1):
            for name, child in blocks:
                nested = list(_members(child, name)) if isinstance(child, CONTAINERS) else []
                yield from nested or [(name, child)]
            return
    for name, child in inner:
        yield from _members(child, name)


def _parts(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        whole = f"{path}.{name}" if path else name
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _parts(child, whole)
        elif _is_block(child):
            yield whole, child


def _likeness(module: nn.Module) -> Any:
    """What two blocks share that take the same memory: their kind, weights and settings, but not which of many they are."""
    told: list[Any] = [repr(module)]
    for name, inner in module.named_modules():
        for key, value in vars(inner).items():
            if isinstance(value, (bool, int, float, str)) and not key.endswith(("idx", "id", "index")):
                told.append((name, key, value))
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        told.append((name, tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad))
    return tuple(told)


class Switch:
    """Stands in front of a module's own call."""

    def __init__(self, unit: Unit, run: Call) -> None:
        module = unit.module
        self._module, self._run, self._unit = module, run, unit
        self._compiled = module._compiled_call_impl is not None
        self._had = "forward" in vars(module)
        self._before: Any = module._compiled_call_impl if self._compiled else module.forward
        unit.plain = self._before
        functools.update_wrapper(self, self._before, updated=())
        if self._compiled:
            module._compiled_call_impl = self
        else:
            module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self._unit, args, kwargs)

    def release(self) -> None:
        """Put back what was there, unless someone has put something else there since."""
        module = self._module
        if self._compiled and module._compiled_call_impl is self:
            module._compiled_call_impl = self._before
        elif vars(module).get("forward") is self:
            if self._had:
                module.forward = self._before
            else:
                del module.forward

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of a model has the calls of a plain one."""
        return getattr(memo.get(id(self._module), self._module), "forward", None)

    def __reduce__(self) -> Any:
        return getattr, (self._module, "forward")
