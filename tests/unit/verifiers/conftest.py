"""Fake inference servers, connected."""

import pytest

from tests.helpers.fake_engines import FakeEngine
from tests.helpers.inference_servers import KINDS, verifier


@pytest.fixture(params=KINDS)
def remote(request):
    engine = FakeEngine(request.param)
    with engine.serving() as url:
        found = verifier(request.param, url)
        engine.seen.clear()
        yield engine, found
        found.close()


@pytest.fixture
def vllm():
    engine = FakeEngine("vllm")
    with engine.serving() as url:
        found = verifier("vllm", url)
        engine.seen.clear()
        yield engine, found
        found.close()
