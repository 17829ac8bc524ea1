"""How a prediction is shown: a table for the terminal, a page for the browser, a file for PyTorch's memory_viz.

Each takes a `Timeline` and only shows it; nothing is decided or judged here.
"""

from neaptide.report.html import Point, render_html, write_html
from neaptide.report.snapshot import build_snapshot, write_snapshot
from neaptide.report.table import format_bytes, tabulate

__all__ = ["Point", "build_snapshot", "format_bytes", "render_html", "tabulate", "write_html", "write_snapshot"]
