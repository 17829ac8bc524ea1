"""What one op costs on a machine: its call, its arithmetic, the bytes it moves, the first touch of fresh memory.

In: an op and the specs of what it reads and makes. Out: a `Cost`, and seconds of it, done at once or in parts. A planned
program and a dry run of eager PyTorch are both priced here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from neaptide.allocator import KEPT_PAGES
from neaptide.hardware import Machine
from neaptide.probes import FAR, NEAR
from neaptide.workspaces import Spec

aten = torch.ops.aten
NOTHING = Spec((0,), (1,), torch.uint8)
CACHED = 2 << 20
"""What one call reads and writes beyond so many bytes has left the cache before, and leaves it again."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One op: seconds `fixed` for each call of it; and if it is done in parts, shared among them, seconds of arithmetic `work`,
    `moved` bytes, which take `longer` if they are not in the cache, `fresh` bytes of its results, and bytes of `scattered`
    matrices that it copies first."""

    fixed: float
    work: float
    moved: int = 0
    fresh: int = 0
    scattered: int = 0
    longer: float = 0.0


def price(
    target: Any,
    given: Sequence[Spec],
    results: Sequence[Spec],
    machine: Machine,
    whole: Sequence[int] = (),
    causal: bool = False,
) -> Cost:
    """The cost of an op that is no view; what it is given at some places is read `whole` by every part of it."""
    made = sum(r.nbytes for r in results)
    longer = max(machine.spill if target in PRODUCTS else machine.stream, machine.byte) - machine.byte
    moved = sum(min(g.nbytes, made) if target in LOOKED_UP else g.nbytes for g in given)
    if target in WITH_BIAS and len(given) > 2 and given[BIAS.get(target, 0)].nbytes:
        moved += made  # which the bias is copied to first, and the product added to then
    again = sum(given[i].nbytes for i in whole)
    if target in PRODUCTS:
        batches = sum(given[i].nbytes for i in whole if is_batch(target, len(given[i].shape)))
        read = fetching(again - batches, machine) + batches * machine.heads
    else:
        read = again * machine.byte + beyond(again) * longer
    turned = {i: readying(target, i, given, machine) for i in range(len(given))} if target in PRODUCTS | DENSE else {}
    every = sum(turned.pop(i, 0.0) + from_afar(scattered_bytes(target, given[i]), machine) for i in whole)
    scattered = sum(scattered_bytes(target, given[i]) for i in turned)
    work = _work(target, given, results, machine) * (machine.half if _is_half(given) else 1.0)
    work *= _causal(given) if causal else 1.0
    work += sum(turned.values())
    if results and _is_elementwise(target) and any(_is_across(spec, results[0]) for spec in given):
        work += _count(results[0]) * machine.strided
    return Cost(_call(target, machine) + read + every, work, max(moved - again, 0) + made, made, scattered, longer)


def _call(target: Any, machine: Machine) -> float:
    """Seconds to begin."""
    name = _name(target)
    return machine.calls.get("attention" if "attention" in name else name, machine.call)


def _name(target: Any) -> str:
    return target._schema.name.split("::")[-1] if isinstance(target, torch._ops.OpOverload) else ""


def _is_elementwise(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and (torch.Tag.pointwise in target.tags or target in COPIES)


def _is_across(spec: Spec, result: Spec) -> bool:
    """Whether a result that is written in the order of its memory reads an operand in another one.

    >>> rows, columns = Spec((8, 8), (8, 1), torch.float32), Spec((8, 8), (1, 8), torch.float32)
    >>> _is_across(rows, rows), _is_across(columns, rows), _is_across(Spec((8, 8), (1, 0), torch.float32), rows)
    (False, True, False)
    """
    dims = enumerate(zip(result.shape, result.stride, strict=False))
    inner = next((d for d, (n, step) in dims if n != 1 and step == 1), None)
    at = -1 if inner is None else inner - len(result.shape) + len(spec.shape)
    return at >= 0 and bool(spec.stride) and spec.shape[at] != 1 and spec.stride[at] not in (0, 1)


def _causal(given: Sequence[Spec]) -> float:
    """The share of scores that causal attention makes: half of them, and what blocks of keys have beyond."""
    keys = max(spec.shape[-2] for spec in given[:3] if len(spec.shape) > 1)
    return min(0.5 + KEYS / 2 / max(keys, 1), 1.0)


def _is_half(given: Sequence[Spec]) -> bool:
    return any(spec.dtype in (torch.bfloat16, torch.float16) for spec in given)


def readying(target: Any, position: int, given: Sequence[Spec], machine: Machine) -> float:
    """Seconds in which an op copies one of its operands first: a norm what it reads, where that is not contiguous; a product a
    matrix of which neither rows nor columns are dense, or a batch of matrices, or of rows, that are not evenly apart."""
    spec = given[position]
    if len(spec.shape) < 2 or not spec.stride:
        return 0.0
    if target in DENSE:
        copied = position == 0 and not (spec.stride[-1] == 1 and _is_even(spec, 1))
    elif target is aten.linear.default or (target is aten.matmul.default and len(given) > 1 and len(given[1].shape) == 2):
        copied = position == 0 and not _is_even(spec, 1)
    else:
        copied = target is aten.matmul.default and not _is_even(spec, 2)
    if copied:
        dense = spec.stride[-1] == 1
        return spec.nbytes * (machine.byte + machine.stream) if dense else _count(spec) * machine.scattered * TURNED
    return _count(spec) * machine.scattered if spec.is_scattered else 0.0


def is_batch(target: Any, dims: int) -> bool:
    """Whether an operand of a product with so many dims is a batch of matrices."""
    return dims > 2 and target in BATCHED


def fetching(again: int, machine: Machine) -> float:
    """Seconds to get ready what every part is multiplied by, of so many bytes: the more, the less of it stays in the cache."""
    away = min(max((again - NEAR) / (FAR - NEAR), 0.0), 1.0)
    return again * (machine.near + (machine.fetch - machine.near) * away)


def scattered_bytes(target: Any, spec: Spec) -> int:
    """Bytes of matrices that a product copies one by one, of which neither rows nor columns are dense."""
    return spec.nbytes if target in PRODUCTS and len(spec.shape) > 1 and spec.stride and spec.is_scattered else 0


def from_afar(scattered: float, machine: Machine) -> float:
    """What copying scattered matrices takes longer where they are too many for the cache: each has a part of every line."""
    return beyond(scattered) * machine.far


def beyond(moved: float) -> float:
    """How many of the bytes that a call moves are not in the cache."""
    return max(moved - CACHED, 0)


TURNED = 1 / 3
"""What copying a number of a matrix takes whose columns are dense, of one that is dense in neither way."""


def _is_even(spec: Spec, inner: int) -> bool:
    """Whether all dims but the inner ones can be seen as one."""
    outer = [(n, step) for n, step in zip(spec.shape[:-inner], spec.stride[:-inner], strict=True) if n != 1]
    return all(step == n * below for (_, step), (n, below) in pairwise(outer))


def is_causal(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is of an attention that looks at half of the keys only."""
    if not isinstance(target, torch._ops.OpOverload) or "attention" not in target._schema.name:
        return False
    names = [argument.name for argument in target._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}.get("is_causal") is True


def whole(price: Cost, machine: Machine, fresh: bool = True) -> float:
    """An op done at once."""
    return in_parts(price if fresh else replace(price, fresh=0), 1, 1.0, machine)


def in_parts(price: Cost, rounds: int, share: float, machine: Machine) -> float:
    """An op done in so many rounds."""
    far = beyond(price.moved * share)
    touched = price.fresh * machine.touch if price.fresh * share > KEPT_PAGES else 0.0
    every = price.fixed + far * price.longer + from_afar(price.scattered * share, machine)
    return rounds * every + price.work + price.moved * machine.byte + touched


PRODUCTS = frozenset(
    {
        aten.mm.default,
        aten.bmm.default,
        aten.matmul.default,
        aten.addmm.default,
        aten.baddbmm.default,
        aten.linear.default,
        aten.convolution.default,
    }
)
"""Ops that multiply matrices and do nothing else with them."""
BATCHED = frozenset({aten.bmm.default, aten.baddbmm.default, aten.matmul.default})
COPIES = frozenset({aten.clone.default, aten.copy.default, aten._to_copy.default})
WITH_BIAS = frozenset({aten.addmm.default, aten.baddbmm.default, aten.linear.default})
BIAS = {aten.linear.default: 2}
"""Where a bias stands that does not come first."""
KEYS = 512
"""Keys that attention looks at together, on the CPU."""
DENSE = frozenset({aten.native_layer_norm.default})
"""Ops that copy what they read, where it is not contiguous."""
LOOKED_UP = frozenset({aten.embedding.default, aten.index.Tensor, aten.gather.default, aten.index_select.default})
"""Ops that read no more of their operands than they return."""
FUNCTIONS = frozenset({"exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "gelu", "silu", "sigmoid", "pow", "softplus"})
"""Elementwise ops whose arithmetic costs more than their bytes."""


def _work(target: Any, args: Sequence[Spec], results: Sequence[Spec], machine: Machine) -> float:
    """Seconds of arithmetic."""
    if not isinstance(target, torch._ops.OpOverload) or not results:
        return 0.0
    name, elements = _name(target), _count(results[0])
    if name in ("mm", "bmm", "matmul", "addmm", "baddbmm", "linear"):
        left, right = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
        rate = machine.batched if len(right.shape) > 2 else machine.product
        return 2.0 * elements * left.shape[-1] * rate
    if name == "convolution":
        weight = args[1]
        return 2.0 * elements * (_count(weight) // max(weight.shape[0], 1)) * machine.convolution
    if name == "convolution_backward":
        grad, _, weight = args[:3]
        return 4.0 * _count(grad) * (_count(weight) // max(weight.shape[0], 1)) * machine.convolution
    if "attention" in name:
        back = name.endswith("_backward")
        q, k = args[1:3] if back else args[:2]
        pairs = _count(q) // q.shape[-1] * k.shape[-2]
        score = max(4.0 * q.shape[-1] * machine.attention + machine.score, machine.slim)
        masked = machine.masked if not back and len(args) > 3 else 0.0
        return pairs * (2.5 * score if back else score + masked)
    if torch.Tag.nondeterministic_seeded in target.tags:
        return elements * machine.random
    if name in machine.each:
        return max(elements, _count(args[0]) if args else 0) * machine.each[name]
    if "softmax" in name:
        return elements * machine.softmax
    if name.removesuffix("_backward") in FUNCTIONS:
        return elements * machine.function
    if "norm" in name:
        return elements * machine.softmax * 0.5
    return 0.0


def _count(spec: Spec) -> int:
    total = 1
    for size in spec.shape:
        total *= size
    return total
