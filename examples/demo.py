"""GPT-2 reads 4,096 tokens: over a budget in plain PyTorch, inside it under Neaptide, in one table and one picture.

MALLOC_MMAP_THRESHOLD_=65536 python examples/demo.py
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import GPT2Config, GPT2Model

import neaptide
from neaptide.report import format_bytes, write_html

TOKENS = 4096
BUDGET = neaptide.Budget(576 << 20, text="576 MiB")
console = Console()


@contextmanager
def doing(what: str) -> Iterator[None]:
    """A spinner on a terminal, a line elsewhere."""
    if not console.is_terminal:
        console.print(f"{what} ...")
    with console.status(what):
        yield


@torch.no_grad()
def read() -> torch.Tensor:
    """What the model makes of the tokens."""
    return model(tokens).last_hidden_state


torch.manual_seed(0)
# GPT-2 small, with room for more tokens, its attention written out as its authors did.
model = GPT2Model(GPT2Config(n_positions=TOKENS, use_cache=False, attn_implementation="eager")).eval()
tokens = torch.randint(50257, (1, TOKENS))

with doing("predicting plain PyTorch: a dry run, nothing is executed"):
    plain = neaptide.estimate(model, tokens, train=False)
with doing("capturing and planning, nothing is executed (half a minute)"):
    plan = neaptide.plan(model, tokens, budget=BUDGET)
with doing("measuring plain PyTorch"):
    read()
    before = neaptide.measure(read).peak
with doing("capturing and measuring under Neaptide (half a minute)"):
    handle = neaptide.compile(model, budget=BUDGET)
    read()
    after = neaptide.measure(read).peak
got = read()  # what is kept here would count in the measurements
handle.release()
expected = read()

own = format_bytes(plain.parts["parameter"])
table = Table(title=f"GPT-2 small, {TOKENS} tokens, budget {BUDGET}: peak, {own} of it parameters")
for heading in ("", "predicted", "measured", "inside the budget"):
    table.add_column(heading, justify="left" if not heading else "right")
for name, predicted, peak in (("plain PyTorch", plain.peak, before), ("neaptide.compile", plan.peak, after)):
    table.add_row(name, format_bytes(predicted), format_bytes(peak), "yes" if BUDGET.allows(peak) else "no")
console.print(table)
console.print(f"largest difference between the results: {(got - expected).abs().max():.1e}")
console.print(plan.explain(), markup=False, highlight=False)
page = write_html("demo.html", {"plain PyTorch": plain.timeline, "neaptide.compile": plan.timeline}, "GPT-2 reads 4,096 tokens")
console.print(f"The picture is in {Path(page).resolve()}", markup=False)
