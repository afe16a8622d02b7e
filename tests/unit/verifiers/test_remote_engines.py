"""Other people's inference servers as targets: text, laws, refusals and hostile answers."""

import contextlib
import json
from dataclasses import replace
from email.utils import formatdate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec import (
    Aborted,
    ConfigError,
    ContextFull,
    SamplingParams,
    ToyModel,
    ToyTokenizer,
    VerifierError,
    VerifierFault,
    VerifierRefused,
    VerifierUnavailable,
    VocabularyMismatch,
)
from edgespec.config import RemoteConfig
from edgespec.decoding.engine import Engine
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Draft, Stats
from edgespec.verifiers import connect
from edgespec.verifiers.completions import CompletionsVerifier
from edgespec.verifiers.http import Http
from edgespec.verifiers.inference_server import split_url
from edgespec.verifiers.local import LocalVerifier
from edgespec.verifiers.sglang import SGLangVerifier
from tests.helpers.enumeration import law, total_variation
from tests.helpers.fake_engines import TOKENIZER, VOCAB, FakeEngine, toy_probs

KINDS = ["vllm", "llamacpp", "sglang", "generic"]
PROMPT = TOKENIZER.encode("abab")
KEY = "sk-not-to-be-told"


def toy():
    return ToyModel(toy_probs, vocab_size=VOCAB)


def verifier(kind, url, *, timeout_s=5.0, api_key=None, model="", n_ctx=None, **options):
    """Fast retries; a generic server does not tell its context."""
    http = Http(url, api_key, timeout_s=timeout_s, backoff_s=0.001)
    if kind == "generic":
        n_ctx = 200 if n_ctx is None else n_ctx
    remote = RemoteConfig(f"openai+{url}", model=model, n_ctx=n_ctx or 0)
    make = SGLangVerifier if kind == "sglang" else CompletionsVerifier
    return make(remote, TOKENIZER, http=http, **options)


@pytest.fixture(params=KINDS)
def remote(request):
    engine = FakeEngine(request.param)
    with engine.serving() as url:
        found = verifier(request.param, url)
        engine.seen.clear()
        yield engine, found
        found.close()


@pytest.fixture
def vllm():
    engine = FakeEngine("vllm")
    with engine.serving() as url:
        found = verifier("vllm", url)
        engine.seen.clear()
        yield engine, found
        found.close()


def begin(target, prompt=PROMPT, abort=None, **params):
    request = Request(prompt, SamplingParams(**params), SeededRandomness(1), abort=abort)
    return list(target.begin(request))


def generate(target, drafters=(), prompt=PROMPT, depth=3, **params):
    session = Session(target, drafters, FixedDepth(depth))
    with Engine(session, TOKENIZER, n_ctx=target.n_ctx) as engine:
        return engine.generate(prompt, **params)


# --- text ---------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["abab", "aabbaabb", "b", "abba.abba."])
def test_greedy_text_is_the_local_one(remote, prompt):
    engine, target = remote
    ids = TOKENIZER.encode(prompt)
    options = {"prompt": ids, "max_tokens": 40, "ignore_eos": True}
    plain = generate(LocalVerifier(toy()), **options)
    drafted = generate(target, [SuffixDrafter(1)], **options)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.num_accepted_draft_tokens > 5
    assert drafted.stats.num_spec_steps == len(engine.seen)  # one request a round
    assert drafted.stats.num_draft_tokens > drafted.stats.num_accepted_draft_tokens


def test_short_prompts_take_prompt_logprobs_and_long_ones_fan_out(vllm):
    engine, target = vllm
    generate(target, [SuffixDrafter(1)], max_tokens=80, ignore_eos=True, prompt=PROMPT * 8)
    drafted = [body for _, body in engine.seen if "prompt_logprobs" in body]
    fanned = [body["prompt"] for _, body in engine.seen if len(body["prompt"]) > 1]
    assert drafted
    assert fanned
    assert max(len(body["prompt"][0]) for body in drafted) <= 16 * 4
    assert all(len(rows[-1]) > 16 * len(rows) for rows in fanned)


@pytest.mark.parametrize("greedy", ["fan-out", "prompt_logprobs"])
def test_both_greedy_recipes_of_vllm(greedy):
    with FakeEngine("vllm").serving() as url:
        options = {"prompt": PROMPT * 6, "max_tokens": 20, "ignore_eos": True}
        drafted = generate(verifier("vllm", url, greedy=greedy), [SuffixDrafter(1)], **options)
        assert drafted.token_ids == generate(LocalVerifier(toy()), **options).token_ids


def test_greedy_with_logit_bias(remote):
    engine, target = remote
    options = {"max_tokens": 20, "ignore_eos": True, "logit_bias": {ord("a"): -3.0, 98: 0.25}}
    if engine.kind == "generic":
        with pytest.raises(VerifierRefused, match="logit_bias"):
            generate(target, **options)
        return
    plain = generate(LocalVerifier(toy()), **options)
    assert generate(target, [SuffixDrafter(1)], **options).token_ids == plain.token_ids
    unbiased = generate(LocalVerifier(toy()), max_tokens=20, ignore_eos=True)
    assert plain.token_ids != unbiased.token_ids


# --- laws ---------------------------------------------------------------------------------


def outcome(chance, target, drafters, params, depth):
    session = Session(target, drafters, FixedDepth(depth))
    output = Output(TOKENIZER, params)
    list(session.generate(Request(PROMPT, params, chance), output, Stats()))
    return tuple(output.token_ids), output.finish_reason


def remote_law(engine, target, params, drafters=lambda: [SuffixDrafter(1)], depth=2):
    def run(chance):
        engine.randomness = chance
        return outcome(chance, target, drafters(), params, depth)

    return law(run)


def local_law(params):
    return law(lambda chance: outcome(chance, LocalVerifier(toy()), [], params, 0))


LAWS = [
    SamplingParams(temperature=1.0, max_tokens=3),
    SamplingParams(temperature=0.6, max_tokens=3, ignore_eos=True, top_p=0.8),
    SamplingParams(temperature=1.5, max_tokens=3, top_k=2, min_p=0.1, ignore_eos=True),
]


@pytest.mark.parametrize("params", LAWS, ids=range(len(LAWS)))
def test_the_law_is_the_targets(remote, params):
    engine, target = remote
    if engine.kind == "generic":
        params = replace(params, top_k=0, min_p=0)
    found = remote_law(engine, target, params)
    assert total_variation(found, local_law(params)) <= 1e-12
    assert any(len(body.get("prompt", body.get("input_ids"))) > 1 for _, body in engine.seen)


@pytest.mark.parametrize("acceptance", ["block", "coupled"])
def test_drawn_drafts_are_exact_too(vllm, acceptance):
    engine, target = vllm

    def other(tokens):
        p = 0.5 * toy_probs((*tokens, 1)) + 0.5 * toy_probs(tokens)
        return p / p.sum()

    def drafters():
        return [ModelDrafter(ToyModel(other, vocab_size=VOCAB), VOCAB, acceptance=acceptance)]

    params = SamplingParams(temperature=1.0, max_tokens=2)
    found = remote_law(engine, target, params, drafters, depth=1)
    assert total_variation(found, local_law(params)) <= 1e-12


def test_rows_drawn_with_one_seed_would_not_be_exact(vllm):
    """Why no seed is ever sent: the proof above must be able to fail."""
    engine, target = vllm
    engine.tied = True
    params = SamplingParams(temperature=1.0, max_tokens=2, ignore_eos=True)
    found = remote_law(engine, target, params, depth=1)
    assert total_variation(found, local_law(params)) > 1e-3


def test_a_server_that_ties_its_rows_is_refused_for_sampling():
    engine = FakeEngine("generic")
    engine.tied = True
    with engine.serving() as url:
        target = verifier("generic", url)
        begin(target)
        with pytest.raises(VerifierRefused, match="one token in all rows"):
            begin(target, temperature=1.0)
        target.close()


# --- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(("params", "what"), [
    ({"repetition_penalty": 1.1}, "penalties"),
    ({"presence_penalty": 0.1}, "penalties"),
    ({"frequency_penalty": 0.1, "temperature": 1.0}, "penalties"),
    ({"logprobs": 0}, "logprobs"),
    ({"seed": 7, "temperature": 0.5}, "a seed"),
    ({"logit_bias": {97: 101.0}}, "logit_bias"),
    ({"logit_bias": {97: float("-inf")}}, "logit_bias"),
])  # fmt: skip
def test_what_cannot_be_exact_is_refused_before_anything_is_sent(remote, params, what):
    engine, target = remote
    with pytest.raises(VerifierRefused, match=f"cannot serve {what}.*; "):
        begin(target, **params)
    assert engine.seen == []


def test_a_seed_does_not_matter_to_greedy_text(remote):
    _, target = remote
    assert begin(target, seed=7) == [0]


def test_temperatures_that_vllm_replaces_are_refused(vllm):
    _, target = vllm
    with pytest.raises(VerifierRefused, match=r"temperature 0\.005.*at least 0\.01"):
        begin(target, temperature=0.005)
    begin(target, temperature=0.01)


def test_samplers_that_a_server_is_not_known_to_have_are_refused():
    with FakeEngine("generic").serving() as url:
        target = verifier("generic", url)
        for params in ({"top_k": 5}, {"min_p": 0.1}):
            with pytest.raises(VerifierRefused, match="top_k and min_p"):
                begin(target, temperature=1.0, **params)
            begin(target, **params)  # moot without temperature
        target.close()


def test_prompts_and_drafts_end_where_the_context_does(remote):
    engine, target = remote
    longest = 193 if engine.kind == "sglang" else 199
    assert target.n_ctx == longest
    begin(target, (PROMPT * 50)[:longest])
    target.verify(Draft())
    with pytest.raises(ContextFull, match=str(longest)):
        target.verify(Draft((97,)))
    with pytest.raises(ContextFull, match="shorten the prompt"):
        begin(target, PROMPT * 50)
    with pytest.raises(ValueError, match="empty"):
        begin(target, [])


# --- connecting ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_another_vocabulary_is_named(kind):
    other = ToyTokenizer([bytes([i ^ 1]) for i in range(VOCAB)])
    told = r"'The quick.* is \[84, .* and \[85, "
    with (
        FakeEngine(kind, tokenizer=other).serving() as url,
        pytest.raises(VocabularyMismatch, match=told),
    ):
        verifier(kind, url)


def test_a_vocabulary_of_another_size_is_named():
    engine = FakeEngine("llamacpp")
    engine.entries[0]["meta"]["n_vocab"] = 300
    with (
        engine.serving() as url,
        pytest.raises(VocabularyMismatch, match="256 tokens here and 300"),
    ):
        verifier("llamacpp", url)


def test_without_tokenize_the_number_of_tokens_is_compared():
    with FakeEngine("generic", lacks=["/tokenize"]).serving() as url:
        verifier("generic", url).close()
    pairs = ToyTokenizer([*(bytes([i]) for i in range(VOCAB)), "th", "he", "é"])
    engine = FakeEngine("generic", lacks=["/tokenize"], tokenizer=pairs)
    with engine.serving() as url, pytest.raises(VocabularyMismatch, match=r"44 tokens.*and 42"):
        verifier("generic", url)


def test_a_server_that_tells_nothing_about_its_tokens_is_refused():
    engine = FakeEngine("generic", lacks=["/tokenize"])
    engine.after = lambda path, answer: answer | {"usage": None}
    with engine.serving() as url, pytest.raises(VerifierRefused, match="cannot be checked"):
        verifier("generic", url)


def test_what_a_server_must_be_able_to_do_is_found_out_at_connect():
    def no_ids(path, answer):
        for choice in answer.get("choices", []):
            choice["logprobs"] = {"tokens": ["a"]}
        return answer

    def one_choice(path, answer):
        return answer | ({"choices": answer["choices"][:1]} if "choices" in answer else {})

    def adds_a_token(path, answer):
        return answer | ({"usage": {"prompt_tokens": 99}} if "choices" in answer else {})

    for after in (no_ids, one_choice, adds_a_token):
        engine = FakeEngine("vllm")
        engine.after = after
        with engine.serving() as url, pytest.raises(VerifierRefused, match="must take lists"):
            verifier("vllm", url)


def test_prompt_logprobs_that_a_server_does_not_give_are_done_without():
    engine = FakeEngine("vllm")
    engine.before = lambda path, body: (
        (400, {}, b"{}") if body and "prompt_logprobs" in body else None
    )
    with engine.serving() as url:
        drafted = generate(
            verifier("vllm", url), [SuffixDrafter(1)], max_tokens=20, ignore_eos=True
        )
        plain = generate(LocalVerifier(toy()), max_tokens=20, ignore_eos=True)
        assert drafted.token_ids == plain.token_ids
        with pytest.raises(VerifierRefused, match="400"):
            verifier("vllm", url, greedy="prompt_logprobs")


def test_models_of_a_server():
    engine = FakeEngine("vllm")
    adapter = engine.entries[0] | {"id": "adapter", "parent": "toy"}
    engine.entries.append(adapter)
    with engine.serving() as url:
        verifier("vllm", url).close()
        with pytest.raises(VerifierRefused, match="no model 'other'; it has toy, adapter"):
            verifier("vllm", url, model="other")
        engine.entries.append(engine.entries[0] | {"id": "second"})
        with pytest.raises(VerifierRefused, match="3 models, name one: toy, adapter, second"):
            verifier("vllm", url)
        verifier("vllm", url, model="toy").close()
    engine = FakeEngine("sglang")
    engine.entries.append(adapter)
    with engine.serving() as url, pytest.raises(VerifierRefused, match="name the model itself"):
        verifier("sglang", url, model="adapter")


def test_an_older_llama_server_tells_its_context_elsewhere():
    engine = FakeEngine("llamacpp")
    del engine.entries[0]["meta"]["n_ctx"]
    with engine.serving() as url:
        target = verifier("llamacpp", url)
        assert target.n_ctx == 199
        target.close()


def test_a_smaller_context_may_be_given():
    with FakeEngine("vllm").serving() as url:
        for given, expected in ((50, 49), (1000, 199)):
            target = verifier("vllm", url, n_ctx=given)
            assert target.n_ctx == expected
            target.close()


def test_a_context_that_nobody_tells_is_asked_for():
    engine = FakeEngine("generic")
    with engine.serving() as url, pytest.raises(VerifierRefused, match="give n_ctx"):
        verifier("generic", url, n_ctx=0)


def test_a_key_goes_as_bearer_and_into_no_message(caplog):
    engine = FakeEngine("vllm", api_key=KEY)
    with engine.serving() as url:
        verifier("vllm", url, api_key=KEY).close()
        for wrong in (None, KEY[:-1]):
            with pytest.raises(VerifierRefused, match=r"401.*key is missing or wrong") as caught:
                verifier("vllm", url, api_key=wrong)
            assert KEY[:-1] not in str(caught.value) + caplog.text
    with pytest.raises(ConfigError, match="printable ASCII"):
        RemoteConfig("vllm+http://127.0.0.1:1", "with\nnewline")


def test_a_key_over_an_open_line_is_warned_of(caplog):
    Http("http://192.0.2.1", KEY).close()
    assert "unencrypted" in caplog.text
    assert KEY not in caplog.text
    caplog.clear()
    for url in ("https://192.0.2.1", "http://127.0.0.1", "http://[::1]:8000"):
        Http(url, KEY).close()
    assert caplog.text == ""


@pytest.mark.parametrize("kind", ["sglang", "vllm", "openai"])
def test_connect_takes_a_url(kind):
    engine = FakeEngine("vllm" if kind == "openai" else kind, api_key=KEY)
    with engine.serving() as url:
        remote = RemoteConfig(f"{kind}+{url}/v1/", KEY, "toy", 5)
        target = connect(remote, TOKENIZER)
        assert target.name == {"sglang": "SGLang"}.get(kind, "vLLM")
        target.close()
        target.close()


@pytest.mark.parametrize("url", [
    "http://host", "vllm", "vllm+ftp://host", "vllm+http://", "tgi+http://host", "",
    "vllm+http://host:99999", "vllm+http://u:secret@host:bad",
])  # fmt: skip
def test_urls_that_name_no_verifier(url):
    with pytest.raises(ConfigError, match="sglang\\+http://host:port") as caught:
        connect(RemoteConfig(url), TOKENIZER)
    assert "secret" not in str(caught.value)


def test_urls_are_taken_apart():
    assert split_url("sglang+https://h:1/") == ("sglang", "https://h:1")
    assert split_url("openai+http://[::1]:8000/proxy/v1") == ("openai", "http://[::1]:8000/proxy")
    for url in ("vllm+http://u:secret@host", "vllm+http://host?key=secret", "vllm+http://h#x"):
        with pytest.raises(ConfigError, match="give a key as api_key") as caught:
            split_url(url)
        assert "secret" not in str(caught.value)


# --- faults and hostile answers -----------------------------------------------------------


def rounds(remote, draft=(97, 98)):
    _, target = remote
    begin(target)
    return target.verify(Draft(draft))


def answered(path):
    return path in ("/v1/completions", "/generate")


def test_reordered_choices_are_put_in_order():
    engine = FakeEngine("vllm")
    with engine.serving() as url:
        target = verifier("vllm", url, greedy="fan-out")
        expected = rounds((engine, target))
        engine.after = lambda path, answer: answer | {"choices": answer["choices"][::-1]}
        assert rounds((engine, target)).tokens == expected.tokens
        target.close()


STATUSES = [
    (401, VerifierRefused, "key"), (403, VerifierRefused, "key"),
    (404, VerifierRefused, "not this model"), (400, VerifierRefused, "does not take"),
    (422, VerifierRefused, "does not take"), (307, VerifierRefused, "does not take"),
    (429, VerifierUnavailable, "no room"), (500, VerifierUnavailable, "failed"),
    (502, VerifierUnavailable, "no room"), (503, VerifierUnavailable, "no room"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "kind", "words"), STATUSES)
def test_statuses(remote, status, kind, words):
    engine, _ = remote
    told = json.dumps({"error": {"type": "SomeError", "message": "your prompt was: abab"}})
    engine.before = lambda path, body: (status, {"Location": "/x"}, told.encode())
    with pytest.raises(
        kind, match=rf"127\.0\.0\.1:\d+ answered {status} \(SomeError\).*{words}"
    ) as e:
        rounds(remote)
    assert "abab" not in str(e.value)
    assert len(engine.seen) == (3 if kind is VerifierUnavailable else 1)
    engine.before = lambda path, body: None
    assert rounds(remote).tokens  # the verifier can still be used


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_retry_does_not_change_the_text(remote, status):
    engine, target = remote
    options = {"max_tokens": 20, "ignore_eos": True}
    plain = generate(LocalVerifier(toy()), **options)
    fails = iter([1, 1, 0] * 100)
    engine.before = lambda path, body: (
        (status, {"Retry-After": "0"}, b"busy") if next(fails) else None
    )
    assert generate(target, [SuffixDrafter(1)], **options).token_ids == plain.token_ids


def test_retry_after_is_passed_on(remote):
    engine, _ = remote
    for value, expected in (("3600", 3600), (formatdate(4e9, usegmt=True), 1e8), ("-5", 0)):
        engine.seen.clear()
        engine.before = lambda path, body, value=value: (429, {"Retry-After": value}, b"")
        with pytest.raises(VerifierUnavailable) as caught:
            rounds(remote)
        assert caught.value.retry_after_s >= expected
        assert len(engine.seen) == (1 if expected else 3)  # it does not wait for an hour
    for value in ("soon", "nan", ""):
        engine.before = lambda path, body, value=value: (503, {"Retry-After": value}, b"")
        with pytest.raises(VerifierUnavailable) as caught:
            rounds(remote)
        assert caught.value.retry_after_s is None


def test_a_cut_body_is_asked_for_again_and_then_reported(remote):
    engine, _ = remote
    expected = rounds(remote).tokens
    good = {"n": 0}

    def cut(path, body):
        good["n"] += 1
        return None if good["n"] == 2 else (200, {"Content-Length": 500}, b'{"choices": [')

    engine.before = cut
    assert rounds(remote).tokens == expected
    good["n"] = 10
    with pytest.raises(VerifierUnavailable, match="broke off"):
        rounds(remote)


def test_a_server_that_is_not_there():
    with FakeEngine("vllm").serving() as url:
        target = verifier("vllm", url)
    for kind in ("vllm", "sglang"):
        with pytest.raises(VerifierUnavailable, match="cannot be reached"):
            verifier(kind, url)
    begin(target)
    with pytest.raises(VerifierUnavailable, match="cannot be reached"):
        target.verify(Draft())
    target.close()


def test_a_server_that_does_not_answer_in_time():
    engine = FakeEngine("vllm")
    with engine.serving() as url:
        target = verifier("vllm", url, timeout_s=0.2)
        engine.before = lambda path, body: "hang"
        with pytest.raises(VerifierUnavailable, match=r"within 0\.2 s"):
            rounds((engine, target))
        assert engine.hung_up.wait(5)
        target.close()


def test_abort_while_the_server_works_closes_the_connection(remote):
    engine, target = remote
    engine.before = lambda path, body: "hang"
    begin(target, abort=lambda: "cancelled" if engine.arrived.is_set() else None)
    with pytest.raises(Aborted):
        target.verify(Draft((97,)))
    assert engine.hung_up.wait(5)
    engine.before = lambda path, body: None
    assert rounds(remote).tokens


def test_abort_while_waiting_for_the_next_try(vllm):
    engine, target = vllm
    engine.before = lambda path, body: (429, {"Retry-After": "4"}, b"")
    begin(target, abort=lambda: "cancelled" if engine.seen else None)
    with pytest.raises(Aborted):
        target.verify(Draft())
    assert len(engine.seen) == 1


def test_abort_between_rounds_sends_nothing(remote):
    engine, target = remote
    begin(target, abort=lambda: "time_limit")
    with pytest.raises(Aborted):
        target.verify(Draft())
    assert engine.seen == []


@pytest.mark.parametrize("body", [
    b"<html>a proxy's page</html>", b"", b"\xff\xfe", b"[]", b"null", b"3", b"{}",
    b"[" * 100_000, b'{"choices": null}', b'{"choices": {}}', b'{"choices": [null, null, null]}',
    b'[{"output_ids": null, "meta_info": null}]', b'{"output_ids": [1], "meta_info": {}}',
])  # fmt: skip
def test_what_is_no_answer(remote, body):
    engine, _ = remote
    engine.before = lambda path, request: (200, {}, body)
    with pytest.raises(VerifierFault, match=r"127\.0\.0\.1:\d+"):
        rounds(remote)


def test_a_body_that_never_ends(vllm, monkeypatch):
    engine, _ = vllm
    monkeypatch.setattr("edgespec.verifiers.http.MAX_BODY", 1 << 20)
    engine.before = lambda path, body: (200, {}, b" " * (1 << 21))
    with pytest.raises(VerifierFault, match="more than 1 MiB"):
        rounds(vllm)


def choices(change):
    """A change to the list of choices of a fan-out."""

    def after(path, answer):
        change(answer["choices"])
        return answer

    return after


BAD_CHOICES = {
    "too few": lambda found: found.pop(),
    "too many": lambda found: found.append(dict(found[0])),
    "twice the same index": lambda found: found[1].update(index=0),
    "no index": lambda found: found[1].pop("index"),
    "an index that is none": lambda found: found[1].update(index="1"),
    "true as an index": lambda found: found[1].update(index=True),
    "an index beyond": lambda found: found[1].update(index=7),
    "no logprobs": lambda found: found[0].update(logprobs=None),
    "text for a token": lambda found: found[0].update(logprobs={"tokens": ["a"]}),
    "two tokens": lambda found: found[0].update(logprobs={"tokens": ["token_id:1"] * 2}),
    "an id beyond": lambda found: found[0].update(logprobs={"tokens": ["token_id:256"]}),
    "a negative id": lambda found: found[0].update(token_ids=[-1]),
    "an id that is none": lambda found: found[0].update(token_ids=["1"]),
    "an endless id": lambda found: found[0].update(logprobs={"tokens": ["token_id:" + "9" * 5000]}),
    "a float": lambda found: found[0].update(token_ids=[1.0]),
    "content without id": lambda found: found[0].update(logprobs={"content": [{}]}),
}


@pytest.mark.parametrize("name", BAD_CHOICES)
def test_bad_choices(name):
    engine = FakeEngine("vllm")
    with engine.serving() as url:
        target = verifier("vllm", url, greedy="fan-out")
        engine.after = choices(BAD_CHOICES[name])
        with pytest.raises(VerifierFault):
            rounds((engine, target))
        target.close()


def prompt_logprobs(change):
    def after(path, answer):
        rows = answer["choices"][0]["prompt_logprobs"]
        answer["choices"][0]["prompt_logprobs"] = change(rows)
        return answer

    return after


BAD_ROWS = {
    "null": lambda rows: None,
    "null rows": lambda rows: [*rows[:-1], None],
    "short": lambda rows: rows[:-1],
    "long": lambda rows: [*rows, rows[-1]],
    "shifted": lambda rows: [None, None, *rows[1:-1]],
    "empty": lambda rows: [*rows[:-1], {}],
    "without the prompt's token": lambda rows: [*rows[:-1], {"5": {"rank": 1}}],
    "two of rank 1": lambda rows: [*rows[:-1], {"98": {"rank": 1}, "97": {"rank": 1}}],
    "none of rank 1": lambda rows: [*rows[:-1], {"98": {"rank": 2}}],
    "ids beyond": lambda rows: [*rows[:-1], {"98": {"rank": 2}, "999": {"rank": 1}}],
    "garbage": lambda rows: [*rows[:-1], {"98": {"rank": 2}, "x": {"rank": 1}}],
    "an endless id": lambda rows: [*rows[:-1], {"98": {"rank": 2}, "9" * 5000: {"rank": 1}}],
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_prompt_logprobs(vllm, name):
    engine, _ = vllm
    engine.after = prompt_logprobs(BAD_ROWS[name])
    with pytest.raises(VerifierFault):
        rounds(vllm)


BAD_META = {
    "null": lambda meta: meta.update(input_top_logprobs=None),
    "null rows": lambda meta: meta.update(input_top_logprobs=[None, None, None]),
    "short": lambda meta: meta["input_top_logprobs"].pop(),
    "long": lambda meta: meta["input_top_logprobs"].append([[-1.0, 97, None]]),
    "empty rows": lambda meta: meta.update(input_top_logprobs=[None, [], []]),
    "garbage": lambda meta: meta.update(input_top_logprobs=[None, [[7e37, 97, None]], [["x"]]]),
    "no number": lambda meta: meta.update(input_top_logprobs=[None, *[[[None, 97, None]]] * 2]),
    "ids beyond": lambda meta: meta.update(input_top_logprobs=[None, *[[[-1.0, 256, None]]] * 2]),
    "a cut prompt": lambda meta: meta.update(prompt_tokens=5),
}


@pytest.mark.parametrize("name", BAD_META)
def test_bad_rows_of_sglang(name):
    engine = FakeEngine("sglang")
    with engine.serving() as url:
        target = verifier("sglang", url)

        def after(path, answer):
            BAD_META[name](answer["meta_info"])
            return answer

        engine.after = after
        with pytest.raises(VerifierFault):
            rounds((engine, target))
        target.close()


@pytest.mark.parametrize("change", [
    lambda answers: answers[:-1], lambda answers: answers[0], lambda answers: [None] * 3,
    lambda answers: [a | {"output_ids": []} for a in answers],
    lambda answers: [a | {"output_ids": [1, 2]} for a in answers],
    lambda answers: [a | {"output_ids": [999]} for a in answers],
    lambda answers: [a | {"meta_info": {"prompt_tokens": 1}} for a in answers],
])  # fmt: skip
def test_bad_batches_of_sglang(change):
    engine = FakeEngine("sglang")
    with engine.serving() as url:
        target = verifier("sglang", url)
        engine.after = lambda path, answer: change(answer)
        begin(target, temperature=1.0)
        with pytest.raises(VerifierFault):
            target.verify(Draft((97, 98)))
        target.close()


NAMES = [
    "data", "id", "owned_by", "meta", "max_model_len", "n_ctx", "n_vocab", "parent", "tokens",
    "usage", "prompt_tokens", "choices", "index", "logprobs", "token_ids", "content",
    "prompt_logprobs", "rank", "97", "98", "meta_info", "output_ids", "input_top_logprobs",
    "default_generation_settings", "max_req_input_len",
]  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers(-2, 300) | st.floats() | st.integers(10**30, 10**40)
    | st.sampled_from(["toy", "vllm", "llamacpp", "token_id:97", "1", ""])
)  # fmt: skip
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)


class Anything:
    """An Http whose server sends whatever hypothesis thinks of."""

    host = "host"

    def __init__(self, data):
        self._data = data

    def get(self, path, *, optional=False):
        return self._data.draw(JSON)

    def post(self, path, body, abort=None, *, optional=False):
        return self._data.draw(JSON)

    def close(self):
        pass


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("make", [CompletionsVerifier, SGLangVerifier])
def test_any_json_at_connect_is_an_error_of_ours(make, data):
    with contextlib.suppress(VerifierError, VocabularyMismatch):
        make(RemoteConfig("openai+http://host"), TOKENIZER, http=Anything(data))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_any_json_as_an_answer_is_an_error_of_ours(remote, temperature, data):
    _, target = remote
    begin(target, temperature=temperature)
    real = target._http
    target._http = Anything(data)
    try:
        with contextlib.suppress(VerifierFault):
            verdict = target.verify(Draft((97, 98)))
            assert all(0 <= token < VOCAB for token in verdict.tokens)
    finally:
        target._http = real
