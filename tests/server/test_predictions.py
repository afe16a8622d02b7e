"""OpenAI's predicted outputs over `/v1/chat/completions`."""

from __future__ import annotations

import openai
import pytest

TEXT = "Hi, what can I do?"
USER = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"


def asked(client, **more):
    answer = client.post(CHAT, json={"messages": USER} | more).json()
    assert answer["choices"][0]["message"]["content"] == TEXT
    details = answer["usage"]["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


@pytest.mark.parametrize(
    "content", [TEXT, [{"type": "text", "text": t} for t in (TEXT[:5], TEXT[5:])]]
)
def test_a_prediction_is_drafted_from_and_counted(client, content):
    accepted, _ = asked(client, prediction={"type": "content", "content": content})
    assert accepted >= 12
    assert asked(client) == (0, 0)  # of this request alone


def test_a_wrong_prediction_changes_nothing_but_the_counts(client):
    wrong = "Hi, whatever you think it is, it is something else." + TEXT[::-1]
    accepted, rejected = asked(client, prediction={"type": "content", "content": wrong})
    assert accepted >= 4
    assert rejected >= 1


def test_a_stream_counts_too(client):
    body = {"messages": USER, "stream": True, "stream_options": {"include_usage": True}}
    body["prediction"] = {"type": "content", "content": TEXT}
    streamed = client.post(CHAT, json=body).text
    assert '"accepted_prediction_tokens":0' not in streamed.replace(" ", "")
    assert "accepted_prediction_tokens" in streamed


@pytest.mark.parametrize("prediction", ["text", {"type": "file", "content": "x"}, {"content": "x"}])
def test_what_is_no_prediction_is_refused_by_name(client, prediction):
    response = client.post(CHAT, json={"messages": USER, "prediction": prediction})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("prediction")


def test_openais_client_sends_one_and_reads_the_counts_and_the_reason(running, engine):
    with (
        running(engine) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        answer = client.chat.completions.create(
            model="toy",
            messages=[{"role": "user", "content": "again"}],
            prediction={"type": "content", "content": "one two three, one two three, "},
            verbosity="low",
            extra_body={"repetition_detection": {"max_pattern_size": 16, "min_count": 3}},
        )
        assert answer.choices[0].finish_reason == "repetition"
        assert answer.usage.completion_tokens_details.accepted_prediction_tokens > 20
        again = client.responses.create(
            model="toy",
            input="again",
            extra_body={"repetition_detection": {"max_pattern_size": 16, "min_count": 3}},
        )
        assert again.incomplete_details.reason == "max_output_tokens"
        assert again.output_text == answer.choices[0].message.content
