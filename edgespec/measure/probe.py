"""A process that evaluates a model with the libllama that its environment names.

It answers each line of stdin with a line of JSON: "read" with logits after the tokens of a text,
any other line with the seconds of the widths in WIDTHS.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from ..backends.base import FileModel
from ..config import EngineConfig
from ..costs.measuring import fill, timed
from ..errors import ModelError
from ..loading.models import open_model
from .formats import TEXT

WIDTHS = (1, 2, 4, 8)
_N_CACHED = 128
_READ = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 128)  # tokens at once: kernels differ by number
_N_LOGITS = 256  # of each row


def logits(model: FileModel) -> list[list[float]]:
    """Read a text and return some logits of each row, after evaluations of all lengths in _READ.
    Raises ModelError for a model whose memory cannot be cut.
    """
    able = model.capabilities
    if not able.truncate:
        raise ModelError(f"{model.path.name} has a recurrent state, which is not compared")
    tokens, rows = model.tokenizer.encode(TEXT), []
    for width in _READ:
        part, tokens = tokens[:width], tokens[width:]
        for row in model.decode(part, min(len(part), able.max_rows)).logits:
            rows.append(row[:: max(1, len(row) // _N_LOGITS)].tolist())
    return rows


def main() -> None:
    """Open the model that the first argument names, and answer until stdin ends."""
    with contextlib.closing(open_model(Path(sys.argv[1]), EngineConfig(n_ctx=1024))) as model:
        for line in sys.stdin:
            answer: list[list[float]] | list[float]
            if line == "read\n":
                answer = logits(model)
            else:
                fill(model, _N_CACHED)
                timed(model, 1)
                answer = [timed(model, width) for width in WIDTHS]
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
