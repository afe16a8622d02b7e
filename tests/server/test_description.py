"""Requests that schemathesis makes from our OpenAPI description never break the server, and the
answers are as described.
"""

from __future__ import annotations

import warnings

import pytest
from hypothesis import HealthCheck, given, settings

from edgespec.server import openapi
from edgespec.server.apis import APIS
from edgespec.server.settings import ServerSettings
from tests.helpers.scripted_chats import ScriptedChat
from tests.helpers.selection import share

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, and its dependencies'
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance,
    response_schema_conformance,
]  # fmt: skip
HEADERS = {"Authorization": "Bearer key"}

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def url(running, engine):
    with running(engine, api_keys=("key",)) as server:
        yield f"{server.url}/openapi.json"


def test_every_api_is_described():
    described = openapi.document(ServerSettings(model="toy"))["paths"]
    assert {api.path for api in APIS} <= described.keys()


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_no_request_breaks_the_server(url, mode):
    described = schemathesis.openapi.from_url(url, headers=HEADERS, wait_for_schema=5)
    operations = [found.ok() for found in described.get_all_operations()]
    assert len(operations) == 15  # all but the description itself
    for operation in operations:
        asks = bool(operation.body)
        if mode is schemathesis.GenerationMode.NEGATIVE and not asks:
            continue  # there is nothing to get wrong

        attempt(operation, mode, share(60, 20) if asks else 3)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_no_chat_breaks_a_model_with_tools(running, mode):
    with (
        ScriptedChat({}).engine(n_ctx=100_000) as engine,
        running(engine, api_keys=("key",), sampling={"max_tokens": 5}) as server,
    ):
        url = f"{server.url}/openapi.json"
        described = schemathesis.openapi.from_url(url, headers=HEADERS, wait_for_schema=5)
        attempt(described["/v1/chat/completions"]["POST"], mode, share(60, 20))


def attempt(operation, mode, n):
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=n, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def call(case):
        if isinstance(case.body, dict):
            case.body.pop("max_tokens", None)
        case.call_and_validate(checks=CHECKS, headers=HEADERS, timeout=20)

    call()
