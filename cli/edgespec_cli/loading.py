"""Loads the engine that options ask for: fetches missing models, and shows progress."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .answer import CtrlC
from .arguments import engine_arguments, refuse_typed
from .render import Status, count, is_terminal, name, say, size, status

if TYPE_CHECKING:
    import edgespec
    from edgespec.device import LoadMeter
    from edgespec.hub import Choice, Entry, PublishedHead

Progress = Callable[[str, int, "int | None"], None]

_OF_VERIFIERS = {  # values that these options may have with --verifier, and why
    "acceptance": (
        ("coupled",),
        "only token ids travel, so drafts are matched by coupled sampling",
    ),
    "remember": (("rates", "nothing"), "tokens of a target on another machine are not kept"),
}
_DEFAULT = "edgespec_cli.default_model"  # key in the meta data of a command's context
_MOST_KEY_BYTES = 1 << 16
_MEASURE_S = 8.0  # longest measurement after an answer


@contextlib.contextmanager
def opened(options: Mapping[str, Any], *, measured: bool = False) -> Iterator[edgespec.Engine]:
    """Yield the engine that the options of a command ask for, and close it at the end.

    measured: measure the costs first if they are not known, and load the engine again. The engine
    is then the same as at every later load: its costs are known, and it drafts with the copy of the
    draft model if that is faster.
    """
    import edgespec

    arguments = engine_arguments(options)
    if options.get("verifier"):
        with _connected(options, arguments) as engine:
            yield engine
        return
    model = model_reference(options)
    fetch_all(options, model, arguments["draft"])
    reading = " and reading what to draft from" if options.get("draft_corpus") else ""
    with status(f"loading {model}{reading}") as line:
        engine = edgespec.load(model, **arguments)
        if measured and engine.idle_work.left:
            with engine:
                if _measure(engine, line):
                    raise KeyboardInterrupt
            line.show(f"loading {model}")
            engine = edgespec.load(model, **arguments)
            if engine.idle_work.left and _measure(engine, line):  # costs that could not be saved
                engine.close()
                raise KeyboardInterrupt
    with engine:
        yield engine


def others_of(meter: LoadMeter) -> float:
    """Return how many cores other programs have used since the meter's last look, 0 if the system
    does not tell.
    """
    load = meter.look()
    return load.others if load else 0.0


def cannot_keep_costs() -> str:
    """Return why measured times cannot be saved on this disk, and what to do; "" if they can be."""
    from edgespec import kept_files
    from edgespec.device import cache_folder

    return kept_files.refusal(cache_folder("profiles"), "EDGESPEC_PROFILES")


def suggestion(engine: edgespec.Engine, options: Mapping[str, Any]) -> str:
    """Return a line that recommends a head or draft model to fetch, "" if there is none to
    recommend. Each recommendation is made only once for a model on this device.
    """
    from edgespec.loading import companions

    reference = engine.describe().get("suggestion")
    if not reference or options.get("verifier") or options.get("quiet"):
        return ""
    model = model_reference(options)
    if not companions.is_new(model, reference):
        return ""
    return f"what may make it faster: edgespec pull {reference} (told once)"


def measure_afterwards(engine: edgespec.Engine) -> None:
    """Measure costs that are not known yet, after the answer. Scripts do not wait for that: nothing
    is measured if stderr is not a terminal.

    The costs measured within _MEASURE_S seconds are saved, and the next run measures the rest.
    Nothing is measured while other programs use the CPUs, because it would not be saved.
    """
    from edgespec.device import BUSY, other_load

    if not engine.idle_work.left or not is_terminal(sys.stderr) or (other_load() or 0) > BUSY:
        return
    with contextlib.suppress(KeyboardInterrupt), status() as line:
        _measure(engine, line, " (Ctrl-C skips it)", time_limit_s=_MEASURE_S)


def _measure(
    engine: edgespec.Engine, line: Status, hint: str = "", time_limit_s: float | None = None
) -> bool:
    """Measure the unknown costs now; return True if Ctrl-C ended the measurement."""
    line.show(engine.idle_work.left[0] + hint)
    with CtrlC(engine) as ctrl_c:  # else the engine's calls do not notice Ctrl-C
        engine.measure(time_limit_s)
    return ctrl_c.hit


@contextlib.contextmanager
def _connected(options: Mapping[str, Any], arguments: dict[str, Any]) -> Iterator[edgespec.Engine]:
    """Yield an engine whose target is on another machine.

    The vocabulary comes from the local model or the draft model, or else from the catalogue's
    `vocabulary_model` if that is on disk.
    """
    import edgespec

    with status(f"connecting to {options['verifier']}"):
        engine = edgespec.connect(**verifier_arguments(options, arguments))
    with engine:
        yield engine


def verifier_arguments(options: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `edgespec.connect`, made from those of `load`; fetch missing files.

    Raises UsageError for typed options that have no effect with a remote target.
    """
    import edgespec

    for option, (possible, why) in _OF_VERIFIERS.items():
        if options.get(option) not in possible:
            refuse_typed(
                click.get_current_context(), [option],
                f"has no effect with --verifier: {why}; leave it out",
            )  # fmt: skip
    local, draft = options["model"], arguments["draft"]
    draft = None if draft == "auto" else draft
    fetch_all(options, local, draft)
    remote = edgespec.RemoteConfig(
        options["verifier"],
        api_key=_verifier_key(options["verifier_key_file"]),
        model=options["verifier_model"] or "",
        timeout_s=options["verifier_timeout"],
        local=local,
        tokenizer=None if local or draft else edgespec.hub.vocabulary_model,
    )
    return dict(arguments) | {"remote": remote, "draft": draft}


def _verifier_key(path: Path | None) -> str | None:
    """Return the key from the file, or else from the environment. The key is not an option itself,
    because other users can see a command line.
    """
    if path is None:
        return os.environ.get("EDGESPEC_VERIFIER_KEY")
    from edgespec import kept_files

    try:
        return kept_files.read(path, _MOST_KEY_BYTES).decode("utf-8").strip() or None
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--verifier-key-file {path} cannot be read: {error}") from None


def model_reference(options: Mapping[str, Any]) -> str:
    """Return the model that the options name, or else this device's default model. The default is
    looked up only once for each command.
    """
    if options["model"]:
        return str(options["model"])
    from .default_model import default_model

    meta = click.get_current_context().meta
    if _DEFAULT not in meta:
        meta[_DEFAULT] = default_model(offline=options["offline"])
    return str(meta[_DEFAULT])


def entry_of(reference: str) -> Entry | None:
    """Return the catalogue's entry for a reference such as NAME or NAME:QUANTISATION, None if the
    catalogue has no such name.
    """
    from edgespec import hub

    return hub.entries().get(reference.partition(":")[0].lower())


def fetch_all(options: Mapping[str, Any], *references: str | None) -> None:
    """Fetch the models with these references. None and "auto" are skipped."""
    for reference in references:
        if reference not in (None, "auto"):
            fetched(reference, offline=options["offline"])


def fetched(reference: str, *, offline: bool = False) -> Path:
    """Return the file of a model on disk. If it is missing, announce and fetch it."""
    from edgespec import hub

    with looking_at_the_hub(reference, offline=offline):
        path = hub.resolve(reference)
    if path is not None:
        return path
    companions: list[str] = []
    if not offline:
        hub.need_folder(reference)
        choice = hub.choices(reference)
        if choice:
            reference = choice.reference
            _show_choice(choice)
            companions = choice.wanted[:-1]
        n_bytes = choice.taken.size if choice else None
        say(f"fetching {announcement(reference, n_bytes)}", err=True)
    with progress_bar() as progress:
        for companion in companions:  # first: once the model is on disk, nothing is fetched
            hub.pull(companion, progress=progress, offline=offline)
        return hub.pull(reference, progress=progress, offline=offline)


@contextlib.contextmanager
def looking_at_the_hub(name: str, *, offline: bool = False) -> Iterator[None]:
    """If this block raises ModelNotFound for an unknown name, add to the error the repositories of
    the hub that have this name.
    """
    from edgespec import ModelNotFound, hub

    try:
        yield
    except ModelNotFound as error:
        is_name = re.fullmatch(r"\w[\w.-]*", name) and not hub.names_model(name)
        repositories = hub.search(name) if is_name and not offline else []
        if not repositories:
            raise
        listed = ", ".join(f"hf:{repository}" for repository in repositories)
        raise ModelNotFound(f"{error}. The hub has {listed}: give one of these instead") from None


def _show_choice(choice: Choice) -> None:
    """List the models of a repository, mark the one to fetch, and say how to name another."""
    shown = {model: name(model.quantisation or model.file) for model in choice.models}
    width = max(map(len, shown.values()))
    for model, text in shown.items():
        mark = "*" if model == choice.taken else " "
        say(f"{mark} {text:<{width}}  {size(model.size):>9}", err=True)
    if others := [text for model, text in shown.items() if model != choice.taken]:
        another = f"hf:{name(choice.repository.repo)}:{others[-1]}"
        say(f"* is taken; {another} names another one", err=True)
    if choice.projector:
        file = f"{name(choice.projector.file)}, {size(choice.projector.size)}"
        say(f"it sees pictures with {file}, which comes with it", err=True)
    for head in choice.heads:
        file = name(choice.named(head))
        say(f"a trained head for it: edgespec pull {file}, then -md {file}", err=True)


def announcement(reference: str, n_bytes: int | None = None) -> str:
    """Return a line that describes a model, with its size and licence."""
    entry = entry_of(reference)
    if entry is None:
        what = "licence" if n_bytes else "size and licence"
        return f"{reference}, {size(n_bytes)} ({what}: see its page on the hub)"
    file = entry.file(reference.partition(":")[2] or None)
    eyes = f" + {size(file.projector.size)} to see pictures" if file.projector else ""
    return (
        f"{entry.name}: {entry.title}, {count(entry.parameters)} parameters, "
        f"{file.quantisation}, {size(file.size)}{eyes}, licence {licence(entry)}"
    )


def licence(entry: Entry | PublishedHead) -> str:
    """Return the name of a licence, followed by its address if it has one."""
    return f"{entry.licence} ({entry.licence_url})" if entry.licence_url else entry.licence


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """Yield a function that shows progress on stderr: as a bar if that is a terminal, otherwise as
    a line every 10 seconds.
    """
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
            what = description.partition(" (")[0]
            if what not in tasks:
                tasks[what] = bar.add_task("", total=total)
            bar.update(tasks[what], description=name(description), completed=done, total=total)

        yield show


def plain_progress(every_s: float = 10.0) -> Progress:
    """Return a function that shows progress as lines: one when a download begins, then at most one
    in `every_s` seconds.

    Descriptions that differ only in the brackets at the end belong to the same download.
    """
    last: dict[str, float] = {}

    def show(description: str, done: int, total: int | None) -> None:
        what, now = description.partition(" (")[0], time.monotonic()
        if what in last and now - last[what] < every_s:
            return
        last[what] = now
        so_far = f"{size(done)} of {size(total)}" if total else size(done) if done else ""
        say(f"{description}: {so_far}" if so_far else description, err=True)

    return show
