"""A plain function inside a budget: the nearest of many points for each of many others, whose distances are never all there.

MALLOC_MMAP_THRESHOLD_=65536 python examples/function.py [--points 8000] [--share 0.1]
"""

from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

import neaptide
from neaptide.report import format_bytes

console = Console()


def nearest(queries: torch.Tensor, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each query the distance of the nearest point, and which one it is."""
    squares = queries.square().sum(-1, keepdim=True) + points.square().sum(-1) - 2 * queries @ points.t()
    found = squares.min(-1)
    return found.values.clamp(min=0).sqrt(), found.indices


def main(
    points: Annotated[int, typer.Option(help="How many, on each side.")] = 8000,
    share: Annotated[float, typer.Option(help="The budget, of what plain PyTorch takes.")] = 0.1,
) -> None:
    """A table: plain PyTorch, and the same inside the budget."""
    torch.manual_seed(0)
    left, right = torch.randn(points, 32), torch.randn(points, 32)
    with torch.no_grad():
        plain = neaptide.measure(nearest, left, right)
        limit = int(plain.peak * share)
        handle = neaptide.compile(nearest, budget=limit)
        handle(left, right)
        ours = neaptide.measure(handle, left, right)
    table = Table("", "peak, measured", "seconds", title=f"the nearest of {points:,} for each of {points:,}")
    table.add_row("plain PyTorch", format_bytes(plain.peak), f"{plain.seconds:.2f}")
    table.add_row(f"inside {format_bytes(limit)}", format_bytes(ours.peak), f"{ours.seconds:.2f}")
    console.print(table)
    same = (plain.value[1] == ours.value[1]).float().mean().item()
    console.print(f"{same:.1%} of the nearest are the same")


if __name__ == "__main__":
    try:
        typer.run(main)
    except neaptide.NeaptideError as error:
        raise SystemExit(f"neaptide: {error}") from None
