"""The JSON files that lie next to an ONNX graph: configurations and tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import ModelError
from ..context_length import LEAST
from ..files import find as find
from ..files import read_json

_MOST = 1 << 30  # tokens of context, the largest number that a configuration has


def read(folder: Path, name: str) -> dict[str, Any]:
    """Return the contents of a JSON file next to a model, {} if there is none. Raises
    ModelError.
    """
    path = find(folder, name)
    return read_json(path) if path else {}


def settings(folder: Path) -> dict[str, Any]:
    """Return the contents of config.json. For a multimodal model, the settings of its text model
    replace settings of the same name.
    """
    config = read(folder, "config.json")
    return config | section(config, "text_config")


def section(config: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a nested table of a configuration, {} if it does not exist."""
    for name in names:
        part = config.get(name)
        config = part if isinstance(part, dict) else {}
    return config


def number(folder: Path, table: dict[str, Any], *names: str) -> int:
    """Return the value of the first of these names that is in a table, 0 if none is. Raises
    ModelError if the value is not a whole number of a plausible size.

    folder: the folder of the table's file, for the message.
    """
    for name in names:
        if given := table.get(name):
            if type(given) is not int or not 0 < given <= _MOST:
                raise ModelError(
                    f"{folder}: {name} is {given!r:.40}; a number of at most {_MOST} is expected: "
                    "fetch its configuration again"
                )
            return given
    return 0


def n_ctx_train(folder: Path) -> int:
    """Return the context length in tokens that the model was trained for, LEAST if unknown."""
    genai = section(read(folder, "genai_config.json"), "model")
    own = ("max_position_embeddings", "n_positions")
    return (
        number(folder, genai, "context_length") or number(folder, settings(folder), *own) or LEAST
    )
