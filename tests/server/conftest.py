"""A server over a scripted toy model, and the same behind a real port."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import edgespec
from edgespec.server.app import Server, bind, create_app
from edgespec.server.settings import ServerSettings
from tests.helpers import serving, weather
from tests.helpers.loop_watch import LoopWatch
from tests.helpers.scripted_chats import ScriptedChat

END = 256
TURN = b"<|im_start|>assistant\n"
ANSWERS = {
    "hello": "Hi, what can I do?",
    "again": "one two three, one two three, one two three, one two three.",
    "umlaut": "Grüße aus Köln",
}


class Script:
    """The scripted answers, byte by byte. `hold` stops the model before its next token. heard:
    what users said, in the order in which the model read it.
    """

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.asked = threading.Event()
        self.heard: list[str] = []

    def hold(self) -> None:
        """Before the next evaluation, until `go` is set."""
        self.asked.clear()
        self.go.clear()

    def next_probs(self, tokens: Sequence[int]) -> np.ndarray:
        """Answers in chats; everywhere else each byte is followed by the next one."""
        self.asked.set()
        self.go.wait(20)
        text = bytes(t for t in tokens if t < END)
        probs = np.full(257, 1e-6)
        head, turn, said = text.rpartition(TURN)
        if not turn:
            probs[(text[-1] + 1) % 256] = 1
            return probs / probs.sum()
        user = head.decode().rpartition("user\n")[2].removesuffix("<|im_end|>\n")
        system = head.decode().partition("system\n")[2].partition("<|im_end|>")[0]
        if [user] != self.heard[-1:]:
            self.heard.append(user)
        if user == "boom":
            raise RuntimeError("boom: the user said " + user)
        script = ANSWERS.get(user, f"{system}|{user}").encode()
        probs[script[len(said)] if len(said) < len(script) else END] = 1
        return probs / probs.sum()


def toy_engine(script: Script, n_ctx: int = 512, **options: Any) -> edgespec.Engine:
    vocab = [bytes([i]) for i in range(256)] + ["<end>"]
    return edgespec.assemble(
        edgespec.ToyModel(script.next_probs, vocab_size=257, n_ctx=n_ctx),
        edgespec.ToyTokenizer(vocab, eog=[END]),
        speculative_config={"method": "suffix", "num_speculative_tokens": 4, "draft_p_min": 0.1},
        **options,
    )


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    yield made
    made.go.set()


@pytest.fixture
def engine(script: Script) -> Iterator[edgespec.Engine]:
    with toy_engine(script) as made:
        yield made


@pytest.fixture
def client_of(engine: edgespec.Engine) -> Iterator[Callable[..., TestClient]]:
    """Clients of servers with the settings that are given."""
    with contextlib.ExitStack() as stack:

        def make(routes: Sequence[Any] = (), background: Sequence[Any] = (), **settings: Any):
            made = ServerSettings(**({"model": "toy"} | settings))
            app = create_app(engine, made, routes=routes, background=background)
            return stack.enter_context(
                TestClient(app, base_url="http://localhost", client=("127.0.0.1", 1))
            )

        yield make


@pytest.fixture
def client(client_of: Callable[..., TestClient]) -> TestClient:
    return client_of()


class Running:
    """A server behind a port of this machine, whose event loop never stands still."""

    def __init__(self, engine: edgespec.Engine, settings: ServerSettings) -> None:
        self.app = create_app(engine, settings)
        self.ready = threading.Event()
        self.url = ""
        self.server = Server(self.app, engine, settings, self._on_ready)
        self._sock = bind(settings)
        self._thread = threading.Thread(target=self.server.run, args=([self._sock],))
        self.watch = LoopWatch(self._thread)

    def _on_ready(self, url: str) -> None:
        self.url = url
        self.ready.set()

    def __enter__(self) -> Running:
        self._thread.start()
        assert self.ready.wait(20)
        self.watch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.watch.__exit__()
        self.stop()
        self._thread.join(30)
        self._sock.close()
        assert not self._thread.is_alive()
        self.watch.check()

    def stop(self) -> None:
        """As a signal does."""
        self.server.should_exit = True

    @property
    def queue(self):
        return self.app.state.request_queue


@pytest.fixture(scope="session")
def running() -> Callable[..., Running]:
    return lambda engine, **settings: Running(
        engine, ServerSettings(**({"model": "toy", "port": 0} | settings))
    )


@pytest.fixture(scope="module")
def chat() -> ScriptedChat:
    """Return a model that asks for the weather."""
    return ScriptedChat(weather.ANSWERS)


@pytest.fixture(scope="module")
def url(running: Callable[..., Running], chat: ScriptedChat) -> Iterator[str]:
    """Return the URL of a server of that model."""
    with chat.engine() as made, running(made) as server:
        yield server.url


@pytest.fixture(scope="module")
def server() -> Iterator[serving.Server]:
    """Return a verification server over toy models."""
    with serving.Server() as made:
        yield made


@pytest.fixture
def say() -> Callable[..., dict[str, Any]]:
    """Return the body of a chat request."""
    return lambda text, **more: {"messages": [{"role": "user", "content": text}]} | more


@pytest.fixture
def events() -> Callable[[str], list[Any]]:
    """Return the events of a stream of server-sent events."""

    def read(text: str) -> list[Any]:
        blocks = text.split("\n\n")
        assert blocks.pop() == ""
        data = [block.removeprefix("data: ") for block in blocks]
        return [d if d == "[DONE]" else json.loads(d) for d in data]

    return read
