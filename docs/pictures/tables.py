"""Draw `edgespec models` and `edgespec tune` as terminals of four widths show them:
`python docs/pictures/tables.py MODEL`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from terminal import draw

WIDTHS = (60, 80, 100, 120)
COMMANDS = {"models": ["models"], "tune": ["tune", "--budget", "15"]}


def shown(width: int, *arguments: str) -> str:
    """Return what a command prints on a terminal."""
    coloured = {"COLUMNS": str(width), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "edgespec_cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | coloured)
    return done.stdout


def main() -> None:
    for name, arguments in COMMANDS.items():
        for width in WIDTHS:
            on = ["-m", sys.argv[1]] if name == "tune" else []
            title = f"edgespec {name}, {width} columns"
            path = Path(__file__).parent / "tables" / f"{name}-{width}.svg"
            path.parent.mkdir(exist_ok=True)
            draw(path, title, shown(width, *arguments, *on), width)


if __name__ == "__main__":
    main()
