"""Fake inference servers, connected."""

import pytest

from tests.helpers.inference_servers import KINDS, connected


@pytest.fixture(params=KINDS)
def remote(request):
    with connected(request.param) as made:
        yield made


@pytest.fixture
def vllm():
    with connected("vllm") as made:
        yield made
