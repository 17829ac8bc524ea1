"""A batch that does not fit, in smaller ones: the largest that does, and a call that runs several of them as one.

In: the arguments of a call. Out: a batch size; or the result of the whole call. Each small batch runs forward and backward
before the next begins; its gradients, scaled as the loss's reduction asks, wait and flow on when the user's backward comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from neaptide._torch import FakeTensor
from neaptide.dryrun import loss_of
from neaptide.eager.choose import Weighed
from neaptide.eager.figures import figures_of
from neaptide.eager.probe import probe
from neaptide.errors import BudgetError, InputError

if TYPE_CHECKING:
    from neaptide.eager.adapt import Adapter

MIXING = (nn.modules.batchnorm._BatchNorm,)
IGNORED = -100


def batch_of(inputs: Any) -> int:
    """The size of a batch: the first dim that most tensors share."""
    sizes = [t.shape[0] for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor) and t.dim()]
    return max(set(sizes), key=sizes.count) if sizes else 0


def rows(inputs: Any, start: int, stop: int, batch: int) -> Any:
    """Some rows of everything that has a row for each sample."""

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[start:stop] if tensor.dim() and tensor.shape[0] == batch else tensor

    return pytree.tree_map_only(torch.Tensor, cut, inputs)


def largest_batch(adapter: Adapter, room: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The largest batch of these samples that fits; None where not even one does, or nobody knows."""
    batch = batch_of((args, kwargs))
    low, high = 0, batch
    try:
        while high - low > 1:
            middle = (low + high) // 2
            inputs = rows((args, kwargs), 0, middle, batch)
            record = probe(adapter, inputs, adapter.planner.loss)
            figures = figures_of(record, adapter.planner.ledger.accumulates)
            fits = Weighed(figures, adapter.planner.rates).lowest().level <= room
            low, high = (middle, high) if fits else (low, middle)
    except Exception:  # the refusal stands without it
        return None
    return low or None


def run_split(adapter: Adapter, room: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call of an adapted model in smaller batches that fit."""
    check_splits(adapter.model)
    taken = 2 * sum(p.nbytes for p in adapter.model.parameters() if p.requires_grad)
    size = largest_batch(adapter, room - taken, args, kwargs)
    if size is None:
        raise BudgetError("not even one sample fits the budget", need=0, limit=adapter.budget.limit or 0, smallest=0)
    adapter.stats.splits += 1
    split, adapter.split, adapter.planner.extra = adapter.split, False, taken
    try:
        return run_in_parts(adapter.model, adapter.model, size, (args, kwargs), split == "sum")
    finally:
        adapter.split, adapter.planner.extra = split, 0


def check_splits(model: nn.Module) -> None:
    """Refuse a model that mixes the samples of a batch."""
    mixing = next((name for name, m in model.named_modules() if isinstance(m, MIXING)), None)
    if mixing is not None:
        raise InputError(f"a batch cannot be split: {mixing} normalises over its samples")


def run_in_parts(
    model: nn.Module, call: Callable[..., Any], size: int, inputs: tuple[tuple[Any, ...], dict[str, Any]], is_sum: bool
) -> Any:
    """Run a call in batches of `size`; its result has the loss of the whole, and all other results joined, detached."""
    batch = batch_of(inputs)
    own = [p for p in model.parameters() if p.requires_grad]
    sums: list[torch.Tensor | None] = [None] * len(own)
    outputs, losses = [], []
    weights = [1.0] * -(-batch // size) if is_sum else _weights(model, inputs, size, batch)
    for start, weight in zip(range(0, batch, size), weights, strict=True):
        args, kwargs = rows(inputs, start, start + size, batch)
        output = call(*args, **kwargs)
        loss = _own_loss(output) * weight
        made = torch.autograd.grad(loss, own, allow_unused=True)
        sums = [g if s is None else (s if g is None else s.add_(g)) for s, g in zip(sums, made, strict=True)]
        losses.append(loss.detach())
        outputs.append(pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, output))
        del output, loss, made
    whole = _Whole.apply(torch.stack(losses).sum(), sums, *own)
    return _joined(outputs, whole)


def _own_loss(output: Any) -> torch.Tensor:
    found = output if isinstance(output, torch.Tensor) and output.dim() == 0 else None
    if found is None:
        own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        found = own if isinstance(own, torch.Tensor) else None
    if found is None:
        raise InputError("a batch can be split only where the model returns its loss, alone or as `loss`")
    return loss_of(found if found.dim() == 0 else output)


def _weights(model: nn.Module, inputs: Any, size: int, batch: int) -> Sequence[float]:
    """What each small batch's mean counts in the whole: its share of labels, or of samples where there are none to count."""
    starts = range(0, batch, size)
    labels = inputs[1].get("labels")
    is_real = isinstance(labels, torch.Tensor) and not isinstance(labels, FakeTensor)
    if is_real and labels.dtype is torch.int64 and labels.dim():
        shifted = "CausalLM" in type(model).__name__ or "LMHead" in type(model).__name__
        counted = (labels[..., 1:] if shifted and labels.dim() > 1 else labels) != IGNORED
        total = max(int(counted.sum()), 1)
        return [int(counted[start : start + size].sum()) / total for start in starts]
    return [min(size, batch - start) / batch for start in starts]


def _joined(outputs: Sequence[Any], loss: torch.Tensor) -> Any:
    if isinstance(outputs[0], torch.Tensor):
        return loss
    leaves = [pytree.tree_flatten(output) for output in outputs]
    joined = []
    for parts in zip(*(found for found, _ in leaves), strict=True):
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        joined.append(torch.cat(tensors) if tensors and tensors[0].dim() else parts[0])
    result = pytree.tree_unflatten(joined, leaves[0][1])
    result["loss"] = loss
    return result


class _Whole(torch.autograd.Function):
    """The loss of all small batches; its backward hands on the gradients that they made."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, gradients: Any, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        made, ctx.gradients = ctx.gradients, None
        return (None, None, *(None if g is None else g.mul_(gradient) for g in made))
