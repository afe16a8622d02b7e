"""The commands `edgespec corpus add`, `list` and `clear`: documents to draft from."""

from __future__ import annotations

import sys
from collections import Counter

import click
import cloup

from .loading import fetched
from .options import json_option, offline_option, option
from .parameters import ModelType, PathsType
from .render import confirm, counted, is_terminal, say, say_json, size, status, table


@cloup.group()
def corpus() -> None:
    """Manage the documents to draft from, which stay on this disk.

    If an answer repeats a passage of a document, the rest of the passage is drafted. The answer is
    the same as without documents.
    """


@corpus.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PathsType())
@option(
    "-m",
    "--model",
    type=ModelType(),
    show_default="smollm2-135m",
    help="The model whose vocabulary is used. Other models with this vocabulary draft from the "
    "documents too.",
)
@offline_option
def add(paths: tuple[str, ...], model: str | None, offline: bool) -> None:
    """Add text files, source code, saved chats, and folders of these.

    `run` and `chat` draft from them from now on. Files that were added earlier are read again if
    they have changed.
    """
    from edgespec import hub
    from edgespec.loading import corpora

    corpora.located(paths)  # raises for unusable paths before a model is fetched
    if model is None and hub.resolve(hub.vocabulary_model) is None:
        say(
            f"texts are kept as tokens, and no model was named whose vocabulary is used: "
            f"{hub.vocabulary_model} is fetched for its own; -m NAME takes that of a model on disk",
            err=True,
        )
    path = fetched(model or hub.vocabulary_model, offline=offline)
    with status("reading") as line:
        made = corpora.add(
            paths,
            path,
            progress=lambda done, total: line.show(f"reading: {size(done)} of {size(total)}"),
        )
        collection = made.collection
    n_files = sum(document.n_tokens > 0 for document in collection.documents)
    say(
        f"{counted(n_files, 'file')}, {collection.n_tokens} tokens, "
        f"{size(8 * collection.n_tokens)} on disk, for {collection.model} and models "
        f"with its vocabulary; {made.n_tokenised} of them tokenised now"
    )
    if without := made.without_text(paths):
        say(f"no text was found in {', '.join(without)}", err=True)
    if left_out := _left_out(made.left_out):
        say(f"left out: {left_out}", err=True)
    if unreadable := made.unreadable:
        shown = corpora.listed(unreadable)
        say(f"left out, because they cannot be read: {len(unreadable)} ({shown})", err=True)


def _left_out(reasons: Counter[str]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in reasons.items() if n)


@corpus.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List what is kept to draft from.

    The kind "added" is used by every run and chat, "named" was given with --draft-corpus, and
    "answers" are kept by --draft-memory disk. "tokens" says for a model which tokens likely follow
    each token, and is kept by the drafter recycling.
    """
    from edgespec.loading import corpora

    entries = corpora.stored()
    if as_json:
        fields = ("kind", "vocabulary", "model", "roots", "n_documents", "n_tokens", "size")
        rows = [{field: getattr(entry, field) for field in fields} for entry in entries]
        say_json(rows)
    elif entries:
        table(
            ("kind", "for", "tokens", "size", "from"),
            [
                (
                    e.kind,
                    e.model or f"vocabulary {e.vocabulary}",
                    str(e.n_tokens),
                    size(e.size),
                    ", ".join(e.roots),
                )
                for e in entries
            ],
            drop=("size", "tokens"),
        )
    if not entries:
        say("nothing is kept to draft from; `edgespec corpus add PATH` adds it", err=True)


@corpus.command()
@option("-y", "--yes", is_flag=True, help="Delete without asking.")
def clear(yes: bool) -> None:
    """Delete all that is kept to draft from.

    These are copies of documents, answers, and likely next tokens. The documents themselves stay,
    and so do the rates at which drafts came true.
    """
    from edgespec.loading import corpora

    entries = corpora.stored()
    what = f"what is kept to draft from ({size(sum(entry.size for entry in entries))})"
    if not yes and not is_terminal(sys.stdin):
        raise click.UsageError(f"no terminal to confirm deleting {what}; add -y")
    if yes or confirm(f"delete {what}?"):
        say(f"deleted, {size(corpora.clear())} freed")
