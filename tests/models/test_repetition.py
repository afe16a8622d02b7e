"""Endless repetition in real tokens: it is seen where it is, and not in texts that are right so."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgespec
from edgespec import RepetitionDetection, SamplingParams
from edgespec.backends.llama_cpp import tokenizer as llama_cpp_tokenizer
from edgespec.decoding.output import Output
from tests.helpers.weights import FOLDER

pytestmark = pytest.mark.llama_cpp

TEXTS = sorted((Path(__file__).parent.parent / "data" / "repeating").iterdir())
ENDLESS = RepetitionDetection.endless()
FRANCE = "What is the capital of France?"


@pytest.fixture(scope="module", params=["smollm2-135m", "qwen2.5-coder-0.5b"])
def tokenizer(request, smollm2):
    path = smollm2 if request.param == "smollm2-135m" else FOLDER / f"{request.param}.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is not in $EDGESPEC_TEST_MODELS")
    with llama_cpp_tokenizer.vocabulary(path) as made:
        yield made


def ended(tokenizer, tokens):
    output = Output(tokenizer, SamplingParams(repetition_detection=ENDLESS))
    output.cut(tokens)
    return output.finish_reason


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_a_text_that_repeats_itself_for_a_reason_is_not_ended(tokenizer, path):
    """Tables, code, data, lists that count, pictures, songs."""
    assert ended(tokenizer, tokenizer.encode(path.read_text(encoding="utf-8"))) is None


@pytest.mark.parametrize("span", [
    "la femme au martyre, ",
    "I'm sorry, but I can't assist with that. Let me know if there is anything else. ",
    "Wait, the sum is 12, and 12 is not 13, so I was wrong. Let me add the numbers again, this "
    "time from the end: 5 and 4 are 9, and 3 more are 12. So the sum is 12.\n\n",
    "\n", "!", " the the",
])  # fmt: skip
def test_a_span_that_comes_without_end_is_seen(tokenizer, span):
    begun = tokenizer.encode("It is so. ")
    tokens = tokenizer.encode(span, add_special=False)
    assert ended(tokenizer, begun + tokens * 20) is None
    assert ended(tokenizer, begun + tokens * 512) == "repetition"


def answer(smollm2, rule, **options):
    with edgespec.load(smollm2, n_ctx=1024, batch_invariant=True, **options) as engine:
        return engine.chat().send(FRANCE, repetition_detection=rule)


SPECULATES = {"speculative_config": {"method": "suffix", "num_speculative_tokens": 8}}
PLAIN = {"speculative_config": {"method": "none"}}


def same_ending(smollm2, rule):
    """Return the answer, which is the same with drafts, although they overshoot its end."""
    drafted, plain = (answer(smollm2, rule, **options) for options in (SPECULATES, PLAIN))
    assert drafted.token_ids == plain.token_ids
    assert drafted.text == plain.text
    assert drafted.finish_reason == plain.finish_reason == "repetition"
    assert drafted.stats.num_accepted_draft_tokens > 0
    assert drafted.stats.speedup is None
    return drafted


@pytest.mark.long("two loads of real weights; toy models end so in tests/unit/decoding")
def test_a_real_answer_ends_at_the_same_token_with_and_without_drafts(smollm2):
    done = same_ending(smollm2, {"max_pattern_size": 16, "min_count": 5})
    n = done.stats.num_repeated_tokens
    assert 5 <= n <= 5 * 16
    assert n % 5 == 0
    assert done.token_ids[-n:] == 5 * done.token_ids[-n // 5 :]


@pytest.mark.long("over a thousand tokens of real weights")
def test_the_rule_of_the_command_line_ends_a_real_answer(smollm2):
    done = same_ending(smollm2, ENDLESS)
    assert len(done.token_ids) < 1000
    assert done.stats.num_repeated_tokens >= 512
