"""GPT-2 reads 4,096 tokens: over a budget in plain PyTorch, inside it under Neaptide, in one table and one picture. Then it
trains: every way to save memory is predicted, and the fastest that fits is turned on.

MALLOC_MMAP_THRESHOLD_=65536 python examples/demo.py
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

import neaptide
from neaptide.report import format_bytes, write_html

TOKENS = 4096
BUDGET = neaptide.Budget(576 << 20, text="576 MiB")
TRAINING = "1.25GiB"
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

del got, expected
first = neaptide.measure(lambda: None).peak  # the model that has read is still there
torch.manual_seed(0)
learner = GPT2LMHeadModel(
    GPT2Config(n_layer=6, n_embd=512, n_head=8, vocab_size=8000, bos_token_id=0, eos_token_id=0, use_cache=False)
).train()
optimizer = torch.optim.AdamW(learner.parameters())
batch = torch.randint(8000, (8, 512))
inputs = {"input_ids": batch, "labels": batch}


def train() -> None:
    """A step."""
    learner(**inputs).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


with doing(f"predicting every way to train GPT-2 on 8 x 512 tokens inside {TRAINING}, nothing is executed (a minute)"):
    handle = neaptide.fit(learner, inputs, budget=TRAINING, optimizer=optimizer)
console.print(str(handle.advice), markup=False, highlight=False, soft_wrap=True)
with doing("training: two steps to warm up, one measured"):
    for _ in range(2):
        handle.step(train)
    taken = neaptide.measure(train).peak - first
chosen = handle.advice.best
console.print(
    f"turned on: {chosen.method}. Predicted {format_bytes(chosen.peak)}, measured {format_bytes(taken)}, budget {TRAINING}; "
    f"plain PyTorch would take {format_bytes(handle.advice.plain.peak)}",
    markup=False,
)
page = handle.advice.write_html("advice.html")
console.print(f"The picture is in {Path(page).resolve()}", markup=False)
