"""The docs tell the truth: the page of the command line is what --help says
(`python -m tests.cli.test_docs` writes it), and the files that pages name are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from edgespec_cli.main import cli

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "command-line.md"
LINK = re.compile(r"\]\(([\w./-]+)(?:#[\w-]+)?\)")
NAMED = re.compile(r"`((?:edgespec|tests|cli|models|deploy|docs|android_demo)/[\w./-]+)`")
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


def test_files_that_pages_name_are_there():
    missing = [
        (page.name, path)
        for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
        for pattern, folder in ((LINK, page.parent), (NAMED, ROOT))
        for path in pattern.findall(page.read_text(encoding="utf-8"))
        if "NAME" not in path and not (folder / path).exists()
    ]
    assert missing == []


def test_every_result_has_its_command():
    results = ROOT / "docs" / "results"
    page = (results / "README.md").read_text(encoding="utf-8")
    assert [file.name for file in results.glob("*.json") if f"({file.name})" not in page] == []


if __name__ == "__main__":
    kept = PAGE.read_text(encoding="utf-8").split(BEGIN)[0]
    PAGE.write_text(kept + BEGIN + reference(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
