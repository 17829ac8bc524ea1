"""The peak of a timeline as tables for the terminal: what kinds of memory make it up, and who holds the most."""

from __future__ import annotations

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from neaptide.timeline import KINDS, Kind, Life, Timeline

LABELS: dict[Kind, str] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "input": "inputs",
    "output": "outputs",
    "activation": "activations",
    "temporary": "temporaries",
    "workspace": "workspaces",
    "other": "other",
}
"""How each kind reads in a report."""


def format_bytes(count: int) -> str:
    """Bytes as people read them: three digits and a binary unit.

    >>> format_bytes(512), format_bytes(1536), format_bytes(8 << 30), format_bytes(22_978_000_000)
    ('512 B', '1.5 KiB', '8 GiB', '21.4 GiB')
    >>> format_bytes(-(1 << 20))
    '-1 MiB'
    """
    size, unit = float(abs(count)), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if round(size, 2 if size < 10 else 1 if size < 100 else 0) < 1024 or unit == "TiB":
            break
        size /= 1024
    digits = f"{size:.2f}" if size < 9.995 else f"{size:.1f}" if size < 99.95 else f"{size:.0f}"
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return f"{'-' if count < 0 else ''}{digits} {unit}"


def tabulate(timeline: Timeline, title: str = "", top: int = 10) -> Group:
    """The peak by kind and its `top` holders, ready for `rich.print`.

    >>> from rich.console import Console
    >>> from neaptide.timeline import Life
    >>> line = Timeline(("mm",), (Life("weight", "parameter", 3 << 20, 0, 1, "fc"), Life("y", "output", 1 << 20, 0, 1)))
    >>> console = Console(width=80, color_system=None)
    >>> with console.capture() as printed:
    ...     console.print(tabulate(line, "tiny"))
    >>> "parameters" in printed.get(), "3 MiB" in printed.get(), "75.0 %" in printed.get()
    (True, True, True)
    """
    where = f"step {timeline.peak_step + 1} of {len(timeline.steps)}"
    if timeline.steps:
        where += f", {timeline.steps[timeline.peak_step]}"
    heading = Text.assemble(
        (f"{title}: " if title else "", "bold"),
        ("peak ", ""),
        (format_bytes(timeline.peak), "bold"),
        (f" at {where}", "dim"),
    )
    return Group(heading, _parts(timeline), _holders(timeline, top))


def _parts(timeline: Timeline) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="What the peak is made of", title_justify="left", title_style="")
    table.add_column("kind")
    table.add_column("bytes", justify="right")
    table.add_column("share", justify="right")
    table.add_column("", no_wrap=True)
    parts = timeline.parts
    for kind in sorted(KINDS, key=lambda kind: -parts[kind]):
        if parts[kind]:
            share = parts[kind] / timeline.peak
            table.add_row(LABELS[kind], format_bytes(parts[kind]), f"{share:.1%}".replace("%", " %"), "█" * round(24 * share))
    return table


def _holders(timeline: Timeline, top: int) -> Table:
    held = timeline.held_by
    table = Table(box=box.SIMPLE_HEAD, title="Who holds the most of it", title_justify="left", title_style="")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("module", overflow="fold")
    table.add_column("source", overflow="fold", style="dim")
    for life in held[:top]:
        table.add_row(*_row(life))
    rest = held[top:]
    if rest:
        table.add_row(format_bytes(sum(life.bytes for life in rest)), "", f"and {len(rest):,} more", "", "", style="dim")
    return table


def _row(life: Life) -> tuple[str | Text, ...]:
    # Text, not str: a name such as "x[0]" would be read as markup.
    # The end of a path says the most in the least width; the page and the snapshot have all of it.
    source = "/".join(life.source.split("/")[-2:])
    return format_bytes(life.bytes), life.kind, Text(life.name), Text(life.path), Text(source)
