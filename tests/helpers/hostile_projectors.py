"""`python -m tests.helpers.hostile_projectors TEXT FOLDER` loads a model with each projector in a
folder, shows it a picture, and prints what happened: a line for each file, and JSON at the end.
"""

import json
import sys
from pathlib import Path

from edgespec import EdgeSpecError, EngineConfig, picture
from edgespec.backends import llama_cpp
from edgespec.backends.tiles import tile_of, tiles_in
from tests.helpers.hostile_pictures import audited, peak, reset_peak
from tests.helpers.projector_files import noise


def main():
    text, folder = map(Path, sys.argv[1:])
    shown = picture(noise("mlp"))
    told = {"refused": 0, "seen with": 0, "says": []}
    events, highest = None, 0
    for path in [text, *sorted(folder.glob("*.gguf"))]:
        print(path.name, flush=True)
        reset_peak()
        before = peak()
        try:
            config = EngineConfig(n_ctx=2048, n_threads=1, mmproj=str(path))
            model = llama_cpp.LlamaCppModel(text, config)
            try:
                tokens = model.eyes.read(shown)
                for place in tiles_in(tokens):
                    model.eyes.encode(tile_of(tokens[place.start : place.stop]))
                told["seen with"] += 1
            finally:
                model.close()
        except EdgeSpecError as error:
            told["refused"] += 1
            told["says"].append(str(error))
        if events is None:  # the first file has imported what is needed
            events = audited()
        elif peak() - before > highest:
            highest, told["largest"] = peak() - before, path.name
    print(json.dumps(told | {"events": events, "bytes": highest}))


if __name__ == "__main__":
    main()
