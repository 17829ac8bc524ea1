"""LoRA on a frozen Llama with random weights, by peft, inside a budget; with --int8 the frozen weights are torchao's int8.

MALLOC_MMAP_THRESHOLD_=65536 python examples/adapters.py [--tokens 512] [--share 0.5] [--int8]
"""

from typing import Annotated, Any

import peft
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import neaptide
from neaptide.report import format_bytes

console = Console()


def llama(int8: bool) -> nn.Module:
    """Six layers, frozen but for adapters of rank 8 on queries and values."""
    torch.manual_seed(0)
    width: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6, "vocab_size": 8000}
    heads: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2, "use_cache": False}
    model = LlamaForCausalLM(LlamaConfig(**width, **heads)).requires_grad_(False)
    if int8:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        quantize_(model.model, Int8WeightOnlyConfig())
    config = peft.LoraConfig(r=8, lora_dropout=0.0 if int8 else 0.1, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(model, config).train()


def step(call: Any, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> float:
    """One step of training; the loss."""
    loss = call(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main(
    tokens: Annotated[int, typer.Option(help="Tokens of each of four texts.")] = 512,
    share: Annotated[float, typer.Option(help="The budget, of what plain PyTorch takes.")] = 0.5,
    int8: Annotated[bool, typer.Option(help="Frozen weights in int8; needs torchao.")] = False,
) -> None:
    """A table: plain PyTorch, and the same steps inside the budget."""
    model = llama(int8)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    ids = torch.randint(8000, (4, tokens))
    table = Table("", "peak, measured", "a step", "loss", title=f"{sum(p.numel() for p in trained):,} trained parameters")
    step(model, optimizer, ids)
    plain = neaptide.measure(step, model, optimizer, ids)
    table.add_row("plain PyTorch", format_bytes(plain.peak), f"{plain.seconds:.2f} s", f"{plain.value:.3f}")
    handle = neaptide.compile(model, budget=int(plain.peak * share), optimizer=optimizer)
    for _ in range(3):
        step(handle, optimizer, ids)
    ours = neaptide.measure(step, handle, optimizer, ids)
    inside = f"inside {format_bytes(int(plain.peak * share))}"
    table.add_row(inside, format_bytes(ours.peak), f"{ours.seconds:.2f} s", f"{ours.value:.3f}")
    console.print(table)


if __name__ == "__main__":
    try:
        typer.run(main)
    except neaptide.NeaptideError as error:
        raise SystemExit(f"neaptide: {error}") from None
