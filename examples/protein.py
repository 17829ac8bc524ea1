"""A stack of pair blocks in the manner of AlphaFold's Evoformer, run inside a quarter of the memory it would take.

A protein of N residues has a representation of every pair, [batch, N, N, channels], and triangle attention has scores for
every triple: N x N x N for each head. That is what limits the length.

    MALLOC_MMAP_THRESHOLD_=65536 python examples/protein.py [--length 256] [--budget 200MiB]
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import neaptide
from neaptide.budget import parse_budget
from neaptide.report import format_bytes

console = Console()
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def written_out(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention of [batch, rows, heads, length, width] along the length; the bias is shared by all rows."""
    scores = query @ key.transpose(-1, -2) + bias
    return torch.softmax(scores, dim=-1) @ value


def fused(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """The same by PyTorch's own kernel. It takes one batch dim, and would copy a bias that is not contiguous for every row."""
    shape = query.shape
    bias = bias.contiguous().expand(*shape[:4], shape[3])
    query, key, value, bias = (part.flatten(0, 1) for part in (query, key, value, bias))
    return nn.functional.scaled_dot_product_attention(query, key, value, bias, scale=1.0).unflatten(0, shape[:2])


class GatedAttention(nn.Module):
    """Attention within each row of the pairs, with one bias for all rows, and a gate on what comes out."""

    def __init__(self, channels: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.query, self.key, self.value = (nn.Linear(channels, channels, bias=False) for _ in range(3))
        self.gate, self.out = nn.Linear(channels, channels), nn.Linear(channels, channels)

    def forward(self, pair: Tensor, bias: Tensor) -> Tensor:
        scale = (pair.shape[-1] // self.heads) ** -0.5
        query, key, value = (self._split(part(pair)) for part in (self.query, self.key, self.value))
        mixed = self.attend(query * scale, key, value, bias)
        return self.out(torch.sigmoid(self.gate(pair)) * mixed.transpose(-2, -3).flatten(-2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)


class TriangleAttention(nn.Module):
    """Pair (i, j) attends to the pairs (i, k) that start at the same node, or to those (k, j) that end at it."""

    def __init__(self, channels: int, heads: int, ending: bool, attend: Attend) -> None:
        super().__init__()
        self.ending = ending
        self.norm, self.bias = nn.LayerNorm(channels), nn.Linear(channels, heads, bias=False)
        self.attention = GatedAttention(channels, heads, attend)

    def forward(self, pair: Tensor) -> Tensor:
        pair = self.norm(pair.transpose(1, 2) if self.ending else pair)
        bias = self.bias(pair).permute(0, 3, 1, 2).unsqueeze(1)
        mixed = self.attention(pair, bias)
        return mixed.transpose(1, 2) if self.ending else mixed


class TriangleMultiplication(nn.Module):
    """Pair (i, j) from the products over k of the two other edges, outgoing (ik, jk) or incoming (ki, kj)."""

    def __init__(self, channels: int, incoming: bool) -> None:
        super().__init__()
        self.equation = "bkic,bkjc->bijc" if incoming else "bikc,bjkc->bijc"
        self.norm, self.norm_out = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.left, self.right, self.out = (nn.Linear(channels, channels) for _ in range(3))
        self.gate_left, self.gate_right, self.gate_out = (nn.Linear(channels, channels) for _ in range(3))

    def forward(self, pair: Tensor) -> Tensor:
        pair = self.norm(pair)
        left = torch.sigmoid(self.gate_left(pair)) * self.left(pair)
        right = torch.sigmoid(self.gate_right(pair)) * self.right(pair)
        mixed = torch.einsum(self.equation, left, right)
        return torch.sigmoid(self.gate_out(pair)) * self.out(self.norm_out(mixed))


class Transition(nn.Module):
    """Every pair by itself: four times as wide and back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.widen, self.narrow = (
            nn.LayerNorm(channels),
            nn.Linear(channels, 4 * channels),
            nn.Linear(4 * channels, channels),
        )

    def forward(self, pair: Tensor) -> Tensor:
        return self.narrow(torch.relu(self.widen(self.norm(pair))))


class PairBlock(nn.Module):
    """The pair half of an Evoformer block."""

    def __init__(self, channels: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.outgoing = TriangleMultiplication(channels, incoming=False)
        self.incoming = TriangleMultiplication(channels, incoming=True)
        self.starting = TriangleAttention(channels, heads, ending=False, attend=attend)
        self.ending = TriangleAttention(channels, heads, ending=True, attend=attend)
        self.transition = Transition(channels)

    def forward(self, pair: Tensor) -> Tensor:
        for part in (self.outgoing, self.incoming, self.starting, self.ending, self.transition):
            pair = pair + part(pair)
        return pair


class PairStack(nn.Module):
    """Blocks of pair updates; AlphaFold has 48 of 128 channels and 4 heads."""

    def __init__(self, blocks: int = 2, channels: int = 128, heads: int = 4, attend: Attend = written_out) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(PairBlock(channels, heads, attend) for _ in range(blocks))

    def forward(self, pair: Tensor) -> Tensor:
        for block in self.blocks:
            pair = block(pair)
        return pair


def pairs(length: int, channels: int = 128) -> Tensor:
    return torch.randn(1, length, length, channels)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """A spinner on a terminal, a line elsewhere."""
    if not console.is_terminal:
        console.print(f"{what} ...")
    with console.status(what):
        yield


def longest(fits: Callable[[int], bool], low: int, high: int, step: int) -> int:
    """The largest of low, low + step, ... up to high that fits; `low` is taken to."""
    first, last = 0, (high - low) // step
    while first < last:
        middle = (first + last + 1) // 2
        first, last = (middle, last) if fits(low + middle * step) else (first, middle - 1)
    return low + first * step


def main(
    length: Annotated[int, typer.Option(help="Residues.")] = 256,
    budget: Annotated[str, typer.Option(help="Such as 200MiB; a quarter of the plain peak if not given.")] = "",
    blocks: Annotated[int, typer.Option(help="Pair blocks; AlphaFold has 48.")] = 2,
    explain: Annotated[bool, typer.Option(help="Print what runs in parts, and who holds the peak.")] = False,
) -> None:
    """Predict and measure a pair stack, plain and inside a budget; then the lengths that fit."""
    torch.manual_seed(0)
    model, pair = PairStack(blocks).eval(), pairs(length)
    with doing("predicting plain PyTorch: a dry run, nothing is executed"):
        plain = neaptide.estimate(model, pair, train=False).peak
    limit = parse_budget(budget or plain // 4).limit or plain // 4

    def plain_fits(n: int) -> bool:
        return neaptide.estimate(model, pairs(n), train=False).peak <= limit

    def ours_fits(n: int) -> bool:
        try:
            return neaptide.plan(model, pairs(n), budget=limit).peak <= limit
        except neaptide.BudgetError:
            return False

    with torch.no_grad():
        with doing("measuring plain PyTorch"):
            model(pair)
            before = neaptide.measure(model, pair)
        with doing(f"capturing, planning and measuring inside {format_bytes(limit)}"):
            handle = neaptide.compile(model, budget=limit)
            handle(pair)
            after = neaptide.measure(handle, pair)
            plan = handle.plan
            handle.release()
    with doing("which lengths fit: dry runs, nothing is executed"):
        lengths = longest(plain_fits, 0, length, 16), longest(ours_fits, length, 2 * length, length // 4)

    table = Table(title=f"{blocks} pair blocks, {length} residues, budget {format_bytes(limit)}")
    for heading in ("", "predicted", "measured", "seconds", "longest that fits"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, predicted, taken, fits in (
        ("plain PyTorch", plain, before, lengths[0]),
        ("neaptide.compile", plan.peak, after, lengths[1]),
    ):
        row = format_bytes(predicted), format_bytes(taken.peak), f"{taken.seconds:.1f}", f"{fits} residues"
        table.add_row(name, *row)
    console.print(table)
    difference = (after.value - before.value).abs().max().item()
    same = torch.allclose(after.value, before.value, rtol=1e-4, atol=1e-4)
    console.print(f"results {'agree' if same else 'DIFFER'}: largest difference {difference:.1e}", highlight=False)
    console.print(plan.explain() if explain else str(plan), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    try:
        typer.run(main)
    except neaptide.NeaptideError as error:
        raise SystemExit(f"neaptide: {error}") from None
