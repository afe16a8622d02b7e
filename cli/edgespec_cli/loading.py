"""From options to a loaded engine: fetch what is missing, show what happens."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import engine_arguments
from .render import count, is_terminal, neutral, size, status

if TYPE_CHECKING:
    import edgespec

Progress = Callable[[str, int, "int | None"], None]


@contextlib.contextmanager
def opened(options: Mapping[str, Any]) -> Iterator[edgespec.Engine]:
    """The engine that the options of a command ask for, closed at the end."""
    import edgespec

    arguments = engine_arguments(options)
    if options.get("verifier"):
        with _connected(options, arguments) as engine:
            yield engine
        return
    model = options["model"] or edgespec.catalogue.default_model
    fetched(model, offline=options["offline"])
    if arguments["draft"] not in (None, "auto"):
        fetched(arguments["draft"], offline=options["offline"])
    with status(f"loading {model}"):
        engine = edgespec.load(model, **arguments)
    with engine:
        yield engine


@contextlib.contextmanager
def _connected(options: Mapping[str, Any], arguments: dict[str, Any]) -> Iterator[edgespec.Engine]:
    """An engine whose target is on another machine. The vocabulary comes from the local model, the
    draft model, or the catalogue's default where that is on disk.
    """
    import edgespec

    with status(f"connecting to {neutral(options['verifier'])}"):
        engine = edgespec.connect(options["verifier"], **verifier_arguments(options, arguments))
    with engine:
        yield engine


def verifier_arguments(options: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `edgespec.connect`, from those of `load`; files are fetched."""
    from edgespec.hub import catalogue

    local, draft = options["model"], arguments["draft"]
    draft = None if draft == "auto" else draft
    for name in filter(None, (local, draft)):
        fetched(name, offline=options["offline"])
    return dict(arguments) | {
        "draft": draft,
        "local": local,
        "tokenizer": None if local or draft else catalogue.default_model,
        "api_key": _verifier_key(options["verifier_key_file"]),
        "model": options["verifier_model"] or "",
        "timeout_s": options["verifier_timeout"],
    }


def _verifier_key(path: Path | None) -> str | None:
    """From the file, else from the environment: a command line can be read by others."""
    if path is None:
        return os.environ.get("EDGESPEC_VERIFIER_KEY")
    try:
        return path.read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--verifier-key-file {path} cannot be read: {error}") from None


def fetched(reference: str, *, offline: bool = False) -> Path:
    """The file on disk; what is not there is announced and pulled."""
    from edgespec.hub import catalogue

    path = catalogue.resolve(reference)
    if path is not None:
        return path
    if not offline:
        click.echo(f"fetching {announcement(reference)}", err=True)
    with progress_bar() as progress:
        return catalogue.pull(reference, progress=progress, offline=offline)


def announcement(reference: str) -> str:
    """What a model is, how large, and under which licence."""
    from edgespec.hub import catalogue

    name, _, quantisation = reference.partition(":")
    entry = catalogue.entries().get(name.lower())
    if entry is None:
        return f"{neutral(reference)} (size and licence: see its page on the hub)"
    file = entry.file(quantisation or None)
    return (
        f"{entry.name}: {entry.title}, {count(entry.parameters)} parameters, "
        f"{file.quantisation}, {size(file.size)}, licence {licence(entry)}"
    )


def licence(entry: Any) -> str:
    """Its name, and where its text is if the name does not say it."""
    return f"{entry.licence} ({entry.licence_url})" if entry.licence_url else str(entry.licence)


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on a terminal, a line now and then elsewhere; both on stderr."""
    if not is_terminal(sys.stderr):
        yield plain_progress()
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def show(description: str, done: int, total: int | None) -> None:
            if description not in tasks:
                tasks[description] = bar.add_task(neutral(description), total=total)
            bar.update(tasks[description], completed=done, total=total)

        yield show


def plain_progress(every_s: float = 10.0) -> Progress:
    """A line when something begins, then at most one in `every_s` seconds."""
    last: dict[str, float] = {}

    def show(description: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if description in last and now - last[description] < every_s:
            return
        last[description] = now
        so_far = f"{size(done)} of {size(total)}" if total else size(done)
        click.echo(f"{neutral(description)}: {so_far}", err=True)

    return show
