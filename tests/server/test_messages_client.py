"""Anthropic's own client, unmodified, against the Messages API over a toy model."""

from __future__ import annotations

import re

import anthropic
import pytest

PATH = "/v1/messages"
ASK = [{"role": "user", "content": "hello"}]


@pytest.fixture
def official(running, engine):
    with (
        running(engine, api_keys=("key",)) as server,
        anthropic.Anthropic(base_url=server.url, api_key="key", max_retries=0) as made,
    ):
        yield made


def test_the_official_client(official):
    answer = official.messages.create(model="toy", max_tokens=50, messages=ASK)
    assert [block.text for block in answer.content] == ["Hi, what can I do?"]
    assert (answer.stop_reason, answer.role, answer.model) == ("end_turn", "assistant", "toy")
    assert answer.usage.output_tokens == len("Hi, what can I do?") + 1
    turns = [
        *ASK,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": "x"},
    ]
    again = official.messages.create(model="toy", max_tokens=50, system="be", messages=turns)
    assert again.content[0].text == "be|x"
    warm = official.messages.create(model="toy", max_tokens=50, system="be", messages=turns)
    assert warm.usage.cache_read_input_tokens > 0
    total = warm.usage.input_tokens + warm.usage.cache_read_input_tokens
    counted = official.messages.count_tokens(model="toy", system="be", messages=turns)
    assert counted.input_tokens == total


def test_stops_under_the_official_client(official):
    short = official.messages.create(model="toy", max_tokens=3, messages=ASK)
    assert (short.content[0].text, short.stop_reason) == ("Hi,", "max_tokens")
    cut = official.messages.create(
        model="toy", max_tokens=50, messages=ASK, stop_sequences=["xyz", "can"]
    )
    assert (cut.content[0].text, cut.stop_reason) == ("Hi, what ", "stop_sequence")
    assert cut.stop_sequence == "can"


def test_the_official_clients_stream(official):
    said = [{"role": "user", "content": "umlaut"}]
    with official.messages.stream(model="toy", max_tokens=50, messages=said) as stream:
        assert "".join(stream.text_stream) == "Grüße aus Köln"
        final = stream.get_final_message()
    whole = official.messages.create(model="toy", max_tokens=50, messages=said)
    assert final.content[0].text == whole.content[0].text == "Grüße aus Köln"
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_refusals_under_the_official_client(official):
    with pytest.raises(anthropic.BadRequestError) as refused:
        official.messages.create(
            model="toy", max_tokens=5, messages=ASK, extra_body={"temprature": 1}
        )
    told = refused.value.body
    assert told["type"] == "error"
    assert told["error"]["type"] == "invalid_request_error"
    assert "did you mean 'temperature'" in told["error"]["message"]
    assert told["request_id"] == refused.value.response.headers["x-request-id"]
    for n in (600, 6000):  # with the second one the bytes alone say so
        said = [{"role": "user", "content": "a" * n}]
        with pytest.raises(anthropic.BadRequestError) as refused:
            official.messages.create(model="toy", max_tokens=5, messages=said)
        message = refused.value.body["error"]["message"]
        assert re.match(r"prompt is too long: \d{3,} tokens > 512 maximum", message)
    with pytest.raises(anthropic.NotFoundError, match="claude"):
        official.messages.create(model="claude", max_tokens=5, messages=ASK)
    with pytest.raises(anthropic.AuthenticationError) as stranger:
        official.with_options(api_key="wrong").messages.create(
            model="toy", max_tokens=5, messages=ASK
        )
    assert stranger.value.body["error"]["type"] == "authentication_error"


def test_a_key_may_come_either_way(running, engine):
    with (
        running(engine, api_keys=("key",)) as server,
        anthropic.Anthropic(base_url=server.url, auth_token="key", api_key=None) as bearer,
    ):
        assert bearer.messages.count_tokens(model="toy", messages=ASK).input_tokens > 0


def test_a_stream_that_breaks_off_says_so(official):
    said = [{"role": "user", "content": "boom"}]
    with (
        pytest.raises(anthropic.APIStatusError, match="its log says where") as broken,
        official.messages.stream(model="toy", max_tokens=5, messages=said) as stream,
    ):
        stream.until_done()
    assert broken.value.body["error"]["type"] == "api_error"
    with pytest.raises(anthropic.InternalServerError):
        official.messages.create(model="toy", max_tokens=5, messages=said)
    assert official.messages.create(model="toy", max_tokens=50, messages=ASK).content


def test_every_error_under_the_path_has_its_shape(client_of):
    client = client_of(max_body_bytes=1024, api_keys=("key",))
    headers = {"x-api-key": "key"}
    for sent, kind in (
        (client.get(PATH, headers=headers), "invalid_request_error"),
        (client.get(f"{PATH}/nothing", headers=headers), "not_found_error"),
        (client.post(PATH, headers=headers, json={"a": "x" * 2000}), "request_too_large"),
        (client.post(PATH, headers=headers, content=b"{}"), "invalid_request_error"),
        (client.post(PATH, json={}), "authentication_error"),
    ):
        assert sent.json()["type"] == "error"
        assert sent.json()["error"]["type"] == kind
    assert "param" in client.get("/v1/messagesx", headers=headers).json()["error"]


def test_a_count_may_be_longer_than_the_context(client):
    said = [{"role": "user", "content": "a" * 1000}]
    counted = client.post(f"{PATH}/count_tokens", json={"messages": said}).json()
    assert counted["input_tokens"] > 1000
