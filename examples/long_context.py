"""Prefill of a long text by a Llama with random weights: lengths that plain PyTorch cannot hold, inside a budget.

The model is compiled once; every length gets a plan of its own. Only the last logits are asked for, as when text is
generated. Plain PyTorch is only predicted, so that lengths can be shown which this machine could not run.

    MALLOC_MMAP_THRESHOLD_=65536 python examples/long_context.py [--budget 512MiB] [--attention sdpa]
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

import neaptide
from neaptide.budget import parse_budget
from neaptide.report import format_bytes

console = Console()


def llama(attention: str = "eager", positions: int = 1 << 16) -> LlamaForCausalLM:
    """Four layers with grouped heads. `eager` attention is written out, as in models that look at their weights."""
    torch.manual_seed(0)
    width: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "vocab_size": 8000}
    heads: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2, "attn_implementation": attention}
    return LlamaForCausalLM(LlamaConfig(**width, **heads, max_position_embeddings=positions, use_cache=False)).eval()


def text(model: LlamaForCausalLM, length: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(model.config.vocab_size, (1, length)), "logits_to_keep": 1}


@contextmanager
def doing(what: str) -> Iterator[None]:
    """A spinner on a terminal, a line elsewhere."""
    if not console.is_terminal:
        console.print(f"{what} ...")
    with console.status(what):
        yield


def run(handle: neaptide.Handle, inputs: dict[str, Any]) -> tuple[str, str, neaptide.Plan | None]:
    """What a call was predicted to take, what it took, and its plan; or what it would need."""
    try:
        handle(**inputs)
        taken = neaptide.measure(handle, **inputs)
    except neaptide.BudgetError as error:
        return f"needs {format_bytes(error.smallest)}", "-", None
    return format_bytes(handle.plan.peak), f"{format_bytes(taken.peak)} in {taken.seconds:.1f} s", handle.plan


def main(
    lengths: Annotated[str, typer.Option(help="Tokens, with commas.")] = "1024,2048,4096,8192",
    budget: Annotated[str, typer.Option(help="Such as 512MiB.")] = "512MiB",
    attention: Annotated[str, typer.Option(help="eager (written out) or sdpa.")] = "eager",
    explain: Annotated[bool, typer.Option(help="Print what runs in parts, and who holds the peak.")] = False,
) -> None:
    """A table of lengths: plain PyTorch predicted, the budget, and Neaptide inside it."""
    limit = parse_budget(budget).limit
    model = llama(attention)
    table = Table(title=f"Llama, {attention} attention, budget {format_bytes(limit) if limit else budget}")
    for heading in ("tokens", "plain, predicted", "budget", "ours, predicted", "ours, measured"):
        table.add_column(heading, justify="right")
    counts = [int(length) for length in lengths.split(",")]
    with doing("predicting plain PyTorch: dry runs, nothing is executed"):
        plain = [neaptide.estimate(model, text(model, length), train=False).peak for length in counts]
    handle, plan = neaptide.compile(model, budget=budget), None
    for length, peak in zip(counts, plain, strict=True):
        with doing(f"{length:,} tokens"), torch.no_grad():
            predicted, measured, made = run(handle, text(model, length))
        plan = made or plan
        over = limit is not None and peak > limit
        shown = f"[red]{format_bytes(peak)}[/red]" if over else format_bytes(peak)
        table.add_row(f"{length:,}", shown, format_bytes(limit) if limit else budget, predicted, measured)
    console.print(table)
    if plan is not None:
        console.print(plan.explain() if explain else str(plan), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    try:
        typer.run(main)
    except neaptide.NeaptideError as error:
        raise SystemExit(f"neaptide: {error}") from None
