"""Faults and hostile answers of inference servers."""

import contextlib
import json
from email.utils import formatdate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec import (
    Aborted,
    VerifierError,
    VerifierFault,
    VerifierRefused,
    VerifierUnavailable,
    VocabularyMismatch,
)
from edgespec.config import RemoteConfig
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.types import Draft
from edgespec.verifiers.completions import CompletionsVerifier
from edgespec.verifiers.local import LocalVerifier
from edgespec.verifiers.sglang import SGLangVerifier
from tests.helpers.fake_engines import TOKENIZER, VOCAB, FakeEngine
from tests.helpers.inference_servers import begin, connected, generate, toy, verifier
from tests.helpers.selection import share


def rounds(remote, **params):
    _, target = remote
    begin(target, **params)
    return target.verify(Draft((97, 98)))


def faulty(remote, after, **params):
    """Check that what `after` makes of the answers is refused."""
    remote[0].after = after
    with pytest.raises(VerifierFault):
        rounds(remote, **params)


def test_reordered_choices_are_put_in_order():
    with connected("vllm", greedy="fan-out") as (engine, target):
        expected = rounds((engine, target))
        engine.after = lambda path, answer: answer | {"choices": answer["choices"][::-1]}
        assert rounds((engine, target)).tokens == expected.tokens


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
    with connected("vllm", timeout_s=0.2) as (engine, target):
        engine.before = lambda path, body: "hang"
        with pytest.raises(VerifierUnavailable, match=r"within 0\.2 s"):
            rounds((engine, target))
        assert engine.hung_up.wait(5)


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
    def after(path, answer):
        BAD_CHOICES[name](answer["choices"])
        return answer

    with connected("vllm", greedy="fan-out") as made:
        faulty(made, after)


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
    def after(path, answer):
        first = answer["choices"][0]
        first["prompt_logprobs"] = BAD_ROWS[name](first["prompt_logprobs"])
        return answer

    faulty(vllm, after)


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
    def after(path, answer):
        BAD_META[name](answer["meta_info"])
        return answer

    with connected("sglang") as made:
        faulty(made, after)


@pytest.mark.parametrize("change", [
    lambda answers: answers[:-1], lambda answers: answers[0], lambda answers: [None] * 3,
    lambda answers: [a | {"output_ids": []} for a in answers],
    lambda answers: [a | {"output_ids": [1, 2]} for a in answers],
    lambda answers: [a | {"output_ids": [999]} for a in answers],
    lambda answers: [a | {"meta_info": {"prompt_tokens": 1}} for a in answers],
])  # fmt: skip
def test_bad_batches_of_sglang(change):
    with connected("sglang") as made:
        faulty(made, lambda path, answer: change(answer), temperature=1.0)


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


@settings(max_examples=share(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("make", [CompletionsVerifier, SGLangVerifier])
def test_any_json_at_connect_is_an_error_of_ours(make, data):
    with contextlib.suppress(VerifierError, VocabularyMismatch):
        make(RemoteConfig("openai+http://host"), TOKENIZER, http=Anything(data))


@settings(max_examples=share(300), deadline=None, suppress_health_check=list(HealthCheck))
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
