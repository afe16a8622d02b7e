"""Advice for messages: edgespec commands for the user's model, and pip commands for extras."""

from __future__ import annotations

import os
import shlex
import subprocess

Name = str | os.PathLike[str] | None


def command(name: str, model: Name = None, draft: Name = "auto", *more: str) -> str:
    """Return an edgespec command in backticks, for a message that recommends it.

    model: the model as the user named it, None for the default model. draft: the draft model as the
    user named it; "auto" if none was named, None for no draft model. more: arguments at the end.
    """
    words = ["edgespec", name]
    if model:
        words += ["-m", os.fspath(model)]
    if draft != "auto":
        words += ["-md", os.fspath(draft or "none")]
    words += more
    return f"`{subprocess.list2cmdline(words) if os.name == 'nt' else shlex.join(words)}`"


def install(*extras: str) -> str:
    """Return the pip command that installs extras from a clone; edgespec is on no package index."""
    return f"`pip install '.[{','.join(extras)}]'` in a clone of edgespec"
