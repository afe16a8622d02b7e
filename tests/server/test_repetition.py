"""Endless repetition over the APIs: seen where it is asked for, under the nearest name of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from edgespec.server import base
from edgespec.server.apis.messages import writer as messages_writer
from edgespec.types import FinishReason

RULE = {"max_pattern_size": 16, "min_count": 3}
REPEATED = "one two three, " * 3
USER = [{"role": "user", "content": "again"}]


def test_a_chat_completion_ends_as_in_vllm(client):
    body = {"messages": USER, "repetition_detection": RULE}
    answer = client.post("/v1/chat/completions", json=body).json()
    choice = answer["choices"][0]
    assert choice["message"]["content"] == REPEATED
    assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
    assert answer["edgespec"]["finish_reason"] == "repetition"
    assert answer["edgespec"]["num_repeated_tokens"] == len(REPEATED)
    assert answer["edgespec"]["speedup"] is None
    streamed = client.post("/v1/chat/completions", json=body | {"stream": True}).text
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "repetition"


def test_a_text_completion_ends_too(client):
    rule = {"max_pattern_size": 1, "min_pattern_size": 0, "min_count": 3}
    body = {"prompt": "a", "logit_bias": {"98": 100}, "repetition_detection": rule}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("bbb", "repetition")


@pytest.mark.parametrize("rule", [None, {"max_pattern_size": 0}, {}])
def test_it_is_off_unless_it_is_asked_for(client, rule):
    body = {"messages": USER, "repetition_detection": rule}
    choice = client.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert choice["finish_reason"] == "stop"


def test_half_a_rule_is_refused(client):
    body = {"messages": USER, "repetition_detection": {"max_pattern_size": 4}}
    error = client.post("/v1/chat/completions", json=body).json()["error"]
    assert "min_count must be at least 2" in error["message"]


def test_responses_call_it_incomplete(client):
    body = {"input": "again", "repetition_detection": RULE}
    answer = client.post("/v1/responses", json=body).json()
    assert answer["output"][0]["content"][0]["text"] == REPEATED
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


def test_messages_call_it_cut(client):
    body = {"messages": USER, "max_tokens": 200, "repetition_detection": RULE}
    answer = client.post("/v1/messages", json=body).json()
    assert answer["content"][0]["text"] == REPEATED
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("max_tokens", None)


def test_every_reason_of_the_engine_has_a_word_in_every_api_and_page():
    reasons = set(get_args(FinishReason)) - {"cancelled"}  # which is an error here
    assert set(base.REASONS) == reasons
    assert set(base.REASONS.values()) <= set(messages_writer._REASONS)
    docs = Path(__file__).parents[2] / "docs"
    for page in ("how-to/embed.md", "reference/command-line.md"):
        text = (docs / page).read_text(encoding="utf-8")
        assert [reason for reason in reasons if f"`{reason}`" not in text] == []
