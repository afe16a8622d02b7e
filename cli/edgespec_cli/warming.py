"""The files of `edgespec serve --warm`: what prompts begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

_MOST_BYTES = 16 << 20
_FORM = 'a JSON object with "messages" and "tools", as OpenAI\'s API takes them, or a text'


def read_beginning(path: Path) -> dict[str, Any]:
    """Return the arguments of `Engine.warm` for a file. Raises UsageError if it has none."""
    import json

    from edgespec import kept_files

    try:
        text = kept_files.read(path, _MOST_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--warm {path} cannot be read: {error}") from None
    if not text.strip():
        raise click.UsageError(f"--warm {path} is empty; give {_FORM}")
    try:
        beginning = json.loads(text)
    except (ValueError, RecursionError):
        return {"prompt": text}
    if isinstance(beginning, dict) and beginning.keys() & {"messages", "tools"}:
        return {
            "prompt": _objects(path, beginning, "messages"),
            "tools": _objects(path, beginning, "tools"),
        }
    raise click.UsageError(f"--warm {path} is JSON without messages; give {_FORM}")


def _objects(path: Path, beginning: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values = beginning.get(name) or []
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise click.UsageError(f'--warm {path}: "{name}" is not a list of objects; give {_FORM}')
    return values
