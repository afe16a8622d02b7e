"""The verifier over a model in this process."""

import numpy as np
import pytest

from edgespec import SamplingParams, ToyModel
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.verifiers.local import LocalVerifier


class Restricting(ToyModel):
    """Rows of which only some of the largest logits are fetched."""

    top = None

    def restrict(self, top):
        self.top = top


@pytest.mark.parametrize(("params", "options", "truncate", "top"), [
    ({}, {}, True, 8), ({}, {}, False, 1), ({}, {"drafts": False}, True, 1),
    ({"disable_spec_decode": True}, {}, True, 1), ({"logprobs": 1}, {}, True, 0),
    ({"temperature": 1.0, "top_k": 40}, {}, True, 40), ({"temperature": 1.0}, {}, True, 0),
])  # fmt: skip
def test_rows_hold_what_sources_of_trees_learn_from(params, options, truncate, top):
    model = Restricting(np.full((8, 8), 1 / 8), truncate=truncate)
    verifier = LocalVerifier(model, **options)
    list(verifier.begin(Request([1], SamplingParams(**params), SeededRandomness(None))))
    assert model.top == top
