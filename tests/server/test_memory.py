"""Caches and earlier answers on a server: each API key's are its own."""

import contextlib

from starlette.testclient import TestClient

import edgespec
from edgespec.cache.prefixes import PrefixStore
from edgespec.server.app import create_app
from edgespec.server.settings import ServerSettings

KEYS = ("first-key", "second-key")


def engine_of(script, memory, **options):
    vocab = [bytes([i]) for i in range(256)] + ["<end>"]
    return edgespec.assemble(
        edgespec.ToyModel(script.next_probs, vocab_size=257, n_ctx=512),
        edgespec.ToyTokenizer(vocab, eog=[256]),
        speculative_config={
            "num_speculative_tokens": 4, "draft_p_min": 0.0, "draft_memory": memory,
            "remember": "rates",
        },
        **options,
    )  # fmt: skip


def ask(client, key):
    """Ask one question under a key; return the response."""
    answer = client.post(
        "/v1/chat/completions",
        headers={"Authorization": f"Bearer {key}"},
        json={"model": "toy", "messages": [{"role": "user", "content": "umlaut"}]},
    ).json()
    assert answer["choices"][0]["message"]["content"] == "Grüße aus Köln"
    return answer


def accepted(client, key):
    """Ask the question under a key; return how many drafted tokens were right."""
    before = accepted_so_far(client, key)
    ask(client, key)
    return accepted_so_far(client, key) - before


def accepted_so_far(client, key):
    text = client.get("/metrics", headers={"Authorization": f"Bearer {key}"}).text
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return sum(float(line.split()[-1]) for line in lines if "accepted" in line and "total" in line)


@contextlib.contextmanager
def client_of(script, memory, **options):
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(engine_of(script, memory, **options))
        app = create_app(engine, ServerSettings("toy", api_keys=KEYS))
        yield stack.enter_context(
            TestClient(app, base_url="http://localhost", client=("127.0.0.1", 1))
        )


def cached_tokens(client, key):
    return ask(client, key)["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_prompt_is_read_once_for_each_key(script):
    with client_of(script, "off", prefixes=PrefixStore(1 << 20)) as client:
        first, second = KEYS
        assert cached_tokens(client, first) == 0
        assert cached_tokens(client, second) == 0
        assert cached_tokens(client, first) > 20
        assert cached_tokens(client, second) > 20


def test_what_was_warmed_is_read_for_no_key(script):
    with engine_of(script, "off", prefixes=PrefixStore(1 << 20)) as engine:
        n_tokens = engine.warm([{"role": "system", "content": "Be brief, and say what you see."}])
        told = {"role": "system", "content": "Be brief, and say what you see."}
        app = create_app(engine, ServerSettings("toy", api_keys=KEYS))
        client = TestClient(app, base_url="http://localhost", client=("127.0.0.1", 1))
        for key in KEYS:
            answer = client.post(
                "/v1/chat/completions",
                headers={"Authorization": f"Bearer {key}"},
                json={"model": "toy", "messages": [told, {"role": "user", "content": key}]},
            ).json()
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == n_tokens > 32


def test_a_key_does_not_learn_what_another_one_has_asked(script):
    with client_of(script, "off") as client:

        def cached(key):
            return cached_tokens(client, key)

        first, second = KEYS
        assert cached(first) == 0
        assert cached(first) > 20
        assert cached(second) == cached(first) == 0
        assert cached(first) > 20


def test_answers_are_never_shared_between_keys(script):
    with client_of(script, "process") as client:
        first, second = KEYS
        assert accepted(client, first) < 4
        assert accepted(client, second) < 4  # nothing of the first one's
        assert accepted(client, first) > 8
        assert accepted(client, second) > 8
