"""The page of the command line is what --help says; `python -m tests.cli.test_docs` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from edgespec_cli.main import cli

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
BEGIN = "<!-- from here on generated: python -m tests.cli.test_docs -->\n"


def contexts(
    command: click.Command, parent: click.Context | None = None
) -> Iterator[click.Context]:
    """Yield a context of the command, 100 columns wide, and of every command below it."""
    settings = {"terminal_width": 100} | command.context_settings
    context = command.context_class(command, parent=parent, info_name=command.name, **settings)
    yield context
    for _, child in sorted(getattr(command, "commands", {}).items()):
        yield from contexts(child, context)


def reference() -> str:
    """Return the --help of every command as Markdown."""
    return "".join(
        f"\n## `{context.command_path}`\n\n```text\n{context.get_help()}\n```\n"
        for context in contexts(cli)
    )


def test_the_page_is_what_help_says():
    written, generated = PAGE.read_text(encoding="utf-8").split(BEGIN)
    assert written.startswith("# ")
    assert generated == reference(), "run: python -m tests.cli.test_docs"


if __name__ == "__main__":
    kept = PAGE.read_text(encoding="utf-8").split(BEGIN)[0]
    PAGE.write_text(kept + BEGIN + reference(), encoding="utf-8")
