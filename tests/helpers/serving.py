"""A real server on loopback over toy or real models, and devices for it."""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import time

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from websockets.sync.client import connect

from edgespec import ContextFull, ToyModel, ToyTokenizer, protocol
from edgespec.backends.separate import SeparateModels
from edgespec.config import RemoteConfig
from edgespec.decoding.session import Session
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.engine import Engine
from edgespec.policies.fixed import FixedDepth
from edgespec.protocol import decode, encode
from edgespec.scheduling.company import Company
from edgespec.scheduling.devices import DeviceSlots
from edgespec.scheduling.together import Together
from edgespec.server.metrics import Metrics
from edgespec.server.middleware import AccessMiddleware
from edgespec.server.request_queue import RequestQueue
from edgespec.server.settings import ServerSettings
from edgespec.server.verification.sessions import Sessions
from edgespec.server.verification.types import Limits
from edgespec.server.verification.websocket import route
from edgespec.verifiers.local import LocalVerifier
from edgespec.verifiers.remote import RemoteVerifier
from tests.helpers.loop_watch import LoopWatch

WORDS = [*"abcdefghijklmnopqrstuvwxyz", " ", "."]
TOKENIZER = ToyTokenizer(WORDS, eog=[27])
N = len(WORDS)


@functools.cache
def probs_of(seed, sharp=1.0):
    """Next-token probabilities that depend on the last two tokens and hardly ever end."""

    def probs(tokens):
        return row(tuple(tokens[-2:]))

    @functools.cache
    def row(last):
        rng = np.random.default_rng([seed, *last])
        p = rng.dirichlet(np.full(N, 0.3)) ** sharp
        p[27] = 0.002 * p.sum()
        return p / p.sum()

    return probs


def toy(seed=1, n_ctx=256, **options):
    return ToyModel(probs_of(seed), vocab_size=N, n_ctx=n_ctx, **options)


class Shared(SeparateModels):
    """Toy models whose prefixes can be shared, as llama.cpp's can. n_cells: tokens that all slots
    hold together. failures: errors of the next evaluations.
    """

    shares_prefixes, max_leaves = True, 1

    def __init__(self, models, n_cells=1 << 20):
        super().__init__(models)
        self.max_leaves = self.models[0].capabilities.max_leaves
        self.n_cells, self.failures = n_cells, []

    def decode(self, items):
        if self.failures:
            raise self.failures.pop()
        held = sum(model.n_past for model in self.models)
        if held + sum(len(item.tokens) for item in items) > self.n_cells:
            raise ContextFull("no room")
        return super().decode(items)

    def copy(self, source, target, n_past):
        assert self.models[target].n_past == 0
        self.models[target].restore(self.models[source].checkpoint()[:n_past])


def slots_beside(model, n_slots, n_ctx):
    """Return slots next to a model, which hold `n_ctx` tokens together if they share a cache."""
    batched = model.batched()
    slots = DeviceSlots(Company(batched, Together(None)), batched.n_slots)
    slots.add(n_slots, n_ctx, together=True)
    slots.close = slots._model.close
    return slots


def served(n=8, seed=1, n_ctx=256, max_leaves=8, **limits):
    """Return sessions over toy models, not started yet. max_leaves: that they announce."""
    model = Shared([toy(seed, n_ctx) for _ in range(n)])
    model.max_leaves = max_leaves
    return Sessions(model, TOKENIZER, name="toy", limits=Limits(**limits))


def until(true) -> None:
    """Wait for something that happens on another thread."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """Sessions on a real server, which may be ended and begun again on the same port.

    keys: devices must send one of them.
    """

    def __init__(self, make=served, keys=()):
        self._make, self._keys = make, keys
        self.port = free_port()
        self.start()

    @property
    def url(self):
        return f"ws://127.0.0.1:{self.port}"

    def start(self):
        self.sessions = self._make()
        self.sessions.start()
        queue = RequestQueue(1)
        checks = Middleware(
            AccessMiddleware, settings=ServerSettings("toy", api_keys=self._keys),
            metrics=Metrics(queue, queue), names={},
        )  # fmt: skip
        app = Starlette(routes=[route(self.sessions)], middleware=[checks])
        config = uvicorn.Config(
            app, port=self.port, log_level="critical", ws="websockets-sansio", lifespan="off",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            self._thread.join(0.01)
        self.watch = LoopWatch(self._thread).__enter__()

    def stop(self):
        self.watch.__exit__()
        self.sessions.close()
        self._server.should_exit = True
        self._thread.join(10)
        self.watch.check()

    def restart(self):
        self.stop()
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def device(url, *, drafts=True, depth=3, draft_seed=1, **options):
    """Return an engine whose target is at `url`."""
    verifier = RemoteVerifier(RemoteConfig(url, **({"timeout_s": 5.0} | options)), TOKENIZER)
    return engine(verifier, drafts=drafts, depth=depth, draft_seed=draft_seed)


def engine(verifier, *, drafts=True, depth=3, draft_seed=1):
    drafters = []
    if drafts:
        model = ModelDrafter(toy(draft_seed), N, acceptance="coupled")
        lookup = SuffixDrafter(2)
        drafters = [lookup, model]
    session = Session(verifier, drafters, FixedDepth(depth))
    return Engine([session], TOKENIZER)


def local(seed=1, **options):
    """Return an engine whose target is the same one, in this process."""
    return engine(LocalVerifier(toy(seed)), **options)


def drafted_ahead(there):
    """Return a list that gets (step, draft) of each draft of a model that had evaluated the text's
    end while the draft before it was verified.
    """
    drafting, seen, known = there.sessions[0]._drafting, [], []
    grow, observe = drafting.grow, drafting.policy.observe

    def watched(budget):
        known[:] = [
            model.name
            for model in drafting._models
            if (work := model.work([model.root()])) is not None and not work.n_tokens
        ]
        return grow(budget)

    def observed(step, verified, growth):
        observe(step, verified, growth)
        if growth and any(name in growth.draft.source for name in known):
            seen.append((step, growth.draft))

    drafting.grow, drafting.policy.observe = watched, observed
    return seen


@contextlib.contextmanager
def closing(*engines):
    try:
        yield engines[0] if len(engines) == 1 else engines
    finally:
        for one in engines:
            one.close()


def disturbed(there, act, after, prompt, **options):
    """Return the tokens of an answer, and call `act` after each number of tokens in `after`."""
    shown = []
    for event in there.stream(prompt, **options):
        if event.type == "token":
            shown.append(event.token)
            if len(shown) in after:
                act()
    return tuple(shown)


@contextlib.contextmanager
def plainly(server, key=None):
    with connect(
        server.url + "/v1/verify",
        subprotocols=[protocol.SUBPROTOCOL],
        compression=None,
        additional_headers={"Authorization": f"Bearer {key}"} if key else None,
    ) as socket:
        yield socket


@contextlib.contextmanager
def raw(server):
    with plainly(server) as socket:
        introduce(socket)
        yield socket


def introduce(socket, token=protocol.NO_TOKEN, **options):
    digest = protocol.vocabulary_hash(TOKENIZER, N)
    socket.send(encode(protocol.Open(protocol.VERSION, token, N, digest, "", options)))
    return protocol.expect(protocol.Opened, decode(socket.recv(5)))
