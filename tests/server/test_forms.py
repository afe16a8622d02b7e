"""Compiling what answers have to follow: whom it delays, and when it ends."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

pytest.importorskip("llguidance")

TEXT = "/v1/completions"
KEYS = ("one", "two")


class Held:
    """Keeps the forms with the name "slow" until `go` is set. n: how many have begun."""

    def __init__(self, engine):
        self.n, self.go, self._compile = 0, threading.Event(), engine.constraint
        self.begun = threading.Semaphore(0)

    def __call__(self, params, *rest, **more):
        if params.choices and params.choices[0].startswith("slow"):
            self.n += 1
            self.begun.release()
            assert self.go.wait(20)
        return self._compile(params, *rest, **more)


@pytest.fixture
def held(engine, monkeypatch):
    made = Held(engine)
    monkeypatch.setattr(engine, "constraint", made)
    yield made
    made.go.set()


@pytest.fixture
def ask(running, engine, held):
    """Return a function that asks for one of some choices under a key."""
    with running(engine, api_keys=KEYS) as server, httpx.Client(base_url=server.url) as client:

        def ask(key, *choices, **more):
            body = {
                "prompt": "hello",
                "max_tokens": 20,
                "structured_outputs": {"choice": list(choices)},
            }
            body = body if choices else {"prompt": "hello", "max_tokens": 2}
            return client.post(TEXT, json=body, headers={"x-api-key": key}, **more)

        ask.client = client
        yield ask
        held.go.set()


def test_a_clients_forms_delay_only_its_own(ask, held):
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(ask, "one", "slow", "b")
        assert held.begun.acquire(timeout=20)
        second = pool.submit(ask, "one", "slow too", "b")
        assert ask.client.get("/health").status_code == 200
        assert ask("one").status_code == 200  # without a form
        assert ask("two", "a", "b").json()["choices"][0]["text"] in ("a", "b")
        assert held.n == 1  # the client's second form waits for its first
        assert not slow.done()
        held.go.set()
        assert slow.result(20).json()["choices"][0]["text"] in ("slow", "b")
        assert second.result(20).json()["choices"][0]["text"] in ("slow too", "b")


def test_a_form_whose_client_has_left_is_not_begun(ask, held):
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ask, "one", "slow", "b")
        assert held.begun.acquire(timeout=20)
        with pytest.raises(httpx.ReadTimeout):
            ask("one", "slow again", "b", timeout=0.2)
        for _ in range(3):  # by then the server has seen that the client left
            assert ask.client.get("/health").status_code == 200
        held.go.set()
        assert slow.result(20).status_code == 200
    assert ask("one", "a", "b").status_code == 200
    assert held.n == 1
