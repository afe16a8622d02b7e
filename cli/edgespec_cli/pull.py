"""The command `edgespec pull`, which downloads models and trained heads."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from .loading import announcement, entry_of, fetched, looking_at_the_hub, progress_bar
from .options import offline_option, option
from .parameters import ModelType
from .render import say, say_path, size, told


@cloup.command()
@click.argument("reference", type=ModelType())
@cloup.option_group(
    "Trained heads",
    option(
        "--target", type=ModelType(), metavar="MODEL",
        help="REFERENCE is the checkpoint of a trained head: convert it for this model.",
    ),
    option(
        "--precision", type=click.Choice(["int4", "int8", "fp32"]), default="int8",
        help="Number format of the matrices of a converted head.",
    ),
)  # fmt: skip
@offline_option
@option("-q", "--quiet", is_flag=True, help="Print only the path.")
def pull(reference: str, target: str | None, precision: str, offline: bool, quiet: bool) -> None:
    """Download a model or a trained head, and print its path.

    REFERENCE is a name that `edgespec models` lists, NAME:QUANTISATION, or an address on the hub:
    hf:org/repo/file.gguf, hf:org/repo:Q8_0, hf:org/repo (which takes the preferred file), or the
    URL of a page of the hub. Of a model that is on this disk, only parts that are missing are
    downloaded, such as its projector.

    If a repository has no model but the checkpoint of a trained head, the checkpoint is downloaded
    and converted for the model of --target. Without --target it is converted for the model that the
    catalogue names, if that model is on this disk.
    """
    from edgespec import hub

    with looking_at_the_hub(reference, offline=offline):
        there = hub.resolve(reference)
    if target is not None or there is None:
        folder = _checkpoint(reference, offline, quiet)
        if folder:
            _convert(reference, folder, target, precision, offline, quiet)
            return
        if target is not None:
            raise click.UsageError(
                f"--target is for the checkpoint of a trained head, and {reference} is none; leave "
                "it out"
            )
    if there:
        with progress_bar() as progress:  # parts that it lacks are fetched
            path = hub.pull(reference, progress=progress, offline=offline)
    else:
        path = fetched(reference, offline=offline)
    if there and not quiet:
        what = f": {announcement(reference)}" if entry_of(reference) else ""
        say(f"already on disk{what}", err=True)
    say_path(path)
    if not quiet:
        _suggest(reference)


def _suggest(reference: str) -> None:
    """Recommend a draft model and a head for a model of the catalogue, if none is on disk."""
    from edgespec import hub

    entry = entry_of(reference)
    if entry and entry.drafts and not any(map(hub.resolve, entry.drafts)):
        say(f"a draft model for it: edgespec pull {entry.drafts[0]}", err=True)
    if entry and entry.heads and not any(hub.resolve(head.reference) for head in entry.heads):
        say(f"a trained head for it: edgespec pull {entry.heads[0].reference}", err=True)


def _checkpoint(reference: str, offline: bool, quiet: bool) -> Path | None:
    """Return the folder of a head's checkpoint, and fetch it if it is missing. Return None if the
    reference is a model.
    """
    from edgespec import hub

    folder = hub.checkpoint_on_disk(reference)
    if folder or offline:
        return folder
    head = hub.head_repository(reference)
    if head is None:
        return None
    if not quiet:
        what = f"the checkpoint of a trained head, {size(head.size)}"
        say(f"fetching {reference}: {what}", err=True)
    with progress_bar() as progress:
        return hub.pull_head(head, progress=progress)


def _convert(
    reference: str, folder: Path, target: str | None, precision: str, offline: bool, quiet: bool
) -> None:
    """Convert a checkpoint for a target on this disk. If there is none, say how to do it later."""
    import edgespec
    from edgespec import hub
    from edgespec.convert.heads.conversion import target_name
    from edgespec.convert.heads.reading import read_head

    known = hub.targets_of(reference)
    if not quiet:
        card = read_head(folder).license
        say(f"licence of the head, as its card names it: {card}", err=True)
    target = target or next((each for each in known if hub.resolve(each)), None)
    if target is None:
        say_path(folder)
        if not quiet:
            say(_how_to(folder, known), err=True)
        return
    out = hub.models_dir() / f"{folder.name}-head-{precision}"
    model = fetched(target, offline=offline)
    if not _is_for(out, target_name(target, model)):
        with told() as show:
            edgespec.convert_head(
                folder, target, out, precision=precision,  # type: ignore[arg-type]
                progress=show, offline=offline,
            )  # fmt: skip
    say_path(out)
    if not quiet:
        say(f"it drafts for {target}: edgespec chat -m {target}", err=True)


def _is_for(folder: Path, noted: str) -> bool:
    """Return True if a folder contains a head whose note names this target."""
    from edgespec import kept_files

    try:
        note = kept_files.read_json(folder / "head.json", dict)
    except (OSError, ValueError):
        return False
    return bool(note.get("target") == noted)


def _how_to(folder: Path, known: list[str]) -> str:
    """Return the commands to convert a checkpoint whose target is not on this disk."""
    target = known[0] if known else "MODEL"
    first = f"edgespec pull {target}, then " if known else ""
    return f"to draft with it: {first}edgespec convert {folder} --head --target {target}"
