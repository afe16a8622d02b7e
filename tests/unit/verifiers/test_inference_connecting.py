"""The checks that are made when an inference server is connected."""

import pytest

from edgespec import ConfigError, ToyTokenizer, VerifierRefused, VocabularyMismatch
from edgespec.config import RemoteConfig
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.verifiers import connect
from edgespec.verifiers.http import Http
from edgespec.verifiers.inference_server import split_url
from edgespec.verifiers.local import LocalVerifier
from tests.helpers.fake_engines import TOKENIZER, VOCAB, FakeEngine
from tests.helpers.inference_servers import KINDS, generate, toy, verifier

KEY = "sk-not-to-be-told"


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


@pytest.mark.parametrize(("fields", "said"), [
    ({"url": "127.0.0.1:9"}, "no address of a verifier"),
    ({"url": None}, "no address of a verifier"),
    ({"api_key": "two words"}, "printable ASCII"),
    ({"model": None}, "model must be text"),
    ({"timeout_s": 0}, "above 0"),
    ({"timeout_s": float("inf")}, "at most 86400"),
    ({"timeout_s": "10"}, "a number"),
    ({"local": 3}, "local must be a model"),
    ({"n_ctx": -1}, "n_ctx must be at least 0"),
])  # fmt: skip
def test_impossible_addresses(fields, said):
    with pytest.raises(ConfigError, match=said):
        RemoteConfig(**({"url": "ws://host:1"} | fields))
    assert KEY not in repr(RemoteConfig("ws://host:1", KEY))
