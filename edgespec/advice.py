"""Advice in messages: commands for the user's own model, and how to install an extra."""

from __future__ import annotations

import os
import shlex
import subprocess

Name = str | os.PathLike[str] | None


def command(name: str, model: Name = None, draft: Name = "auto", *more: str) -> str:
    """Return a command of edgespec in backticks, for a message that advises it.

    model: as the user named it, None where it is the default one. draft: the same of the draft
    model; "auto" where none was named, None where there is to be none. more: arguments at the end.
    """
    words = ["edgespec", name]
    if model:
        words += ["-m", os.fspath(model)]
    if draft != "auto":
        words += ["-md", os.fspath(draft or "none")]
    words += more
    return f"`{subprocess.list2cmdline(words) if os.name == 'nt' else shlex.join(words)}`"


def install(*extras: str) -> str:
    """Return how to install extras: edgespec is on no package index."""
    return f"`pip install '.[{','.join(extras)}]'` in a clone of edgespec"
