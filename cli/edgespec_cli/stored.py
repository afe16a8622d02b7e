"""The commands `edgespec list` and `rm`: the models on this disk."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
import cloup

from .options import json_option, option
from .parameters import ModelType
from .render import confirm, is_terminal, say, say_json, size, table

if TYPE_CHECKING:
    from edgespec.hub import StoredModel


@cloup.command("list", aliases=["ls"])
@json_option
def list_(as_json: bool) -> None:
    """List the models on this disk.

    These are the models in edgespec's own folder and in the hub's cache. `edgespec models` lists
    what can be downloaded by name. A projector, with which a model sees pictures, counts as a part
    of the model.
    """
    from edgespec import hub

    models = hub.stored()
    if as_json:
        rows = [
            {
                "name": m.reference,
                "format": m.format,
                "size": m.size,
                "path": str(m.path),
                "projector": str(m.projectors[0]) if m.projectors else None,
            }
            for m in models
        ]
        say_json(rows)
    elif models:
        table(
            ("name", "format", "size", "file"),
            [(m.reference, m.format, size(m.size), _files(m)) for m in models],
            drop=("file", "format"),
        )
    if not models:
        say("no model is on this disk yet; `edgespec pull MODEL` fetches one", err=True)


def _files(model: StoredModel) -> str:
    """Return the names of a model's file and of its projector."""
    from edgespec import hub

    return " + ".join(hub.label(path) for path in (model.path, *model.projectors[:1]))


@cloup.command()
@click.argument("references", metavar="MODEL...", nargs=-1, required=True, type=ModelType())
@option("-y", "--yes", is_flag=True, help="Delete without asking.")
def rm(references: tuple[str, ...], yes: bool) -> None:
    """Delete models from this disk.

    MODEL is a name that `edgespec list` shows, or a path. Only models that edgespec downloaded or
    converted are deleted; files in other places stay. What was learned about drafts with the model
    is deleted too, and so are prompts that it has read, the faster copy of a draft model, and a
    projector that no other model uses.
    """
    from edgespec import hub
    from edgespec.decoding.kept import forget_learned
    from edgespec.loading import prefixes
    from edgespec.loading.drafts import discard_copy_of

    for model in [hub.find(reference) for reference in references]:
        names = [str(model.path), *(path.name for path in hub.deleted_with(model))]
        what = f"{model.reference} ({' + '.join(names)}, {size(model.size)})"
        if not yes and not is_terminal(sys.stdin):
            raise click.UsageError(f"no terminal to confirm deleting {what}; add -y")
        if yes or confirm(f"delete {what}?"):
            forget_learned(model.path)
            prefixes.forget(model.path)
            copy = discard_copy_of(model.path)  # first: the model's file is needed to find its copy
            also = " and its copy in a faster format" if copy else ""
            was_default = hub.chosen() in (model.reference, str(model.path))
            say(f"deleted {what}{also}, {size(copy + hub.remove(model))} freed")
            if was_default:
                hub.forget_choice()
                say("it was the default model; the next start chooses another", err=True)
