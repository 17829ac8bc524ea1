"""The command line: what a model will take (`estimate`), what it took (`measure`), and what to turn on (`advise`).

In: `FILE.py:function`, where the function returns (model, inputs) or (model, inputs, optimizer). Out: a table or JSON
on stdout, a page, a snapshot; progress and errors on stderr. What a user can put right is one line and exit code 2.
torch is imported inside the commands, so that `--help` is quick and the allocator can be set up before.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from neaptide.errors import InputError, NeaptideError
from neaptide.subject import RETURNS, Subject, guard, load

if TYPE_CHECKING:
    from neaptide.dryrun import Estimate
    from neaptide.measurement import Measurement

_RESTARTED = "NEAPTIDE_RESTARTED"

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="What a PyTorch model takes in memory.",
)

Target = Annotated[str, typer.Argument(metavar="FILE.py:function", help=f"A function that returns {RETURNS}.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Page = Annotated[Path | None, typer.Option("--html", help="Write the memory timeline as one self-contained page.")]
Snapshot = Annotated[Path | None, typer.Option("--snapshot", help="Write a file for pytorch.org/memory_viz.")]
Train = Annotated[bool, typer.Option("--train/--inference", help="A training step, or a forward alone.")]


def main() -> None:
    """Run the command line, with the allocator set up so that a measured peak is true.

    >>> from typer.testing import CliRunner
    >>> CliRunner().invoke(app, ["--help"]).exit_code
    0
    """
    if "measure" in sys.argv[1:2]:
        _restart_with_allocator()
    app()


@app.command()
def estimate(target: Target, json: Json = False, html: Page = None, snapshot: Snapshot = None, train: Train = True) -> None:
    """Predict the peak of one step; nothing is executed.

    >>> from typer.testing import CliRunner
    >>> CliRunner().invoke(app, ["estimate", "nowhere.py:net"]).exit_code
    2
    """
    with _one_line_errors():
        console = Console(stderr=True)
        with _progress(console, f"loading {target}"):
            subject = load(target)
        predicted = _predict(subject, train, console)
        if json:
            _print_json(subject, train, predicted)
        else:
            _print_tables(target, predicted)
        _write_files(target, predicted, html, snapshot, console)


@app.command()
def measure(target: Target, json: Json = False, html: Page = None, snapshot: Snapshot = None, train: Train = True) -> None:
    """Run one step, and show its true peak next to the predicted one.

    >>> from typer.testing import CliRunner
    >>> CliRunner().invoke(app, ["measure", "nowhere.py:net"]).exit_code
    2
    """
    with _one_line_errors():
        console = Console(stderr=True)
        with _progress(console, f"loading {target}"):
            subject = load(target)
        predicted = _predict(subject, train, console)
        taken = _run(subject, train, console)
        if json:
            _print_json(subject, train, predicted, taken)
        else:
            _print_tables(target, predicted, taken)
        _write_files(target, predicted, html, snapshot, console, {"measured": taken.peak})


@app.command()
def advise(
    target: Target,
    budget: Annotated[str | None, typer.Option(help="Bytes, such as 8GiB.")] = None,
    device: Annotated[str | None, typer.Option(help="A card that need not be here, such as h100.")] = None,
    lossy: Annotated[bool, typer.Option(help="Recommend methods that change results, too.")] = False,
    ranks: Annotated[int, typer.Option(help="Over how many processes a model may be shared out.")] = 1,
    max_batch: Annotated[bool, typer.Option(help="Print the largest batch for each method.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write peaks, times and timelines as one self-contained page.")] = None,
    json: Json = False,
    train: Train = True,
) -> None:
    """Predict every way to save memory, and say which to take; nothing is executed.

    >>> from typer.testing import CliRunner
    >>> CliRunner().invoke(app, ["advise", "nowhere.py:net"]).exit_code
    2
    """
    with _one_line_errors():
        console = Console(stderr=True)
        with _progress(console, f"loading {target}"):
            subject = load(target)
        from neaptide import advising

        given = {"train": train, "device": device, "lossy": lossy, "ranks": ranks}
        with contextlib.redirect_stdout(sys.stderr):
            made = guard(
                f"advice for {type(subject.model).__name__}",
                lambda: advising.advise(subject.model, subject.inputs, budget, subject.optimizer, **given),
            )
        if json:
            sys.stdout.write(_as_json(made.to_json()))
        elif max_batch:
            for row in made.rows:
                largest = row.largest(made.budget)
                sys.stdout.write(f"{row.method:<44}{'?' if largest is None else largest}\n")
        else:
            sys.stdout.write(f"{made}\n")
        if html is not None:
            path = made.write_html(html).resolve()
            console.print(f"neaptide: the picture is in {path}", highlight=False, markup=False, soft_wrap=True)


def _as_json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"


def _predict(subject: Subject, train: bool, console: Console) -> Estimate:
    from neaptide import dryrun

    optimizer = subject.optimizer if train else None
    with _progress(console, "dry run: predicting the peak, nothing is executed"):
        return guard(
            f"a dry run of {type(subject.model).__name__}",
            lambda: dryrun.estimate(subject.model, subject.inputs, train, optimizer),
        )


def _run(subject: Subject, train: bool, console: Console) -> Measurement[Any]:
    """Measure the second step: in the first, optimizers make their state and libraries load their code."""
    from neaptide import dryrun, measurement

    name = type(subject.model).__name__
    if any(tensor.is_meta for tensor in subject.model.parameters()):
        raise InputError(f"{subject.target}: {name} is on the meta device, which cannot run; try neaptide estimate")
    step = subject.model, subject.inputs, train, subject.optimizer if train else None
    with _progress(console, "warming up: running one step"):
        guard(name, lambda: dryrun.run_step(*step))
        subject.model.zero_grad(set_to_none=True)
    with _progress(console, "measuring: running one step"):
        return guard(name, lambda: measurement.measure(dryrun.run_step, *step))


@contextlib.contextmanager
def _progress(console: Console, text: str) -> Iterator[None]:
    """A spinner on a terminal, a line in a log. What the user's code prints meanwhile must not end up in our JSON."""
    with contextlib.ExitStack() as stack:
        if console.is_terminal:
            stack.enter_context(console.status(text))
        else:
            console.print(f"neaptide: {text}", highlight=False, markup=False, soft_wrap=True)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (NeaptideError, OSError) as error:
        sys.stderr.write(f"neaptide: {' '.join(str(error).split())}\n")
        raise typer.Exit(2) from None


def _print_tables(target: str, predicted: Estimate, taken: Measurement[Any] | None = None) -> None:
    from neaptide.report import format_bytes, tabulate

    console = Console()
    console.print(tabulate(predicted.timeline, target))
    for note in predicted.notes:
        console.print(f"note: {note}", markup=False)
    if taken is not None:
        off = predicted.peak / taken.peak - 1
        console.print(
            f"predicted {format_bytes(predicted.peak)}, measured [bold]{format_bytes(taken.peak)}[/bold] "
            f"(prediction {off:+.1%})",
            highlight=False,
        )
        if taken.note:
            console.print(f"note: {taken.note}", markup=False)


def _print_json(
    subject: Subject, train: bool, predicted: Estimate, taken: Measurement[Any] | None = None, top: int = 20
) -> None:
    line = predicted.timeline
    data: dict[str, Any] = {
        "target": subject.target,
        "model": type(subject.model).__name__,
        "train": train,
        "predicted": {
            "peak": predicted.peak,
            "step": line.steps[line.peak_step] if line.steps else "",
            "parts": dict(line.parts),
            "held_by": [asdict(life) for life in line.held_by[:top]],
            "notes": list(predicted.notes),
        },
    }
    if taken is not None:
        data["measured"] = {"peak": taken.peak, "seconds": taken.seconds, "note": taken.note}
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def _write_files(
    target: str,
    predicted: Estimate,
    html: Path | None,
    snapshot: Path | None,
    console: Console,
    lines: dict[str, int] | None = None,
) -> None:
    from neaptide.report import write_html, write_snapshot

    for path, what in (
        (html and write_html(html, predicted.timeline, target, lines), "the picture"),
        (snapshot and write_snapshot(snapshot, predicted.timeline, target), "the snapshot for pytorch.org/memory_viz"),
    ):
        if path:
            console.print(f"neaptide: {what} is in {path.resolve()}", highlight=False, markup=False, soft_wrap=True)


def _restart_with_allocator() -> None:
    """Start again with freed tensors going back to the kernel: glibc reads its settings only at the start."""
    if not sys.platform.startswith("linux") or os.environ.get(_RESTARTED):
        return
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", _RESTARTED: "1"}
    if os.environ.get("MALLOC_MMAP_THRESHOLD_", "").isdigit() and int(os.environ["MALLOC_MMAP_THRESHOLD_"]) <= 65536:
        return
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
