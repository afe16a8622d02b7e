"""The model that is used if none is named, and the command `edgespec default`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click
import cloup

from .loading import announcement, entry_of, fetched
from .options import offline_option
from .parameters import ModelType
from .render import confirm, is_terminal, say, size

if TYPE_CHECKING:
    from edgespec.hub import Pick

_ANOTHER = "another: -m NAME now, `edgespec default NAME` for good; `edgespec models` lists them"
_AUTO = "auto"


def default_model(*, offline: bool) -> str:
    """Return the default model of this device. The first time, choose it, and fetch it if needed.

    A chat model on this disk is preferred to a download. More than 500 MB are fetched only if the
    user agrees. If no better model is available, a small one is used this time, and is not kept as
    the default.
    """
    from edgespec import hub

    kept = hub.chosen()
    if kept and _is_here(kept):
        return kept
    if kept:  # it stays the default: its disk may be connected again
        say(f"the default model {kept} is not on this disk any more", err=True)
    here = hub.places()
    if there := hub.usable_on_disk(here):
        reference = there[0].reference
        say(f"no model was named: {reference} is on this disk and fits; {_ANOTHER}", err=True)
    else:
        reference, why = _downloaded(hub.picks(here), offline=offline)
        if not reference:
            return _last_resort(why)
    if not kept:
        try:
            hub.choose(reference)
        except OSError as error:
            say(f"the choice is not kept: {_not_kept(error)}", err=True)
    return reference


def _not_kept(error: OSError) -> str:
    from edgespec import kept_files
    from edgespec.device import state_folder

    why = kept_files.unwritten(error, state_folder())
    return f"{why}. Until then -m NAME, or EDGESPEC_MODEL=NAME in the environment, names a model"


def _is_here(reference: str) -> bool:
    from edgespec import ModelNotFound, hub

    try:
        return hub.resolve(reference) is not None
    except ModelNotFound:
        return False


def _downloaded(steps: list[Pick], *, offline: bool) -> tuple[str, str]:
    """Fetch the best model that may be fetched. Return its reference and "", or "" and the reason
    that there is none.

    The reason is "" too if the hub did not answer within the last day and the fallback model is on
    this disk. The user was told then, and the hub is asked only once a day.
    """
    from edgespec import DownloadError, ModelNotFound, hub

    if not steps:
        return "", "no better model of the catalogue fits this device"
    if offline or hub.is_off():
        return "", "the hub must not be asked (offline)"
    if hub.was_silent() and _is_here(hub.fallback_model):
        return "", ""
    if not hub.answers(steps[0].repo):
        hub.note_silence()
        return "", "the hub cannot be reached"
    pick = _agreed(steps)
    if pick is None:
        return "", "nothing that fits may be fetched"
    try:
        fetched(pick.reference)
    except (DownloadError, ModelNotFound) as error:
        return "", str(error)
    return pick.reference, ""


def _agreed(steps: list[Pick]) -> Pick | None:
    """Show the best model for this device, and return the model to fetch.

    It is the best model, unless that is large and the user does not agree or cannot be asked. Then
    it is a small one, or None if there is none.
    """
    from edgespec import hub

    best = steps[0]
    where = f"{best.place.name}, {size(best.place.memory)} of memory free"
    say(f"no model was named. The best of the catalogue for this device ({where}):", err=True)
    for line in (announcement(best.reference), best.entry.description, best.about):
        say(f"  {line}", err=True)
    if best.size <= hub.UNASKED:
        say(_ANOTHER, err=True)
        return best
    small = next((step for step in steps if step.size <= hub.UNASKED), None)
    otherwise = f"{small.reference} ({size(small.size)}) is taken" if small else "it is not fetched"
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        more = f"`edgespec default {best.reference}` fetches it"
        say(f"this is no terminal to ask on, so {otherwise}; {more}", err=True)
        return small
    say(_ANOTHER, err=True)
    return best if confirm(f"fetch {size(best.size)}? If not, {otherwise}") else small


def _last_resort(why: str) -> str:
    """Return a small model to use this time, and say why it is used."""
    from edgespec import hub

    there = hub.usable_on_disk(hub.places(), ("code", "draft"))
    reference = there[0].reference if there else hub.fallback_model
    toy = reference == hub.fallback_model
    warning = ", which is only for trying out and often wrong" if toy else ""
    if why:
        say(f"no model was named, and {why}: {reference} answers{warning}; {_ANOTHER}", err=True)
    return reference


@cloup.command()
@click.argument("reference", metavar="[NAME]", required=False, type=ModelType(_AUTO))
@offline_option
def default(reference: str | None, offline: bool) -> None:
    """Show or change the model that is used if none is named.

    NAME is a name that `edgespec models` lists, a path, or hf:org/repo on the hub. The model is
    fetched if it is not on this disk. 'auto' forgets the choice, and the next `edgespec chat`
    chooses a model for this device.
    """
    from edgespec import DownloadError, hub, named_files

    if reference is not None and reference != _AUTO:
        try:
            path = fetched(reference, offline=offline)
        except DownloadError as error:
            kept = hub.chosen()
            stays = f"the default stays {kept}" if kept else "no default is kept"
            raise click.ClickException(f"{error}; {stays}") from error
        is_file = not entry_of(reference) and os.path.exists(named_files.expanded(reference))
        reference = str(path.absolute()) if is_file else reference
    try:
        if reference == _AUTO:
            hub.forget_choice()
        elif reference is not None:
            hub.choose(reference)
    except OSError as error:
        raise click.ClickException(f"the choice is not kept: {_not_kept(error)}") from error
    if kept := hub.chosen():
        say(kept)
    else:
        say("no model is chosen yet; `edgespec chat` chooses one for this device", err=True)
