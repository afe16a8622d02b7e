"""The docs tell the truth: the pages of the command line and of the settings are what --help and
the declarations say (`python -m tests.cli.test_docs` writes them), and files that pages name exist.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import edgespec
from edgespec.server.settings import ServerSettings
from edgespec.setting import Setting, settings_of
from edgespec_cli.main import cli

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
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


def command_line() -> str:
    """Return the --help of every command as Markdown."""
    return "".join(
        f"\n## `{context.command_path}`\n\n```text\n{context.get_help()}\n```\n"
        for context in contexts(cli)
    )


def settings() -> str:
    """Return tables of the settings as Markdown."""
    owners = (
        edgespec.SamplingParams, edgespec.RepetitionDetection, edgespec.EngineConfig,
        edgespec.SpeculativeConfig, edgespec.RemoteConfig, ServerSettings,
    )  # fmt: skip
    return "".join(
        f"\n## `{owner.__name__}`\n\n{introduction(owner)}\n\n"
        "| Setting | Value | Default | What it does |\n| --- | --- | --- | --- |\n"
        + "".join(map(row, settings_of(owner).values()))
        for owner in owners
    )


def introduction(owner: type) -> str:
    """Return the docstring of a class of settings, without the list of them."""
    paragraphs = inspect.cleandoc(owner.__doc__ or "").split("\n\n")
    first = next(iter(settings_of(owner)))
    return "\n\n".join(text for text in paragraphs if not text.startswith(f"{first}: ")).strip()


def row(setting: Setting) -> str:
    """Return a setting as a row of a table."""
    kind = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    value = " or ".join(f"`{text}`" for text in setting.choices) or kind.get(setting.kind, "")
    if setting.kind in (int, float) and (bounds := setting.in_words()):
        value += f", {bounds}"
    default = "" if setting.default in (None, "", ()) else f"`{setting.default}`"
    return f"| `{setting.name}` | {value} | {default} | {setting.sentence} |\n"


PAGES = {"command-line.md": command_line, "settings.md": settings}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_is_declared(name):
    written, generated = (REFERENCE / name).read_text(encoding="utf-8").split(BEGIN)
    assert written.startswith("# ")
    assert generated == PAGES[name](), "run: python -m tests.cli.test_docs"


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
    for file, write in ((REFERENCE / name, write) for name, write in PAGES.items()):
        kept = file.read_text(encoding="utf-8").split(BEGIN)[0]
        file.write_text(kept + BEGIN + write(), encoding="utf-8")
        print(f"wrote {file.relative_to(ROOT)}")
