"""What the pictures of benchmarks share: words on a sheet, and the sheet as SVG, alone or in a page."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path

WIDTH = 960
STYLE = "text{font:12px system-ui,sans-serif;fill:#16202c}.title{font-size:15px;font-weight:650}.soft{fill:#5d6b7a}"


def sheet(parts: Iterable[str], height: int) -> str:
    """The SVG of what is drawn."""
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    ground = f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>{ground}', *parts, "</svg>"])


def write(path: Path, title: str, drawing: str) -> Path:
    """Write a drawing as SVG, or within a page if the name ends in .html."""
    if path.suffix == ".html":
        drawing = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n{drawing}\n</html>'
    path.write_text(drawing + "\n", encoding="utf-8")
    return path


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start", fill: str = "") -> str:
    """Words at a place."""
    style = f' style="fill:{fill}"' if fill else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"{style}>{html.escape(words)}</text>'
