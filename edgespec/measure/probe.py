"""A process that evaluates a model with the libllama that its environment names.

It answers each line of stdin with a line of JSON: "read" with the perplexity of a text and the
likeliest token at each position, any other line with the seconds of the widths in WIDTHS.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from ..config import EngineConfig
from ..costs.measuring import fill, timed
from ..loading.models import open_model
from .formats import TEXT, read

WIDTHS = (1, 2, 4, 8)
_N_CACHED, _N_READ = 128, 512


def main() -> None:
    """Open the model that the first argument names, and answer until stdin ends."""
    with contextlib.closing(open_model(Path(sys.argv[1]), EngineConfig(n_ctx=1024))) as model:
        for line in sys.stdin:
            if line == "read\n":
                tokens = model.tokenizer.encode(TEXT)[:_N_READ]
                perplexity, likeliest = read(model, tokens)
                answer: list[object] = [perplexity, likeliest.tolist()]
            else:
                fill(model, _N_CACHED)
                timed(model, 1)
                answer = [timed(model, width) for width in WIDTHS]
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
