"""Predicted outputs with real weights: an edited text is predicted."""

from __future__ import annotations

import pytest

import edgespec

pytestmark = pytest.mark.llama_cpp

ASKED = "Write a Python function that reverses a list."


@pytest.fixture(scope="module")
def engine(smollm2):
    chain = {"method": "suffix", "num_speculative_tokens": 8, "draft_p_min": 0.2}
    options = {"n_ctx": 512, "n_threads": 1, "batch_invariant": True}
    with edgespec.load(smollm2, speculative_config=chain, **options) as made:
        yield made


@pytest.mark.long("exact equality is a rule of the toy's tests; this is its gain with real weights")
def test_an_edited_text_as_prediction_changes_no_token_and_is_mostly_accepted(engine):
    plain = engine.chat().send(ASKED, max_tokens=48, disable_spec_decode=True)
    edited = plain.text.replace("list", "row", 2)
    assert edited != plain.text
    for prediction, least in ((plain.text, 40), (edited, 24), ("no such text", 0)):
        done = engine.chat().send(ASKED, max_tokens=48, prediction=prediction)
        assert done.token_ids == plain.token_ids
        assert done.stats.num_accepted_prediction_tokens >= least
    without = engine.chat().send(ASKED, max_tokens=48)
    assert without.token_ids == plain.token_ids
    assert without.stats.num_accepted_prediction_tokens == 0
