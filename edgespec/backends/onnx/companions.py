"""The JSON files that lie beside an ONNX graph: configurations and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import ModelError

DEFAULT_N_CTX = 8192


def find(folder: Path, name: str) -> Path | None:
    """Return the path of a file beside a model, None where there is none. For a graph in a folder
    onnx/ it may lie in the folder above, as in repositories of the hub.
    """
    folders = (folder, folder.parent) if folder.name == "onnx" else (folder,)
    return next((f / name for f in folders if (f / name).is_file()), None)


def read(folder: Path, name: str) -> dict[str, Any]:
    """Return a JSON file beside a model, {} where there is none. Raises ModelError."""
    path = find(folder, name)
    if path is None:
        return {}
    try:
        found: Any = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}; fetch it again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} holds no JSON object; fetch it again")
    return found


def settings(folder: Path) -> dict[str, Any]:
    """Return config.json; of a model that also sees or hears, what it says of the text model."""
    config = read(folder, "config.json")
    return config | section(config, "text_config")


def section(config: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a nested table of a configuration, {} where it is not there."""
    for name in names:
        found = config.get(name)
        config = found if isinstance(found, dict) else {}
    return config


def n_ctx_train(folder: Path) -> int:
    """Return the tokens of context that the model was trained for, DEFAULT_N_CTX if unknown."""
    genai = section(read(folder, "genai_config.json"), "model").get("context_length")
    config = settings(folder)
    own = config.get("max_position_embeddings") or config.get("n_positions")
    return int(genai or own or DEFAULT_N_CTX)
