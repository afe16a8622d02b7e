"""Reading of texts with pictures by a model."""

import numpy as np

from edgespec.backends.tiles import tiles_in


def read(model, tokens, n_logits=0):
    """Let a model read text and pictures; return the rows of the last tokens."""
    places, at = [*tiles_in(tokens), range(len(tokens), len(tokens))], 0
    rows = np.empty(0)
    for place in places:
        if text := tokens[at : place.start]:
            rows = model.decode(text, n_logits if place.stop == len(tokens) else 0).logits
        if place:
            model.decode(tokens[place.start : place.stop], 0)
        at = place.stop
    return rows.copy()
