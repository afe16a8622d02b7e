"""Predicted outputs: they are drafts, they change no text, and what became of them is counted."""

from __future__ import annotations

import pytest

import edgespec
from edgespec import ConfigError, ToyTokenizer
from edgespec.decoding.steps import count_predicted
from edgespec.types import Draft, Stats
from tests.unit.decoding.test_engine import VOCAB, cycle

TREE = {"method": "suffix"}
CHAIN = {"method": "suffix", "num_speculative_tokens": 4, "draft_p_min": 0.1}


@pytest.fixture(params=[CHAIN, TREE], ids=["chain", "tree"])
def engine(request):
    """Make an engine that counts up from the prompt's last letter."""
    target = cycle(n_ctx=60)
    with edgespec.assemble(
        target, ToyTokenizer(VOCAB, eog=[8]), speculative_config=request.param
    ) as made:
        yield made


def test_a_prediction_that_comes_true_is_accepted(engine):
    plain = engine.generate("a", max_tokens=7)
    done = engine.generate("a", prediction="bcdefgh", max_tokens=7, num_draft_tokens=4)
    assert done.text == plain.text == "bcdefgh"
    assert plain.stats.num_accepted_prediction_tokens == 0


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize("prediction", [
    "", "bcdefgha", "bcde.fgh", "hgfedcba", "bcdbcdbcdbcd", [1, 2, 3, 4, 5], [], "bcdefgh" * 50,
])  # fmt: skip
def test_no_prediction_changes_the_text(engine, prediction, settings):
    plain = engine.generate("aab", max_tokens=30, disable_spec_decode=True, **settings)
    done = engine.generate("aab", prediction=prediction, max_tokens=30, **settings)
    assert done.token_ids == plain.token_ids


def test_what_was_drafted_of_it_is_counted():
    with edgespec.assemble(
        cycle(n_ctx=60), ToyTokenizer(VOCAB, eog=[8]), speculative_config=CHAIN
    ) as made:
        done = made.generate("ga", prediction="bcdaaaa", max_tokens=5).stats
        assert (done.num_accepted_prediction_tokens, done.num_rejected_prediction_tokens) == (3, 1)
        after = made.generate("ga", max_tokens=5).stats
        assert after.num_draft_tokens == 0


@pytest.mark.parametrize(("parents", "tokens", "accepted", "counts"), [
    ((), (3, 4, 9), (3, 4), (2, 0)),
    ((), (3, 9, 4), (3,), (1, 0)),
    ((-1, -1, 0, 1), (3, 7, 4, 5), (7, 5), (0, 2)),
    ((-1, -1, 1), (7, 3, 4), (3, 4), (2, 0)),
])  # fmt: skip
def test_tokens_of_a_tree_count_where_their_own_path_is_the_prediction(
    parents, tokens, accepted, counts
):
    stats, known = Stats(), {(1, 2, 3), (2, 3, 4)}
    count_predicted(stats, known, [1, 2], Draft(tokens, parents=parents), accepted)
    assert (stats.num_accepted_prediction_tokens, stats.num_rejected_prediction_tokens) == counts


def test_a_prompt_of_one_token_has_no_two_before_its_answer():
    stats = Stats()
    count_predicted(stats, {(1, 2, 3)}, [1], Draft((2, 3)), (2, 3))
    assert stats.num_accepted_prediction_tokens == 1


@pytest.mark.parametrize("prediction", [7, None, [99], ["a"], b"bytes"])
def test_what_cannot_be_predicted_is_refused(engine, prediction):
    if prediction is None:
        prediction = object()
    with pytest.raises(ConfigError):
        engine.generate("a", prediction=prediction)


def test_a_chat_takes_a_prediction(engine):
    engine.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    done = engine.chat().send("a", prediction="bcdef", max_tokens=5)
    assert done.text == "bcdef"
