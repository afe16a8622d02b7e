"""Several requests at once: who runs, what each client sees of it, and how each one ends."""

from __future__ import annotations

import threading
import time

import httpx
import numpy as np
import pytest

from edgespec import Engine, ToyModel, ToyTokenizer
from edgespec.decoding.session import Session
from edgespec.policies.fixed import FixedDepth
from edgespec.verifiers.local import LocalVerifier

TEXT = "/v1/completions"
END = 256
ONE, TWO = ({"Authorization": f"Bearer {key}"} for key in ("first-key", "second-key"))
KEYS = ("first-key", "second-key")


class Gates:
    """A model that continues texts byte by byte; each text waits at the gate of its first byte."""

    def __init__(self):
        self.shut: dict[str, threading.Event] = {}

    def shut_for(self, letter):
        self.shut[letter] = threading.Event()

    def open(self, *letters):
        for letter in letters or tuple(self.shut):
            self.shut[letter].set()

    def next_probs(self, tokens):
        gate = self.shut.get(chr(tokens[0]))
        if gate:
            gate.wait(20)
        probs = np.full(257, 1e-6)
        probs[(tokens[-1] + 1) % 256] = 1
        return probs / probs.sum()


@pytest.fixture
def gates():
    made = Gates()
    yield made
    made.open()


def engine_of(gates, n, **options):
    vocab = [bytes([i]) for i in range(256)] + ["<end>"]
    sessions = [
        Session(
            LocalVerifier(ToyModel(gates.next_probs, vocab_size=257, n_ctx=10_000)),
            [],
            FixedDepth(0),
        )
        for _ in range(n)
    ]
    return Engine(sessions, ToyTokenizer(vocab, eog=[END]), **options)


@pytest.fixture
def served(gates, running):
    """Run a server with two slots and two keys."""
    with engine_of(gates, 2) as engine, running(engine, api_keys=KEYS) as server:
        server.engine = engine
        yield server


class Asking:
    """A request in a thread of its own. answer: the response, once it is complete."""

    def __init__(self, url, prompt, headers=None, path=TEXT, **fields):
        self.answer = None

        def ask():
            body = {"prompt": prompt, "max_tokens": 3} | fields
            self.answer = httpx.post(url + path, json=body, headers=headers, timeout=30)

        self._thread = threading.Thread(target=ask)
        self._thread.start()

    def wait(self):
        self._thread.join(30)
        return self.answer.json()

    @property
    def text(self):
        return self.wait()["choices"][0]["text"]


def until(true):
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_slots_say_how_far_the_clients_own_requests_are(served, gates):
    free = httpx.get(served.url + "/slots", headers=ONE).json()
    assert free == [{"id": i, "n_ctx": 10_000, "is_processing": False} for i in range(2)]
    gates.shut_for("a")
    asking = Asking(served.url, "abc", ONE)
    until(lambda: served.engine.status().running)
    (busy, idle), others = (
        httpx.get(served.url + "/slots", headers=key).json() for key in (ONE, TWO)
    )
    assert busy.pop("running_ms") >= 0
    assert busy == free[0] | {
        "is_processing": True, "n_prompt_tokens": 3, "n_prompt_tokens_processed": 0,
        "next_token": [{"n_decoded": 0}],
    }  # fmt: skip
    assert idle == free[1]
    assert others == [free[0] | {"is_processing": True}, free[1]]
    assert httpx.get(served.url + "/slots").status_code == 401
    gates.open()
    assert asking.text == "def"
