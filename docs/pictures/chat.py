"""Record a chat with SmolLM2 and draw it: `python docs/pictures/chat.py`."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

import edgespec
from edgespec_cli.chat import HINT, take
from edgespec_cli.conversation import Conversation
from edgespec_cli.render import Screen

MODEL = "smollm2-135m"
COMMAND = "edgespec chat --show-drafts"
MESSAGES = (
    "Repeat this list twice: red apple, green pear, yellow banana, blue plum, white grape.",
    "Write the same list again and add a black cherry at the end.",
)
FONT = "DejaVu Sans Mono, Menlo, Consolas, monospace"
WIDTH = 96


class Terminal(io.StringIO):
    """Keeps what is written to a terminal."""

    def isatty(self) -> bool:
        return True


def recorded() -> str:
    """Return what a terminal shows of the chat."""
    terminal = Terminal()
    with edgespec.load(MODEL) as engine, contextlib.redirect_stdout(terminal):
        engine.measure()
        screen = Screen(show_drafts=True)
        talk = Conversation(engine, engine.chat(), MODEL, {"temperature": 0}, screen)
        screen.remark(f"$ {COMMAND}")
        screen.remark(f"{talk.model} · {talk.summary()} · {HINT}")
        for message in MESSAGES:
            print(f"> {message}")
            take(talk, message)
        print("> ", end="")
    return terminal.getvalue()


def main() -> None:
    os.environ["COLUMNS"] = str(WIDTH)  # remarks are wrapped there
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(recorded()))
    drawn = console.export_svg(title=COMMAND, unique_id="t", theme=MONOKAI)
    drawn = re.sub(r"<!--.*?-->|@font-face {.*?}", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace("Fira Code, monospace", FONT)
    lines = [line.rstrip() for line in drawn.splitlines() if line.strip()]
    Path(__file__).with_suffix(".svg").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
