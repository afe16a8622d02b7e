"""Tiny targets with MTP layers, assistants and DFlash heads through `load`: the text is that of the
target.
"""

import pytest

import edgespec
from tests.helpers import libllama, tiny_dflash, tiny_gemma4, tiny_models, tiny_mtp
from tests.helpers.selection import every

llama_cpp = libllama.require()

pytestmark = pytest.mark.llama_cpp

KINDS = [("hy_v3", 1), ("hy_v3", 3), ("mimo2", 2), ("qwen35", 1), ("qwen35moe", 1)]
TEXTS = ("hello world", "abc", "The quick brown fox")
SAMPLING = ({}, {"temperature": 0.8, "seed": 7})
FIXED = {"method": "draft_model", "draft_p_min": 0.0, "num_speculative_tokens": 3}


def drafted(engine, n=60):
    """Return how many tokens were drafted and accepted while the text stayed the same."""
    found = [0, 0]
    for text in TEXTS:
        for sampling in SAMPLING:
            options = {"max_tokens": n, "ignore_eos": True} | sampling
            plain = engine.generate(text, **options, disable_spec_decode=True)
            answer = engine.generate(text, **options)
            assert answer.token_ids == plain.token_ids
            found[0] += answer.stats.num_draft_tokens
            found[1] += answer.stats.num_accepted_draft_tokens
    return found


@pytest.mark.parametrize("kind", every(2, KINDS, "more kinds of MTP layers"), ids=str)
@pytest.mark.parametrize("top_k", [1, 3])
def test_text_with_layers_in_the_targets_file_equals_plain(tmp_path, kind, top_k):
    weights = tiny_mtp.guessing_weights(*kind, noise=0.3)
    path = tiny_mtp.write(tmp_path, *kind, weights=weights)
    method = FIXED | {"options": {"top_k": top_k}}
    with edgespec.load(path, n_ctx=256, n_threads=1, speculative_config=method) as engine:
        assert engine.describe()["draft"]["file"] == path.name
        n_drafted, n_accepted = drafted(engine)
    assert 0 < n_accepted < n_drafted


def test_layers_that_guess_right_are_accepted(tmp_path):
    weights = tiny_mtp.guessing_weights("hy_v3", 3)
    path = tiny_mtp.write(tmp_path, "hy_v3", 3, weights=weights)
    with edgespec.load(path, n_ctx=256, n_threads=1, speculative_config=FIXED) as engine:
        answer = engine.generate("hello", max_tokens=60, ignore_eos=True)
    assert answer.stats.num_accepted_draft_tokens >= 40
    assert answer.stats.acceptance_histogram[3] > 10


def test_a_file_beside_its_target(tmp_path):
    weights = tiny_mtp.guessing_weights("hy_v3", noise=0.3)
    target = tiny_mtp.write(tmp_path, "hy_v3", weights=weights)
    sidecar = tiny_mtp.write(tmp_path, "hy_v3", weights=weights, alone=True)
    with edgespec.load(target, sidecar, n_ctx=256, speculative_config=FIXED) as engine:
        assert engine.describe()["draft"]["file"] == sidecar.name
        n_drafted, n_accepted = drafted(engine)
    assert 0 < n_accepted < n_drafted
    with pytest.raises(edgespec.ConfigError, match="is a trained head, which only drafts"):
        edgespec.load(sidecar)


@pytest.mark.parametrize("top_k", [1, 3])
def test_text_with_an_assistant_equals_plain(tmp_path, top_k):
    weights, own = tiny_gemma4.guessing_weights(noise=0.03)
    target = tiny_gemma4.write_target(tmp_path, weights)
    assistant = tiny_gemma4.write_assistant(tmp_path, own)
    method = FIXED | {"options": {"top_k": top_k}}
    options = {"n_ctx": 256, "n_threads": 1, "speculative_config": method}
    with edgespec.load(target, assistant, **options) as engine:
        assert engine.describe()["draft"]["file"] == assistant.name
        n_drafted, n_accepted = drafted(engine)
    assert 0 < n_accepted < n_drafted
    with pytest.raises(edgespec.ConfigError, match="is a trained head, which only drafts"):
        edgespec.load(assistant)


def test_an_assistant_that_guesses_right_is_accepted(tmp_path):
    weights, own = tiny_gemma4.guessing_weights()
    target = tiny_gemma4.write_target(tmp_path, weights)
    assistant = tiny_gemma4.write_assistant(tmp_path, own)
    with edgespec.load(target, assistant, n_ctx=256, speculative_config=FIXED) as engine:
        answer = engine.generate("hello", max_tokens=60, ignore_eos=True)
    assert answer.stats.num_accepted_draft_tokens >= 40
    with edgespec.load(target, assistant, n_ctx=256, n_threads=1) as engine:
        engine.measure()
        assert drafted(engine, 20)[0] >= 0


@pytest.mark.parametrize("top_k", [1, 3])
def test_text_with_dflash_equals_plain(tmp_path, top_k):
    target = tiny_models.write(tmp_path, "llama")
    head = tiny_dflash.write(tmp_path / "dflash.gguf")
    method = FIXED | {"num_speculative_tokens": 8, "options": {"top_k": top_k}}
    with edgespec.load(target, head, n_ctx=256, n_threads=1, speculative_config=method) as engine:
        n_drafted, _ = drafted(engine)
    assert n_drafted > 0


def test_a_targets_own_layers_are_used_unasked(tmp_path):
    """The controller decides if they pay; plain decoding and other drafts stay possible."""
    path = tiny_mtp.write(tmp_path, "hy_v3", weights=tiny_mtp.guessing_weights("hy_v3"))
    with edgespec.load(path, n_ctx=256, n_threads=1) as engine:
        assert engine.describe()["draft"]["file"] == path.name
        engine.measure()
        assert drafted(engine, 20)[0] >= 0
    for options in ({"draft": None}, {"speculative_config": {"method": "suffix"}}):
        with edgespec.load(path, n_ctx=256, n_threads=1, **options) as engine:
            assert engine.describe()["draft"] is None


def test_a_hybrid_target_pays_for_going_back_only_while_its_head_reads(tmp_path, monkeypatch):
    path = tiny_mtp.write(tmp_path, "qwen35", weights=tiny_mtp.guessing_weights("qwen35"))
    made, new_context = [], llama_cpp.hidden.new_context
    monkeypatch.setattr(
        llama_cpp.hidden, "new_context", lambda *a: made.append(a) or new_context(*a)
    )
    options = {"n_ctx": 256, "n_threads": 1, "n_batch": 64}
    with edgespec.load(path, None, **options) as engine:
        engine.generate("hello", max_tokens=4)
        assert engine.target.capabilities.rollback == 0
    assert not made
    with edgespec.load(path, speculative_config=FIXED, **options) as engine:
        made.clear()
        engine.generate("hello world " * 10, max_tokens=4)
        assert engine.target.capabilities.rollback > 0
        assert not made  # the prompt is read in pieces
        engine.generate("hello", max_tokens=4, disable_spec_decode=True)
        assert engine.target.capabilities.rollback == 0


def test_a_request_that_ends_early_leaves_a_usable_engine(tmp_path):
    weights = tiny_mtp.guessing_weights("hy_v3", 2, noise=0.3)
    path = tiny_mtp.write(tmp_path, "hy_v3", 2, weights=weights)
    with edgespec.load(path, n_ctx=256, n_threads=1, speculative_config=FIXED) as engine:
        expected = engine.generate("hello world", max_tokens=20, ignore_eos=True).token_ids
        for n in range(8):
            events = engine.stream("something else", max_tokens=60, ignore_eos=True)
            for i, _ in enumerate(events):
                if i == n:
                    break
            events.close()
            again = engine.generate("hello world", max_tokens=20, ignore_eos=True)
            assert again.token_ids == expected
