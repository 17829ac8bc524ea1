"""A training step of GPT-2, plain and under Neaptide: predicted, then measured, in one table and one picture.

MALLOC_MMAP_THRESHOLD_=65536 python examples/demo.py
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpt2 import gpt2
from rich.console import Console
from rich.table import Table

import neaptide
from neaptide.dryrun import run_step
from neaptide.report import format_bytes, write_html

console = Console()


@contextmanager
def doing(what: str) -> Iterator[None]:
    """A spinner on a terminal, a line elsewhere."""
    if not console.is_terminal:
        console.print(f"{what} ...")
    with console.status(what):
        yield


def measured() -> int:
    """The true peak of one step, after two that warm up."""
    for _ in range(2):
        run_step(model, inputs, True, optimizer)
        model.zero_grad()
    peak = neaptide.measure(run_step, model, inputs, True, optimizer).peak
    model.zero_grad()
    return peak


model, inputs, optimizer = gpt2()
with doing("predicting plain PyTorch: a dry run, nothing is executed"):
    plain = neaptide.estimate(model, inputs, optimizer=optimizer)
with doing("capturing and planning, nothing is executed (half a minute)"):
    plan = neaptide.plan(model, inputs, train=True, optimizer=optimizer)
with doing("measuring plain PyTorch"):
    before = measured()
with doing("capturing and measuring under Neaptide (half a minute)"):
    handle = neaptide.compile(model, budget=plan.peak, optimizer=optimizer)
    after = measured()

table = Table(title=f"GPT-2 small, AdamW, {inputs['input_ids'].numel()} tokens: peak of a training step")
for heading in ("", "predicted", "measured"):
    table.add_column(heading, justify="left" if not heading else "right")
table.add_row("plain PyTorch", format_bytes(plain.peak), format_bytes(before))
table.add_row("neaptide.compile", format_bytes(plan.peak), format_bytes(after))
console.print(table)
console.print(plan.explain(), markup=False, highlight=False)
page = write_html("demo.html", {"plain PyTorch": plain.timeline, "neaptide.compile": plan.timeline}, "GPT-2 training step")
console.print(f"The picture is in {Path(page).resolve()}", markup=False)
