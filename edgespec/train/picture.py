"""A picture of how a training went: the loss, and the acceptance of drafts that were held out."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import kept_files

PICTURE = "training.png"


def draw(result: Path, path: Path) -> bool:
    """Draw the history in the worker's result.json as a PNG; return False if there is no history,
    or no matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    if not result.exists():
        return False
    history: Sequence[Mapping[str, Any]] = kept_files.read_json(result, dict)["history"]
    figure = Figure(figsize=(10, 4), layout="constrained")
    loss, acceptance = figure.subplots(1, 2)
    trained = [each for each in history if each["divergence"]]  # not the weights it began with
    for i in range(min((len(each["divergence"]) for each in trained), default=0)):
        values = [each["divergence"][i] for each in trained]
        loss.plot([each["step"] for each in trained], values, label=f"token {i + 1}")
    loss.set(title="divergence from the model, a batch", xlabel="step", ylabel="nats")
    loss.legend(fontsize="small")
    for n in range(len(history[0]["acceptance_length"])):
        lengths = [each["acceptance_length"][n] for each in history]
        acceptance.plot([each["step"] for each in history], lengths, label=f"drafts of {n + 1}")
    acceptance.set(title="held out", xlabel="step", ylabel="mean acceptance length")
    acceptance.legend(fontsize="small")
    content = io.BytesIO()
    figure.savefig(content, format="png")
    kept_files.replace(path, [content.getvalue()])
    return True
