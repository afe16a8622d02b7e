"""Record a chat with SmolLM2 and draw it: `python docs/pictures/chat.py`."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

from terminal import draw

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
    draw(Path(__file__).with_suffix(".svg"), COMMAND, recorded(), WIDTH)


if __name__ == "__main__":
    main()
