"""Earlier answers on a server: each API key's are its own."""

import contextlib

from starlette.testclient import TestClient

import edgespec
from edgespec.server.app import create_app
from edgespec.server.settings import ServerSettings

KEYS = ("first-key", "second-key")


def engine_of(script, memory):
    vocab = [bytes([i]) for i in range(256)] + ["<end>"]
    return edgespec.assemble(
        edgespec.ToyModel(script.next_probs, vocab_size=257, n_ctx=512),
        edgespec.ToyTokenizer(vocab, eog=[256]),
        speculative_config={
            "num_speculative_tokens": 4, "draft_p_min": 0.0, "draft_memory": memory,
            "remember": "rates",
        },
    )  # fmt: skip


def accepted(client, key):
    """Ask one question under a key; return how many drafted tokens were right."""
    before = accepted_so_far(client, key)
    answer = client.post(
        "/v1/chat/completions",
        headers={"Authorization": f"Bearer {key}"},
        json={"model": "toy", "messages": [{"role": "user", "content": "umlaut"}]},
    )
    assert answer.json()["choices"][0]["message"]["content"] == "Grüße aus Köln"
    return accepted_so_far(client, key) - before


def accepted_so_far(client, key):
    text = client.get("/metrics", headers={"Authorization": f"Bearer {key}"}).text
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return sum(float(line.split()[-1]) for line in lines if "accepted" in line and "total" in line)


def test_answers_are_never_shared_between_keys(script):
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(engine_of(script, "process"))
        app = create_app(engine, ServerSettings("toy", api_keys=KEYS))
        client = stack.enter_context(TestClient(app, base_url="http://localhost"))
        first, second = KEYS
        assert accepted(client, first) < 4
        assert accepted(client, second) < 4  # nothing of the first one's
        assert accepted(client, first) > 8
        assert accepted(client, second) > 8
