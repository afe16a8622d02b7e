"""The page of the command line is what --help says; `python -m tests.cli.test_docs` writes it."""

from __future__ import annotations

from pathlib import Path

import click

from edgespec_cli.main import cli

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
BEGIN = "<!-- from here on generated: python -m tests.cli.test_docs -->\n"


def reference() -> str:
    """The --help of every command, 100 columns wide."""
    parts = []
    for name, command in {"edgespec": cli, **dict(sorted(cli.commands.items()))}.items():
        path = name if command is cli else f"edgespec {name}"
        context = click.Context(
            command, info_name=path, terminal_width=100, help_option_names=["-h", "--help"]
        )
        parts.append(f"\n## `{path}`\n\n```text\n{command.get_help(context)}\n```\n")
    return "".join(parts)


def test_the_page_is_what_help_says():
    written, generated = PAGE.read_text(encoding="utf-8").split(BEGIN)
    assert written.startswith("# ")
    assert generated == reference(), "run: python -m tests.cli.test_docs"


if __name__ == "__main__":
    kept = PAGE.read_text(encoding="utf-8").split(BEGIN)[0]
    PAGE.write_text(kept + BEGIN + reference(), encoding="utf-8")
