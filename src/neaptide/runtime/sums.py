"""Gradients of an earlier backward: whether a backward adds its own to them itself, as it makes them.

In: the parameters of a call whose backward begins. Out: their gradients, to be added to. Autograd would do the same, but only
once a backward has made all of its own. It is left to autograd where anything could see the difference: hooks, processes that
average gradients, and parameters that get gradients from elsewhere too (sums in another order round otherwise), which the first
backward shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, distributed
from torch.autograd.graph import get_gradient_edge

from neaptide._torch import will_be_run
from neaptide.graph import Graph


def of_parameters(graph: Graph) -> frozenset[int]:
    """The positions of the gradients of a graph that belong to parameters."""
    homes = (graph.values[v].storage for v in graph.inputs)
    owned = [home is not None and graph.storages[home].kind == "parameter" for home in homes]
    return frozenset(i for i, (v, own) in enumerate(zip(graph.gradients, owned, strict=False)) if own and v is not None)


def watch(parameters: Mapping[int, Tensor], gradients: Sequence[Tensor | None], tell: Callable[[bool], None]) -> None:
    """Tell of each gradient that is handed to autograd, once it gets there, whether it is all that the parameter gets."""
    for position, parameter in parameters.items():
        gradient = gradients[position]
        if gradient is None or not _is_run(parameter):
            continue
        if _is_looked_at(parameter):
            tell(False)
        else:
            _Watch(parameter, gradient, tell)


class _Watch:
    """Looks once at what comes to a parameter. While the gradient is held here, others are not added in its own memory."""

    def __init__(self, parameter: Tensor, expected: Tensor, tell: Callable[[bool], None]) -> None:
        self._expected: Tensor | None = expected
        self._tell = tell
        self._hook = parameter.register_hook(self)

    def __call__(self, gradient: Tensor) -> None:
        self._hook.remove()
        expected, self._expected = self._expected, None
        self._tell(expected is not None and expected.untyped_storage()._cdata == gradient.untyped_storage()._cdata)


def sums_of(parameters: Sequence[Tensor]) -> list[Tensor] | None:
    """The gradients that are there, one for each parameter; None if autograd is to add to them."""
    if torch.is_grad_enabled() or are_averaged():
        return None
    found: list[Tensor] = []
    for parameter in parameters:
        gradient = parameter.grad
        plain = gradient is not None and _are_alike(parameter, gradient) and not _is_looked_at(parameter)
        if gradient is None or not plain or not _is_run(parameter):
            return None
        found.append(gradient)
    return found


def are_averaged() -> bool:
    """Whether there may be other processes that hear of gradients from autograd."""
    return distributed.is_available() and distributed.is_initialized()


def _is_looked_at(parameter: Tensor) -> bool:
    """Whether someone is told of a parameter's gradients."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _is_run(parameter: Tensor) -> bool:
    """Whether autograd adds to a parameter's gradient in this backward."""
    if not parameter.is_leaf or not parameter.requires_grad:
        return False
    try:
        return will_be_run(get_gradient_edge(parameter).node)
    except RuntimeError:  # what was asked for are gradients of given tensors: none are added to
        return False


def _are_alike(parameter: Tensor, gradient: Tensor) -> bool:
    same = (parameter.shape, parameter.dtype, parameter.device) == (gradient.shape, gradient.dtype, gradient.device)
    return same and gradient.layout is torch.strided and not gradient.requires_grad
