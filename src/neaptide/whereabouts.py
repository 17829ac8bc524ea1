"""Where a run is: the module and the line of the user's code that an op belongs to, in the forward and the backward.

In: a model's modules, while it runs. Out: a module path and a source line for the op at hand. An op of the backward
belongs where the op of the forward was whose gradient it computes; autograd numbers both alike.
"""

from __future__ import annotations

import bisect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from neaptide._torch import autograd_sequence, current_autograd_node

OURS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)


class Whereabouts:
    """Follows which module is running, by hooks that are there only while `following` lasts."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._names: dict[nn.Module, str] = {}
        for module in modules:
            for name, inner in module.named_modules():
                self._names.setdefault(inner, name)
        self._stack: list[str] = [""]
        self._numbers: list[int] = []
        self._places: list[tuple[str, str]] = []
        self._foreign: dict[str, bool] = {}
        self.told: tuple[str, str] | None = None
        """The place of the op at hand, where whoever runs it knows it."""

    @contextmanager
    def following(self) -> Iterator[None]:
        def enter(module: nn.Module, args: Any) -> None:
            self._stack.append(self._names.get(module) or self._stack[-1])

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._stack.pop()

        hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def place(self) -> tuple[str, str]:
        """The module path and the source line of the op at hand."""
        if self.told is not None:
            return self.told
        node = current_autograd_node()
        if node is not None:
            at = bisect.bisect_right(self._numbers, node._sequence_nr()) - 1
            return self._places[at] if 0 <= at < len(self._places) - 1 else ("", "")
        here = (self._stack[-1], self.line())
        number = autograd_sequence() - 1  # an op's node is numbered before its kernel runs
        if not self._numbers or number > self._numbers[-1]:
            self._numbers.append(number)
            self._places.append(here)
        return here

    def line(self) -> str:
        """The innermost line that is neither torch's nor ours, as `file:line`."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            foreign = self._foreign.get(name)
            if foreign is None:
                foreign = self._foreign[name] = not name.startswith((*OURS, "<"))
            if foreign:
                return f"{name}:{frame.f_lineno}"
            frame = frame.f_back
        return ""
