"""Several requests at once: who runs, what each client sees of it, and how each one ends."""

from __future__ import annotations

import contextlib
import threading
import time

import httpx
import numpy as np
import pytest

from edgespec import Engine, ToyModel, ToyTokenizer
from edgespec.cache.prefixes import PrefixStore
from edgespec.cache.token_cache import TokenCache
from edgespec.decoding.session import Session
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.randomness import seed_of_choice
from edgespec.scheduling.company import Company
from edgespec.scheduling.together import Together
from edgespec.server.metrics import Metrics
from edgespec.server.request_queue import RequestQueue
from edgespec.verifiers.local import LocalVerifier
from tests.helpers.serving import Shared, toy

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


def test_requests_run_at_once(served, gates):
    gates.shut_for("a")
    slow = Asking(served.url, "abc", ONE)
    until(lambda: served.engine.status().running)
    assert Asking(served.url, "bcd", ONE).text == "efg"
    assert served.queue.n_running == 1
    gates.open()
    assert slow.text == "def"


def test_a_key_does_not_hold_all_slots_while_another_one_waits(served, gates):
    gates.shut_for("a")
    gates.shut_for("b")
    many = [Asking(served.url, letter + "x", ONE) for letter in "ab"]
    until(lambda: served.queue.n_running == 2)
    many += [Asking(served.url, "b" + "xyz"[:i], ONE) for i in range(2)]
    until(lambda: served.queue.n_waiting == 2)
    other = Asking(served.url, "cde", TWO)
    until(lambda: served.queue.n_waiting == 3)
    gates.open("a")  # one slot becomes free, and both of the first key's wait longer
    assert other.text == "fgh"
    gates.open()
    assert all(asking.text for asking in many)


def test_metrics_count_what_runs_and_what_waits(served, gates):
    for letter in "abc":
        gates.shut_for(letter)
    all_of_them = [Asking(served.url, letter + "x", ONE) for letter in "abc"]
    until(lambda: served.queue.n_waiting == 1)
    told = httpx.get(served.url + "/metrics", headers=ONE).text
    assert "edgespec:num_requests_running 2.0" in told
    assert "edgespec:num_requests_waiting 1.0" in told
    gates.open()
    for asking in all_of_them:
        asking.wait()


def test_a_request_replaces_the_oldest_one_of_its_own_key(served, gates):
    for letter in "ab":
        gates.shut_for(letter)
    first = Asking(served.url, "abc", ONE)
    until(lambda: served.queue.n_running == 1)
    other = Asking(served.url, "bcd", TWO)
    until(lambda: served.queue.n_running == 2)
    later = Asking(served.url, "cde", ONE, on_busy="replace")
    until(lambda: served.queue.n_waiting == 1)
    gates.open("a")  # its evaluation cannot be stopped before its end
    assert later.text == "fgh"
    error = first.wait()["error"]
    assert (first.answer.status_code, error["code"]) == (409, "replaced")
    assert other.answer is None
    refused = Asking(served.url, "cde", TWO, on_busy="error")
    assert refused.text == "fgh"  # a slot is free
    gates.shut_for("d")
    again = Asking(served.url, "def", ONE)
    until(lambda: served.queue.n_running == 2)
    refused = Asking(served.url, "cde", TWO, on_busy="error")
    assert refused.wait()["error"]["code"] == "busy"
    assert refused.answer.status_code == 429
    gates.open()
    assert other.text == "efg"
    assert again.text == "ghi"


def test_who_leaves_ends_only_its_own_request(served, gates):
    for letter in "ab":
        gates.shut_for(letter)
    other = Asking(served.url, "bcd", TWO)
    until(lambda: served.queue.n_running == 1)
    body = {"prompt": "abc", "max_tokens": 9000, "stream": True}
    with httpx.stream("POST", served.url + TEXT, json=body, headers=ONE) as stream:
        assert stream.status_code == 200
        until(lambda: served.queue.n_running == 2)
    gates.open("a")
    until(lambda: served.queue.n_running == 1)
    gates.open()
    assert other.text == "efg"


def test_the_end_of_the_server_ends_all_answers(gates, running):
    for letter in "ab":
        gates.shut_for(letter)
    with engine_of(gates, 2) as engine, running(engine, grace_s=0) as server:
        both = [Asking(server.url, letter + "b", max_tokens=9000) for letter in "ab"]
        until(lambda: server.queue.n_running == 2)
        waiting = Asking(server.url, "cde")
        until(lambda: server.queue.n_waiting == 1)
        server.stop()
        assert waiting.wait()["error"]["code"] == "shutting_down"
        gates.open()
    for asking in both:
        assert asking.wait()["error"]["code"] == "shutting_down"


def seeded(text, **fields):
    return {"prompt": text, "max_tokens": 8, "temperature": 1.0, "ignore_eos": True} | fields


@pytest.fixture
def noisy(running):
    """Run servers with one and with three slots, of a model that says anything."""
    with contextlib.ExitStack() as stack:
        urls = []
        for n in (1, 3):
            gates = Gates()
            gates.next_probs = lambda tokens: NOISE[tokens[-1] % 7]
            engine = stack.enter_context(engine_of(gates, n))
            urls.append(stack.enter_context(running(engine, max_queue=0)).url)
        yield urls


NOISE = np.random.default_rng(0).dirichlet(np.concatenate([np.ones(128), np.full(129, 1e-9)]), 7)


def ask(url, path=TEXT, **body):
    response = httpx.post(url + path, json=body, timeout=30)
    assert response.status_code == 200, response.text
    return response.json()


def test_choices_have_seeds_of_their_own_and_the_first_one_that_of_the_request(noisy):
    answers = [ask(url, **seeded("abc", n=4, seed=7)) for url in noisy]
    texts = [[choice["text"] for choice in answer["choices"]] for answer in answers]
    assert texts[0] == texts[1]  # in one slot or in three
    assert len(set(texts[0])) == 4
    alone = ask(noisy[0], **seeded("abc", seed=7))["choices"][0]["text"]
    derived = ask(noisy[0], **seeded("abc", seed=seed_of_choice(7, 2)))["choices"][0]["text"]
    assert texts[0][0] == alone
    assert texts[0][2] == derived
    for answer in answers:
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["prompt_tokens"] == 3
        assert answer["usage"]["completion_tokens"] == 32
        assert answer["usage"]["total_tokens"] == 35


def test_several_prompts_have_several_choices_each(noisy):
    for url in noisy:
        body = seeded(["ab", "cde"], n=2, seed=3, logprobs=1)
        answer = ask(url, **body)
        alone = [
            ask(url, **seeded(text, seed=3, logprobs=1))["choices"][0] for text in ("ab", "cde")
        ]
        assert [answer["choices"][i]["text"] for i in (0, 2)] == [each["text"] for each in alone]
        for i, one in zip((0, 2), alone, strict=True):
            assert answer["choices"][i]["logprobs"] == one["logprobs"]
        assert answer["usage"]["prompt_tokens"] == 5


def test_streams_of_several_choices_are_the_same_as_whole_answers(noisy, events):
    for url in noisy:
        body = seeded("abc", n=3, seed=5, logprobs=0)
        whole = ask(url, **body)
        options = {"include_usage": True, "continuous_usage_stats": True}
        streamed = httpx.post(
            url + TEXT, json=body | {"stream": True, "stream_options": options}, timeout=30
        )
        *chunks, last, done = events(streamed.text)
        assert done == "[DONE]"
        texts, offsets = ["", "", ""], [[], [], []]
        for chunk in chunks:
            assert chunk["usage"]["prompt_tokens"] == 3
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
                offsets[choice["index"]] += (choice["logprobs"] or {}).get("text_offset", [])
        assert texts == [choice["text"] for choice in whole["choices"]]
        assert offsets == [choice["logprobs"]["text_offset"] for choice in whole["choices"]]
        counts = ("prompt_tokens", "completion_tokens")
        assert [last["usage"][name] for name in counts] == [3, 24]
        assert [whole["usage"][name] for name in counts] == [3, 24]


def test_choices_run_at_once_when_the_prompt_is_read(served, gates):
    gates.shut_for("a")
    asking = Asking(served.url, "abc", ONE, n=3, max_tokens=2000)
    until(lambda: served.engine.status().running)
    assert served.queue.n_running == 1  # the others wait until its prompt is read
    gates.open()
    until(lambda: served.queue.n_running == 2)
    assert len({choice["text"] for choice in asking.wait()["choices"]}) == 1
    log_free = httpx.get(served.url + "/slots", headers=ONE).json()
    assert not any(slot["is_processing"] for slot in log_free)


def test_a_replaced_request_with_several_choices_ends_as_a_whole(served, gates):
    asking = Asking(served.url, "abc", ONE, n=4, max_tokens=9000)
    until(lambda: served.queue.n_running == 2)
    assert Asking(served.url, "cde", ONE, on_busy="replace").text == "fgh"
    assert asking.wait()["error"]["code"] == "replaced"
    until(lambda: served.queue.n_running == 0)


def test_a_client_that_leaves_ends_all_its_choices(served):
    body = {"prompt": "abc", "max_tokens": 9000, "stream": True, "n": 5}
    with httpx.stream("POST", served.url + TEXT, json=body, headers=ONE):
        until(lambda: served.queue.n_running == 2)
    until(lambda: served.queue.n_running == 0)
    assert not served.engine.status().running
    assert Asking(served.url, "cde", TWO).text == "fgh"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/v1/responses", {"input": "a"}),
        ("/completion", {"prompt": "a"}),
    ],
)
def test_apis_without_choices_refuse_them(noisy, path, body):
    assert httpx.post(noisy[0] + path, json=body | {"n": 2}).status_code == 400
    ask(noisy[0], path, **body, on_busy="replace")


def test_many_choices_of_one_key_do_not_hold_all_slots(served):
    asking = Asking(served.url, "abc", ONE, n=8, max_tokens=3000)
    until(lambda: served.queue.n_running == 2)
    assert Asking(served.url, "cde", TWO).text == "fgh"
    assert asking.answer is None
    assert len(asking.wait()["choices"]) == 8


def test_choices_that_have_no_slot_when_the_server_ends_are_still_answered(gates, running):
    with engine_of(gates, 2) as engine, running(engine, grace_s=20) as server:
        gates.shut_for("b")
        other = Asking(server.url, "bcd")
        until(lambda: server.queue.n_running == 1)
        asking = Asking(server.url, "abc", n=3, max_tokens=1000)
        until(lambda: server.queue.n_waiting == 1)
        server.stop()
        assert len(asking.wait()["choices"]) == 3
        gates.open()
        assert other.text == "efg"


def test_shared_evaluations_are_counted():
    company = Company(Shared([toy(), toy()]), Together(None))
    company.counts.shared_draft_evaluations += 2
    queue = RequestQueue(4, 2)
    queue.n_tokenizing = 0
    text = Metrics(queue, queue, None, company).text().decode()
    assert "edgespec:shared_draft_evaluations_total 2.0" in text
    assert "edgespec:evaluations_total 0.0" in text


def test_the_sizes_of_kept_prompts_are_shown():
    store, queue = PrefixStore(1 << 20), RequestQueue(4, 2)
    queue.n_tokenizing = 0
    text = Metrics(queue, queue, prefixes=store).text().decode()
    assert "edgespec:prompt_cache_memory_bytes 0.0" in text
    model = ToyModel(lambda tokens: np.full(16, 1 / 16), vocab_size=16, n_ctx=512)
    cache = TokenCache(model, prefixes=store.of(None))
    cache.decode([3] * 256, 1)
    cache.save()
    text = Metrics(queue, queue, prefixes=store).text().decode()
    assert "edgespec:prompt_cache_tokens 256.0" in text
    assert f"edgespec:prompt_cache_memory_bytes {float(store.n_bytes)}" in text
    assert store.n_bytes > 0
    assert "prompt_cache_disk_bytes" not in text  # nothing is kept on disk
