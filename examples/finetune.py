"""Fine-tuning a BERT with random weights on texts of changing lengths, inside a budget that the longest would break.

The model is compiled once; every length gets a plan of its own, that recomputes no more than it must. What plain PyTorch would
take is only predicted, for the longest batch.

    MALLOC_MMAP_THRESHOLD_=65536 python examples/finetune.py [--budget 512MiB] [--steps 20]
"""

import random
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from transformers import BertConfig, BertForSequenceClassification

import neaptide
from neaptide.budget import parse_budget
from neaptide.report import format_bytes

console = Console()
LONGEST = 384


def bert() -> BertForSequenceClassification:
    """Six layers, 384 wide."""
    torch.manual_seed(0)
    width: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 6}
    return BertForSequenceClassification(BertConfig(**width, vocab_size=4000)).train()


def batch(length: int) -> dict[str, torch.Tensor]:
    """Eight texts and what they are about."""
    return {"input_ids": torch.randint(4000, (8, length)), "labels": torch.randint(2, (8,))}


def main(
    budget: Annotated[str, typer.Option(help="Such as 512MiB; by default half of what the longest batch takes.")] = "",
    steps: Annotated[int, typer.Option(help="Batches to train on.")] = 20,
) -> None:
    """Train, and say for each length what was recomputed and what it took."""
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with console.status("predicting plain PyTorch: a dry run, nothing is executed"):
        plain = neaptide.estimate(model, batch(LONGEST), optimizer=optimizer).peak
    limit = parse_budget(budget).limit if budget else plain // 2
    if limit is None:
        raise neaptide.InputError(f"--budget must be a number of bytes such as 512MiB, not {budget!r}")
    console.print(f"plain PyTorch at {LONGEST} tokens: {format_bytes(plain)}; the budget: {format_bytes(limit)}")
    handle = neaptide.compile(model, budget=limit, optimizer=optimizer)
    chosen = random.Random(0)
    lengths = [min(LONGEST, 32 + int(chosen.lognormvariate(5.2, 0.5)) // 8 * 8) for _ in range(steps)]
    rows: dict[int, tuple[str, ...]] = {}
    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*shown, console=console) as progress:
        task = progress.add_task("capturing", total=steps)
        for length in lengths:
            taken = neaptide.measure(step, handle, optimizer, batch(length))
            (graph,) = handle.plan.graphs
            rows[length] = (f"{length}", f"{graph.reruns} of {graph.ops}", format_bytes(taken.peak), f"{taken.seconds:.2f} s")
            progress.update(task, advance=1, description=f"loss {taken.value:.3f}, {length} tokens")
    table = Table("tokens", "ops that run again", "peak, measured", "step", title="the latest step of each length")
    for length in sorted(rows):
        table.add_row(*rows[length])
    console.print(table)
    console.print(f"{handle.stats.captures} capture(s), {handle.stats.plans} plans in {handle.stats.planning_seconds:.1f} s")


def step(handle: neaptide.Handle, optimizer: torch.optim.Optimizer, inputs: dict[str, torch.Tensor]) -> float:
    """One step of training; the loss."""
    loss = handle(**inputs).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    try:
        typer.run(main)
    except neaptide.NeaptideError as error:
        raise SystemExit(f"neaptide: {error}") from None
