"""The commands `edgespec cache list` and `clear`: prompts that were read and are kept on disk."""

from __future__ import annotations

import sys
import time

import click
import cloup

from .options import json_option, option
from .render import confirm, is_terminal, say, say_json, size, table


@cloup.group()
def cache() -> None:
    """Manage the prompts that were read and are kept on this disk.

    They are the beginnings of prompts and conversations, with what a model computed when it read
    them, so that it need not read them again. They have no influence on answers.
    """


@cache.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the prompts that are kept, the latest used first.

    A prompt that continues another one is listed with the tokens that it adds. "everybody" means
    that requests of all API keys may use it, as it was read by serve --warm or Engine.warm.
    """
    from edgespec.loading import prefixes

    entries = prefixes.stored()
    if as_json:
        say_json(
            [
                {
                    "model": each.header.model,
                    "n_tokens": each.header.n_tokens,
                    "size": each.n_bytes,
                    "for": _whose(each.header.is_everybodys),
                    "used": each.used,
                    "path": str(each.path),
                }
                for each in entries
            ]
        )
    elif entries:
        rows = [
            (
                each.header.model,
                str(each.header.n_tokens),
                size(each.n_bytes),
                _whose(each.header.is_everybodys),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used)),
            )
            for each in entries
        ]
        table(("model", "tokens", "size", "for", "last used"), rows, drop=("last used", "for"))
    if not entries:
        say("no prompt is kept on this disk; --prompt-cache disk keeps those read", err=True)


def _whose(is_everybodys: bool) -> str:
    return "everybody" if is_everybodys else "one user"


@cache.command()
@option("-y", "--yes", is_flag=True, help="Delete without asking.")
def clear(yes: bool) -> None:
    """Delete all prompts that are kept on this disk. Conversations that chat keeps stay."""
    from edgespec.loading import prefixes

    n_bytes = sum(each.n_bytes for each in prefixes.stored())
    what = f"the prompts that were read ({size(n_bytes)})"
    if not yes and not is_terminal(sys.stdin):
        raise click.UsageError(f"no terminal to confirm deleting {what}; add -y")
    if yes or confirm(f"delete {what}?"):
        say(f"deleted, {size(prefixes.clear())} freed")
