"""Memory with real weights: the text stays, and comes in fewer steps the second time."""

import pytest

import edgespec
from tests.helpers import libllama

libllama.require()

PROMPT = "Here is what a river does in spring:"
TEXT = "In spring the Zargle flows from the moon key of Oberon to the seven green frames of Ilm. "


def engine(path, **speculative):
    config = {"method": "suffix,memory", "num_speculative_tokens": 8, "draft_p_min": 0.1}
    return edgespec.load(
        path, None, n_ctx=512, batch_invariant=True, speculative_config=config | speculative
    )


def from_memory(done):
    return done.stats.drafts_by_source.get("memory", {}).get("accepted", 0)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_CORPUS", str(tmp_path))


@pytest.mark.long("two engines with real weights; tests/unit/decoding/test_kept.py has toys")
def test_an_answer_is_remembered_from_one_process_to_the_next(smollm2, kept):
    with engine(smollm2, draft_memory="disk") as first:
        plain = first.generate(PROMPT, max_tokens=40, disable_spec_decode=True)
        once = first.generate(PROMPT, max_tokens=40)
        other = first.generate(PROMPT, max_tokens=40, owner="somebody else")
    with engine(smollm2, draft_memory="disk") as second:
        twice = second.generate(PROMPT, max_tokens=40)
    assert plain.token_ids == once.token_ids == other.token_ids == twice.token_ids
    assert from_memory(once) < 8
    assert from_memory(other) < 8
    assert from_memory(twice) > 24
    assert twice.stats.num_spec_steps < once.stats.num_spec_steps


@pytest.mark.long("real weights; tests/unit/corpus has documents of toys")
def test_a_document_is_drafted_from(smollm2, kept, tmp_path):
    document = tmp_path / "document.txt"
    with engine(smollm2, draft_memory="off") as plain:
        expected = plain.generate(PROMPT, max_tokens=40)
    document.write_text(TEXT + expected.text + TEXT, encoding="utf-8")
    with engine(smollm2, draft_memory="off", draft_corpus=(document,)) as drafting:
        found = drafting.generate(PROMPT, max_tokens=40)
    assert found.token_ids == expected.token_ids
    assert from_memory(expected) == 0
    assert from_memory(found) > 16
