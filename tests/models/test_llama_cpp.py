"""The llama.cpp backend and everything above it, on real weights."""

import contextlib
import logging
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edgespec
from edgespec import (
    ConfigError,
    ContextFull,
    EngineConfig,
    ModelNotFound,
    NotAGGUF,
    OutOfMemory,
    TruncatedModel,
    UnknownArchitecture,
    VocabularyMismatch,
)
from edgespec.costs.measuring import measure
from edgespec.decoding.interrupt import Interrupt
from edgespec.loading.models import open_model
from edgespec.sampling import rules
from tests.helpers import libllama
from tests.helpers.selection import first, sample, share

llama_cpp = libllama.require()

pytestmark = pytest.mark.llama_cpp

PROMPT = "Repeat after me: one two three four, one two three four, one two"


@pytest.fixture(scope="module")
def smollm2_engine(smollm2):
    with edgespec.load(smollm2, None, n_ctx=1024) as engine:
        yield engine


@pytest.fixture(scope="module")
def drafted_engine(smollm2, small_draft):
    with edgespec.load(
        smollm2, small_draft, n_ctx=1024, speculative_config={"draft_p_min": 0.0}
    ) as engine:
        yield engine


def assert_equal_to_plain(engine, prompt, n):
    """Token for token; where they part, at a near-tie below the noise between batch widths."""
    plain = engine.generate(prompt, max_tokens=n, disable_spec_decode=True).token_ids
    done = engine.generate(prompt, max_tokens=n)
    if done.token_ids != plain:
        i = next(i for i, (a, b) in enumerate(zip(plain, done.token_ids, strict=False)) if a != b)
        row = engine.generate(
            [*prompt, *plain[:i]], max_tokens=1, logprobs=2, disable_spec_decode=True
        )
        (first, p), (second, q) = row.logprobs[0].top
        assert {first, second} == {plain[i], done.token_ids[i]}
        assert p - q < 0.5
    return done


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("text", first(1, [
    PROMPT, "The history of the bicycle begins", "def fibonacci(n):\n", "A B C A B C A B C",
], "more texts of real weights"))  # fmt: skip
def test_greedy_equals_plain(request, smollm2_engine, drafted, text):
    engine = request.getfixturevalue("drafted_engine") if drafted else smollm2_engine
    prompt = engine.encode(text)
    done = assert_equal_to_plain(engine, prompt, 48)
    assert done.stats.num_draft_tokens > 0 or not drafted


@pytest.mark.long("reads long prompts with real weights")
def test_rejections_and_full_acceptances_both_happen(drafted_engine):
    """In one of three answers, for what is accepted depends on the rounding of kernels."""
    accepted = Counter()
    for text in ("The history of the bicycle begins", "one two three one two", "def add(a, b):"):
        histogram = drafted_engine.generate(text, max_tokens=96).stats.acceptance_histogram
        accepted.update(dict(enumerate(histogram)))
    assert accepted[0] > 0
    assert accepted[4] > 0
    assert max(accepted) == 4


@pytest.mark.parametrize("acceptance", first(1, rules.names(), "more rules with real weights"))
def test_sampled_text_is_text(smollm2, small_draft, acceptance):
    with edgespec.load(
        smollm2,
        small_draft,
        n_ctx=512,
        speculative_config={
            "acceptance": acceptance,
            "num_speculative_tokens": 4,
            "method": "draft_model",
        },
    ) as engine:  # with "rejection" a text depends on drafts, and lookups remember
        options = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 5, "max_tokens": 32}
        done = engine.generate("Once upon a time", **options)
        assert len(done.token_ids) == 32
        assert done.stats.num_accepted_draft_tokens > 0
        assert engine.generate("Once upon a time", **options).token_ids == done.token_ids


def test_logprobs_while_speculating(drafted_engine):
    prompt = drafted_engine.encode("The capital of France is")
    options = {"max_tokens": 16, "logprobs": 3}
    plain = drafted_engine.generate(prompt, **options, disable_spec_decode=True)
    drafted = drafted_engine.generate(prompt, **options)
    same = [a == b for a, b in zip(drafted.token_ids, plain.token_ids, strict=True)]
    n_same = [*same, False].index(False)
    assert n_same >= 4  # a near-tie may part them later on
    pairs = list(zip(drafted.logprobs, plain.logprobs, strict=True))
    for ours, theirs in pairs[:n_same]:
        assert ours.logprob == pytest.approx(theirs.logprob, abs=0.25)
        assert ours.top[0][1] == ours.logprob


def test_second_turn_prefills_only_what_is_new(smollm2_engine):
    chat = smollm2_engine.chat()
    chat.send("Name three colours.", max_tokens=24)
    new_turn = smollm2_engine.tokenizer.encode(
        "<|im_end|>\n<|im_start|>user\nAnd three animals?<|im_end|>\n<|im_start|>assistant\n",
        add_special=False,
    )
    second = chat.send("And three animals?", max_tokens=24)
    last_not_cached = second.stats.num_prefilled_tokens - len(new_turn)
    assert last_not_cached in (0, 1)  # 1: the first answer ended by max_tokens, not by EOS
    assert second.stats.num_cached_tokens > 40


@pytest.mark.long("reads long prompts with real weights")
def test_prefill_events_and_cancellation_inside_a_chunk(smollm2_engine):
    prompt = [random.Random(1).randrange(1000, 40000) for _ in range(1000)]
    events = [e for e in smollm2_engine.stream(prompt, max_tokens=1) if e.type == "prefill"]
    assert [(e.n_done, e.n_total) for e in events] == [(0, 1000), (480, 1000), (960, 1000)]
    other = [token + 1 for token in prompt]
    timer = threading.Timer(0.3, smollm2_engine.cancel)
    timer.start()
    done = smollm2_engine.generate(other, max_tokens=5)
    timer.join()
    assert done.finish_reason == "cancelled"
    assert done.token_ids == ()
    fresh = smollm2_engine.generate("The capital of France is", max_tokens=5)
    assert "Paris" in fresh.text


@pytest.fixture(scope="module")
def expected(smollm2, small_draft):
    with edgespec.load(smollm2, small_draft, n_ctx=1024, n_threads=1) as engine:
        return engine.generate(PROMPT, max_tokens=16).token_ids


@pytest.fixture(scope="module")
def victim(smollm2, small_draft):
    """Return an engine to be cancelled; width noise is kept out by one thread."""
    with edgespec.load(smollm2, small_draft, n_ctx=1024, n_threads=1) as engine:
        yield engine


@settings(max_examples=share(50, 16), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    n_prompt=st.integers(1, 150), n_events=st.integers(0, 12), how=st.sampled_from(
        ["close", "cancel", "cancel from a thread", "time limit"]
    ), delay=st.floats(0, 0.02), temperature=st.sampled_from([0.0, 0.9]),
)  # fmt: skip
def test_random_cancellations(victim, expected, n_prompt, n_events, how, delay, temperature):
    """After a cancellation anywhere the next request is that of a fresh engine."""
    rng = random.Random(n_prompt)
    prompt = [rng.randrange(100, 40000) for _ in range(n_prompt)]
    limit = delay if how == "time limit" else None
    timer = threading.Timer(delay, victim.cancel)
    if how == "cancel from a thread":
        timer.start()
    events = victim.stream(prompt, max_tokens=20, temperature=temperature, time_limit_s=limit)
    for i, _ in enumerate(events):
        if i >= n_events and how == "close":
            break
        if i >= n_events and how == "cancel":
            victim.cancel()
    events.close()
    if how == "cancel from a thread":
        timer.join()
    assert victim.generate(PROMPT, max_tokens=16).token_ids == expected


def test_what_went_where_is_told(smollm2_engine):
    placement = smollm2_engine.describe()["model"]["placement"]
    assert any("KV" in name for name in placement)
    assert any("model" in name for name in placement)


def test_native_log_goes_to_logging(smollm2, caplog, capfd):
    with caplog.at_level(logging.DEBUG, "edgespec"), edgespec.load(smollm2, None, n_ctx=256):
        pass
    assert any(r.name == "edgespec.llama_cpp" for r in caplog.records)
    assert capfd.readouterr().err == ""


def test_settings_that_do_not_do_what_they_seem_to_are_told(smollm2, caplog):
    with edgespec.load(smollm2, None, n_ctx=8192, speculative_config={"method": "none"}):
        assert caplog.text == ""
    asked = {"n_ctx": 8193, "n_gpu_layers": 7, "speculative_config": {"method": "none"}}
    with edgespec.load(smollm2, None, **asked):
        assert f"n_ctx=8193 is more than the 8192 tokens that {smollm2.stem}" in caplog.text
    assert ("n_gpu_layers=7 has no effect" in caplog.text) != bool(llama_cpp.all_gpus())


def test_layers_of_a_draft_model_without_a_gpu_are_told(smollm2, caplog):
    with edgespec.load(smollm2, smollm2, n_ctx=256, draft_options={"n_gpu_layers": 5}):
        told = "n_gpu_layers=5 of the draft model has no effect" in caplog.text
    assert told != bool(llama_cpp.all_gpus())


@pytest.mark.parametrize("options", first(2, [
    {"flash_attn": "on", "type_k": "q8_0", "type_v": "q8_0"}, {"n_batch": 64},
    {"flash_attn": "off"}, {"n_threads": 1, "n_threads_batch": 2}, {"use_extra_bufts": False},
], "more settings of real weights"))  # fmt: skip
def test_engine_options(smollm2, options):
    with edgespec.load(smollm2, None, n_ctx=512, **options) as engine:
        assert "Paris" in engine.generate("The capital of France is", max_tokens=5).text


def test_a_limit_of_threads_is_no_setting(smollm2):
    def native(model):
        count = llama_cpp.model.lib
        return count.llama_n_threads(model._context), count.llama_n_threads_batch(model._context)

    config = EngineConfig(n_ctx=256, n_threads=2, n_threads_batch=3)
    with contextlib.closing(open_model(smollm2, config)) as model:
        fingerprint = model.fingerprint()
        row = model.decode([1, 2, 3]).logits.copy()
        for one in (model, model.batched()):
            one.limit_threads(1)
            assert (one.thread_limit, native(one)) == (1, (1, 1))
        assert (model.n_threads, model.n_threads_batch) == (2, 3)
        assert model.fingerprint() == fingerprint
        model.truncate(0)
        assert np.array_equal(model.decode([1, 2, 3]).logits, row)
        for one in (model, model.batched()):
            one.limit_threads(0)
            assert native(one) == (2, 3)


def test_at_most_so_many_cores(smollm2):
    with edgespec.load(smollm2, None, n_ctx=256, n_threads=2, max_cores=1) as engine:
        assert engine.describe()["model"]["n_threads"] == 1


@pytest.fixture(scope="module")
def invariant(smollm2):
    model = open_model(smollm2, EngineConfig(n_ctx=1024, batch_invariant=True))
    yield model
    model.close()


@pytest.mark.parametrize("n_past", first(1, [40, 8, 600], "more lengths with real weights"))
def test_batch_invariant_rows_are_those_of_single_tokens(invariant, n_past):
    tokens = [(11 * i + 5) % 1000 for i in range(n_past + invariant.capabilities.max_rows)]
    invariant.truncate(0)
    invariant.decode(tokens[:n_past], n_logits=0)
    alone = [invariant.decode([token]).logits[0].copy() for token in tokens[n_past:]]
    for n in range(2, len(alone) + 1):
        invariant.truncate(n_past)
        rows = invariant.decode(tokens[n_past : n_past + n], n_logits=n).logits
        assert all(map(np.array_equal, rows, alone))
    invariant.truncate(0)
    rows = invariant.decode(tokens, n_logits=len(alone)).logits  # prompt and draft in one call
    assert all(map(np.array_equal, rows, alone))
    invariant.truncate(0)
    with pytest.raises(ValueError, match="at most"):
        invariant.decode(tokens, n_logits=len(alone) + 1)


def test_batch_invariant_says_what_it_promises(invariant, smollm2, monkeypatch):
    assert 1 < invariant.capabilities.max_rows <= 16
    assert invariant.placement["rows"].startswith("the same for 1 to ")
    assert invariant.switches() == {}
    monkeypatch.setattr("edgespec.backends.llama_cpp.model.most_equal_rows", lambda model: 1)
    differs = open_model(smollm2, EngineConfig(n_ctx=256, batch_invariant=True))
    assert differs.placement["rows"].startswith("differ")
    assert differs.capabilities.max_rows == 32
    differs.close()
    with pytest.raises(ConfigError, match="flash"):
        EngineConfig(batch_invariant=True, flash_attn="off")


def test_batch_invariant_text_is_plain_text_with_any_draft(smollm2, small_draft):
    prompts = ["Write a long story about a robot.", "List ten rivers:\n1.", PROMPT, PROMPT * 30]
    for depth, draft in ((4, None), (15, small_draft)):
        options = {"num_speculative_tokens": depth, "draft_p_min": 0.0}
        with edgespec.load(
            smollm2, draft, n_ctx=1024, batch_invariant=True, speculative_config=options
        ) as engine:
            for prompt in sample(prompts, 4):
                engine.generate(prompt, max_tokens=1)
                params = {"max_tokens": share(32, 2), "ignore_eos": True}
                plain = engine.generate(prompt, **params, disable_spec_decode=True)
                done = engine.generate(prompt, **params)
                assert done.token_ids == plain.token_ids
                assert done.stats.num_draft_tokens


def test_two_models_in_one_process_and_freed_memory(smollm2, smollm2_engine):
    for _ in range(3):
        with edgespec.load(smollm2, None, n_ctx=256) as other:
            a = other.generate("2 + 2 =", max_tokens=4)
        b = smollm2_engine.generate("2 + 2 =", max_tokens=4)
        assert a.token_ids == b.token_ids


@pytest.mark.long("fills a context of real weights; tests/contract has toys")
def test_context_full(smollm2):
    with edgespec.load(smollm2, None, n_ctx=256) as engine:
        done = engine.generate("Count: 1 2 3", ignore_eos=True)
        assert done.finish_reason == "context_full"
        assert len(done.token_ids) + done.stats.num_prompt_tokens == 257
        with pytest.raises(ContextFull, match="n_ctx"):
            engine.generate([5] * 257)
        assert engine.generate("2 + 2 =", max_tokens=2).token_ids


def test_detokenised_text_is_the_tokenizers_own(smollm2_engine):
    text = "Grüße, 世界! 🙂 naïve\n\ttabs"
    ids = smollm2_engine.encode(text)
    pieces = b"".join(smollm2_engine.tokenizer.piece(t) for t in ids)
    assert pieces.decode() == text


@pytest.mark.parametrize("n_ctx", first(1, [8, 1, 40], "more lengths with real weights"))
def test_contexts_too_small_for_a_batch(smollm2, n_ctx):
    with edgespec.load(smollm2, None, n_ctx=n_ctx) as engine:
        done = engine.generate(PROMPT, max_tokens=40, ignore_eos=True)
        assert len(done.token_ids) == 40


def test_ctrl_c_while_a_prompt_is_read_reaches_the_program(smollm2_engine, monkeypatch):
    """Python's own handler raises within a callback of native code, which would swallow it."""
    asked, ask = [], Interrupt.__call__

    def with_ctrl_c(interrupt):
        asked.append(True)
        if len(asked) == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return ask(interrupt)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(Interrupt, "__call__", with_ctrl_c)
            with pytest.raises(KeyboardInterrupt):
                smollm2_engine.generate([*range(1000, 1900)], max_tokens=1)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    again = smollm2_engine.generate(PROMPT, max_tokens=8)
    assert again.token_ids == smollm2_engine.generate(PROMPT, max_tokens=8).token_ids


def test_ctrl_c_ends_an_evaluation_half_way(smollm2):
    """What was appended until then is dropped; an evaluation that went on would keep all of it."""
    asked = []

    def abort():
        asked.append(True)
        if len(asked) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    config = EngineConfig(n_ctx=512, n_batch=512, n_threads=1)
    with contextlib.closing(open_model(smollm2, config)) as model:
        with pytest.raises(KeyboardInterrupt):
            model.decode([*range(1000, 1400)], abort=abort)
        assert model.n_past == 0
        model.decode([1, 2, 3])


LOADING = """
import logging, os, signal, sys, threading
import edgespec
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by jobs in a script's background
class CtrlC(logging.Handler):
    def emit(self, record):
        logging.getLogger("edgespec.llama_cpp").removeHandler(self)
        os.kill(os.getpid(), signal.SIGINT)
logging.getLogger("edgespec.llama_cpp").addHandler(CtrlC())
logging.getLogger("edgespec.llama_cpp").setLevel(logging.DEBUG)
logging.getLogger("edgespec.llama_cpp").addHandler(logging.NullHandler())
try:
    edgespec.load(sys.argv[1], None, n_ctx=256, speculative_config={"method": "none"})
    print("loaded")
except KeyboardInterrupt:
    print("stopped")
handler = signal.getsignal(signal.SIGINT)
print(handler is signal.default_int_handler)
with edgespec.load(sys.argv[1], None, n_ctx=256, speculative_config={"method": "none"}) as engine:
    print(engine.generate("Hello", max_tokens=3).stats.num_emitted_tokens)
"""


def test_ctrl_c_while_a_model_loads_ends_the_loading(smollm2):
    """The first line that native code logs comes through a callback, which would swallow it."""
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(smollm2)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["stopped", "True", "3"]
    assert done.stderr == ""


@pytest.mark.parametrize(
    "model", first(2, ["smollm2", "gemma", "qwen_pair"], "more vocabularies of real models")
)
def test_our_reader_sees_what_the_engine_sees(request, model):
    from edgespec.backends import llama_cpp

    found = request.getfixturevalue(model)
    for path in found if isinstance(found, tuple) else [found]:
        ours = llama_cpp.entries(path)
        with llama_cpp.vocabulary(path) as theirs:
            assert ours.vocab_size == theirs.vocab_size
            assert ours.tokens == [theirs.token_text(i) for i in range(theirs.vocab_size)]
            assert ours.text("tokenizer.chat_template") == (theirs.chat_template or "")
            special = ours.metadata["tokenizer.ggml.eos_token_id"]
            assert theirs.special()["eos_token"] == ours.tokens[special].decode()
        assert ours.data_end == path.stat().st_size


def test_pieces_for_two_threads(smollm2_engine):
    tokenizer = smollm2_engine.tokenizer

    def pieces(_):
        return [tokenizer._native_piece(token) for token in range(tokenizer.vocab_size)]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(pieces, range(2))
    assert first == second == pieces(0)


# Bad files.


def test_not_a_gguf(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"\x80PK not a model")
    with pytest.raises(NotAGGUF, match="begins with"):
        edgespec.load(path)


def test_missing(tmp_path):
    with pytest.raises(ModelNotFound):
        edgespec.load(tmp_path / "absent.gguf")


@pytest.mark.parametrize("keep", [4, 100, 20_000, 3_000_000, 90_000_000])
def test_truncated(smollm2, tmp_path, keep):
    path = tmp_path / "short.gguf"
    with smollm2.open("rb") as source:
        path.write_bytes(source.read(keep))
    with pytest.raises(TruncatedModel, match="fetch it again"):
        edgespec.load(path, None)


def test_unknown_architecture(smollm2, tmp_path):
    path = tmp_path / "odd.gguf"
    data = smollm2.read_bytes()
    old = struct.pack("<Q", 5) + b"llama"
    assert data.count(old) >= 1
    path.write_bytes(data.replace(old, struct.pack("<Q", 5) + b"lorem", 1))
    with pytest.raises(UnknownArchitecture, match="lorem"):
        edgespec.load(path, None)


def test_out_of_memory(smollm2):
    with pytest.raises(OutOfMemory, match="GiB are free; take a smaller n_ctx"):
        edgespec.load(smollm2, None, n_ctx=2_000_000_000)


def test_a_context_beyond_the_trained_one_leaves_memory_to_others(smollm2, monkeypatch):
    """One of 999,999 tokens took 20 GB and left 1.2 GB."""
    monkeypatch.setattr(llama_cpp.context, "available_memory", lambda: 5 << 29)
    each = 30 * 3 * 64 * 4  # bytes a token: layers, heads, width, two f16 values
    most = (3 << 29) // each
    for n_ctx in (most + 1, (5 << 29) // each):
        with pytest.raises(OutOfMemory, match=rf"at most {most}; the model was trained for 8192\)"):
            edgespec.load(smollm2, None, n_ctx=n_ctx)
    monkeypatch.setattr(llama_cpp.context, "available_memory", lambda: 1 << 28)
    edgespec.load(smollm2, None, n_ctx=8192).close()  # what it was trained for may take all
    with pytest.raises(OutOfMemory, match="at most 8192"):
        edgespec.load(smollm2, None, n_ctx=8193)


def test_a_cache_for_devices_that_does_not_fit(smollm2):
    """It took 22 GB, and then the kernel ended the process."""
    refused = pytest.raises(OutOfMemory, match="a KV cache of 20000")
    with edgespec.load(smollm2, None, n_ctx=64) as engine, refused:
        engine.company.model.add(4, 2_000_000_000, together=True)


def test_wrong_draft_vocabulary(smollm2, gemma):
    with pytest.raises(VocabularyMismatch, match=r"token \d+ is"):
        edgespec.load(gemma, smollm2, n_ctx=256)


@pytest.mark.long("measures real weights; the test before this one loads them")
def test_the_doctor_finds_a_wrong_draft_vocabulary(smollm2, gemma):
    found = edgespec.diagnose(gemma, smollm2, n_ctx=256)
    assert [finding.subject for finding in found if finding.broken] == ["draft"]


def test_padded_vocabularies_are_no_difference(qwen_pair):
    from edgespec.backends.llama_cpp import vocabulary
    from edgespec.drafters.vocabulary import check_vocabulary

    class Padded:
        def __init__(self, tokenizer):
            self._tokenizer, self.vocab_size = tokenizer, tokenizer.vocab_size + 128

        def token_text(self, token):
            return self._tokenizer.token_text(token)

    with vocabulary(qwen_pair[0]) as target, vocabulary(qwen_pair[1]) as draft:
        check_vocabulary(target, draft)
        check_vocabulary(Padded(target), draft)
        check_vocabulary(target, Padded(draft))


def test_draft_method_without_a_draft(smollm2, tmp_path):
    path = shutil.copy(smollm2, tmp_path / "alone.gguf")
    with pytest.raises(ConfigError, match="needs a draft model"):
        edgespec.load(path, None, speculative_config={"method": "draft_model"}, n_ctx=256)


def test_inspect(smollm2, small_draft):
    info = edgespec.inspect(smollm2)
    assert (info.architecture, info.n_layer, info.vocab_size) == ("llama", 30, 49152)
    assert info.quantisation == "Q4_1"
    assert info.kv_bytes(2048) == 45 * 2**20  # what llama.cpp itself reports
    assert info.has_chat_template
    fits = {f.reference: f for f in edgespec.fitting_drafts(smollm2)}
    assert all(f.fits == (f.why == "same vocabulary") for f in fits.values())


@pytest.mark.long("real weights; tests/contract/test_drafters.py has toys")
def test_draft_with_a_short_context_of_its_own(smollm2, small_draft):
    fixed = {"method": "draft_model", "num_speculative_tokens": 4}
    with edgespec.load(smollm2, small_draft, n_ctx=512, draft_options={"n_ctx": 64},
                       speculative_config=fixed) as engine:  # fmt: skip
        text = "The history of the bicycle begins in Europe, where inventors tried " * 6
        done = assert_equal_to_plain(engine, engine.encode(text), 64)
        assert done.stats.num_accepted_draft_tokens > 0


@pytest.mark.long("real weights; tests/models/test_slot_trees.py loses cells as well")
def test_gemma_sliding_window(gemma):
    with edgespec.load(gemma, None, n_ctx=1024, speculative_config={"draft_p_min": 0.0}) as engine:
        prompt = engine.encode("one two three four five six seven " * 110 + "one two three")
        assert len(prompt) > 512  # more than the window
        done = assert_equal_to_plain(engine, prompt, 24)
        assert done.stats.num_accepted_draft_tokens > 0


def test_what_is_measured_is_measured_with_all_threads(smollm2):
    config = EngineConfig(n_ctx=256, n_threads=2)
    with contextlib.closing(open_model(smollm2, config)) as model:
        model.limit_threads(1)
        measure(model, widths=(1,), budget_s=0)
        assert model.thread_limit == 0


def test_a_default_context_leaves_a_quarter_of_the_memory_free(smollm2, monkeypatch):
    each, total = 30 * 3 * 64 * 4, 16 << 30  # bytes a token

    def left(n_tokens: int) -> None:
        """Let so many tokens fit above the quarter."""
        free = total // 4 + smollm2.stat().st_size + n_tokens * each
        monkeypatch.setattr(llama_cpp.context, "available_memory", lambda: free)

    monkeypatch.setattr(llama_cpp.context, "total_memory", lambda: total)
    monkeypatch.setattr(llama_cpp.context.lib, "llama_model_n_ctx_train", lambda model: 131072)
    options = {"n_gpu_layers": 0, "speculative_config": {"method": "none"}}
    for n_tokens, expected in ((1 << 17, 32768), (10000, 9984), (0, 8192)):
        left(n_tokens)
        with edgespec.load(smollm2, None, **options) as engine:
            assert engine.n_ctx == expected
            left(9000)
            devices = engine.company.model
            devices.add(2, together=True)
            assert devices.n_ctx == min(expected, 8960)
            devices.close()
