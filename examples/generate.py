"""Text generation by a Llama with random weights and transformers' static cache: a long prompt inside a budget, then one token
after the other, with the cache written in place.

    MALLOC_MMAP_THRESHOLD_=65536 python examples/generate.py [--prompt 4096] [--tokens 16] [--budget 256MiB]
"""

from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

import neaptide
from neaptide.report import format_bytes

console = Console()


def llama() -> LlamaForCausalLM:
    """Four layers with grouped heads, and attention written out."""
    torch.manual_seed(0)
    width: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "vocab_size": 8000}
    heads: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2, "attn_implementation": "eager"}
    return LlamaForCausalLM(LlamaConfig(**width, **heads, max_position_embeddings=1 << 16)).eval()


def main(
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt.")] = 4096,
    tokens: Annotated[int, typer.Option(help="Tokens to generate.")] = 16,
    budget: Annotated[str, typer.Option(help="Such as 256MiB.")] = "256MiB",
) -> None:
    """A table: plain PyTorch, and the same tokens inside the budget."""
    model = llama()
    ids = torch.randint(8000, (1, prompt))
    how: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": False, "cache_implementation": "static"}
    how["disable_compile"] = True  # transformers would have torch.compile decode
    plain = neaptide.measure(model.generate, ids, **how)
    table = Table("", "peak, measured", "seconds", title=f"{prompt:,} tokens of prompt and {tokens} more")
    table.add_row("plain PyTorch", format_bytes(plain.peak), f"{plain.seconds:.1f}")
    handle = neaptide.compile(model, budget=budget)
    model.generate(ids, **how)
    ours = neaptide.measure(model.generate, ids, **how)
    table.add_row(f"inside {budget}", format_bytes(ours.peak), f"{ours.seconds:.1f}")
    console.print(table)
    same = (plain.value == ours.value).float().mean().item()
    console.print(f"{same:.0%} of the tokens are the same; {handle.stats.captures} captures")


if __name__ == "__main__":
    try:
        typer.run(main)
    except neaptide.NeaptideError as error:
        raise SystemExit(f"neaptide: {error}") from None
