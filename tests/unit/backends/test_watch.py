"""Stopping native evaluations while they run."""

import threading

import pytest

from edgespec import Aborted, EngineConfig
from edgespec.backends.watch import Watch
from tests.helpers import libllama, tiny_models
from tests.helpers.stopping import stop_within

libllama.require()

from edgespec.backends.llama_cpp import LlamaCppModel  # noqa: E402
from edgespec.backends.llama_cpp.abort import lib  # noqa: E402

CONFIG = EngineConfig(n_ctx=128, n_threads=1)


def test_a_reason_stops_what_runs_and_nothing_that_runs_later():
    stopped, wanted = threading.Event(), threading.Event()
    watch = Watch(stopped.set)
    with watch.during(lambda: "cancelled" if wanted.is_set() else None):
        assert not stopped.wait(0.05)
        wanted.set()
        assert stopped.wait(20)
    stopped.clear()
    with watch.during(lambda: None):
        assert not stopped.wait(0.05)
    with watch.during(None):
        assert not stopped.wait(0.05)


def test_two_models_are_watched_and_each_is_asked_for_itself():
    first, second = threading.Event(), threading.Event()
    with Watch(first.set).during(lambda: None), Watch(second.set).during(lambda: "time_limit"):
        assert second.wait(20)
        assert not first.is_set()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    made = LlamaCppModel(tiny_models.write(tmp_path_factory.mktemp("tiny"), "llama"), CONFIG)
    yield made
    made.close()


@pytest.mark.llama_cpp
@pytest.mark.parametrize("n", [1, 2, 16, 40])
def test_llama_cpp_stops_evaluations_of_every_size(model, n, monkeypatch):
    model.truncate(0)
    expected = model.decode([5, 6, 7]).logits.copy()
    model.decode(list(range(3, 3 + n)))
    model.truncate(3)
    stop_within(monkeypatch)
    with pytest.raises(Aborted):
        model.decode(list(range(3, 3 + n)))
    assert model.n_past == 3
    model.truncate(0)
    assert (model.decode([5, 6, 7]).logits == expected).all()


@pytest.mark.llama_cpp
def test_llama_cpp_stops_trees(model, monkeypatch):
    model.truncate(0)
    model.decode([5, 6, 7])
    stop_within(monkeypatch)
    with pytest.raises(Aborted):
        model.decode_tree([8, 9, 10], [-1, -1])
    assert model.n_past == 3


@pytest.mark.llama_cpp
def test_plain_decoding_neither_installs_a_callback_nor_calls_python(model, monkeypatch):
    """The function that is asked between operations is the C library's own, set once a context."""
    calls = []
    monkeypatch.setattr(lib, "llama_set_abort_callback", lambda *given: calls.append(given))
    asked = []
    model.truncate(0)
    for _ in range(20):
        model.decode([5], abort=lambda: asked.append(threading.current_thread().name))
    assert not calls
    assert asked.count("MainThread") == 20  # once before each
