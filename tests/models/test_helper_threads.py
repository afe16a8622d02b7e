"""Threads that have answered keep no helper threads of OpenMP, which would slow others down."""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import edgespec
from tests.helpers import libllama, tiny_models
from tests.models.test_recurrent import write_mamba

libllama.require()

pytestmark = [
    pytest.mark.llama_cpp,
    pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc"),
]

TEXTS = ["hello world", "abc", "The quick brown fox", "one two"]


def helpers():
    """Return how many threads Python does not know of."""
    return len(os.listdir("/proc/self/task")) - threading.active_count()


def wait_for(n):
    """Wait until there are n helpers: an ended thread is listed for a moment longer."""
    end = time.monotonic() + 10
    while helpers() != n and time.monotonic() < end:
        time.sleep(0.01)
    assert helpers() == n


@pytest.fixture(params=["llama", "mamba"], ids=["evaluated together", "in turns"])
def path(tmp_path, request):
    if request.param == "llama":
        return tiny_models.write(tmp_path, "llama")
    write_mamba(tmp_path / "mamba.gguf")
    return tmp_path / "mamba.gguf"


@pytest.mark.parametrize("n_slots", [1, 2])
def test_no_helpers_are_left_after_answers(path, n_slots):
    with edgespec.load(path, n_ctx=256, n_threads=2, n_slots=n_slots) as engine:
        wait_for(n := helpers())
        during = 0
        for event in engine.stream("hello", max_tokens=4, ignore_eos=True):
            if event.type == "token":
                during = max(during, helpers())
        if during == n:
            pytest.skip("this build of llama.cpp keeps no helpers for a thread")
        wait_for(n)
        with ThreadPoolExecutor(n_slots) as pool:
            answers = pool.map(lambda text: engine.generate(text, max_tokens=8), TEXTS)
            assert all(answer.token_ids for answer in answers)
            wait_for(n)  # while the pool's threads are still alive


def test_loading_keeps_no_helpers(path):
    engine = edgespec.load(path, n_ctx=256, n_threads=2)
    n = helpers()
    engine.generate("hello", max_tokens=4)
    wait_for(n)
    engine.close()
