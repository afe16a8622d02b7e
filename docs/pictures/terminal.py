"""What a terminal shows, drawn as a picture."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

FONT = "DejaVu Sans Mono, Menlo, Consolas, monospace"


def draw(path: Path, title: str, shown: str, width: int) -> None:
    """Write `shown`, with its colours, as the SVG of a terminal of that width."""
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(Text.from_ansi(shown))
    drawn = console.export_svg(title=title, unique_id="t", theme=MONOKAI)
    drawn = re.sub(r"<!--.*?-->|@font-face {.*?}", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace("Fira Code, monospace", FONT)
    lines = [line.rstrip() for line in drawn.splitlines() if line.strip()]
    path.write_text("\n".join(lines) + "\n")
