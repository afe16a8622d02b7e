"""Requests that are not quite right are refused by name, and the description says the same."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import edgespec
from edgespec.server.apis.chat_completions.structs import ChatRequest
from edgespec.server.apis.completions import CompletionRequest
from edgespec.server.apis.llama_server import InfillRequest, NativeCompletion
from edgespec.server.apis.messages.structs import CountRequest, MessagesRequest
from edgespec.server.apis.responses.structs import ResponsesRequest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
KINDS = {CHAT: ChatRequest, TEXT: CompletionRequest}
CONVERTED = {
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/infill": InfillRequest,
    "/completion": NativeCompletion,
}
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("max_tokns", 5, "did you mean 'max_tokens'"),
        ("top_pp", 5, "did you mean 'top_p'"),
        ("predictions", {}, "did you mean 'prediction'"),
        ("seeds", 5, "did you mean 'seed'"),
        ("temprature", 1, "temperature"),
        ("temperature", "warm", "must be a number"),
        ("temperature", -1, "at least 0"),
        ("temperature", True, "must be a number, got true"),
        ("top_p", 0, "above 0"),
        ("top_p", 1.5, "at most 1"),
        ("top_k", 2.5, "a whole number"),
        ("min_p", 2, "at most 1"),
        ("seed", 2**64, "at most"),
        ("max_tokens", 0, "at least 1"),
        ("n", 2, "must be 1, got 2; one answer a request"),
        ("stop", [""], "length at least 1"),
        ("stop", {"a": 1}, "text or a list"),
        ("stop", ["a"] * 17, "at most 16"),
        ("logit_bias", {"x": 1}, "keys are token ids"),
        ("logit_bias", {"1": "much"}, "must be a number"),
        ("logit_bias", {"1": 500}, "at most 100"),
        ("repetition_penalty", 0, "at least"),
        ("num_draft_tokens", -1, "at least 0"),
        ("disable_spec_decode", 1, "true or false"),
        ("repetition_detection", {"max_patern_size": 1}, "max_pattern_size"),
        ("repetition_detection", {"max_pattern_size": 2000}, "at most 1024"),
        ("stream_options", {"include_sage": True}, "include_usage"),
        ("model", 7, "must be text"),
        ("top_logprobs", 21, "at most 20"),
        ("functions", [{"name": "a"}], "tools holds functions"),
        ("response_format", {"type": "xml"}, 'or "text", got "xml"'),
        ("response_format", {"type": "json_schema"}, "json_schema is missing"),
        ("response_format", {"type": "text", "strict": True}, "unknown field"),
        ("json_schema", {"type": "strange"}, "schema cannot be followed"),
        ("json_schema", {"$ref": "#/$defs/a"}, "schema cannot be followed"),
        ("grammar", "root ::= (", "grammar cannot be followed"),
        ("grammar", 'a ::= "b"', "No 'root' rule"),
        ("grammar", "", "grammar cannot be followed"),
        ("structured_outputs", {"regex": "(a"}, "regex cannot be followed"),
        ("structured_outputs", {"json": {}, "regex": "a"}, "both say what an answer is"),
        ("audio", {}, "not supported"),
        ("reasoning_effort", "huge", '"high" or "low"'),
        ("messages", [], "at least 1"),
        ("messages", [{"role": "robot", "content": "x"}], 'must be "system" or'),
        ("messages", [{"role": "tool", "content": "x"}], "tool_call_id' is missing"),
        ("messages", [{"role": "user"}], "'messages[0].content' is missing"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], 'must be "text"'),
        ("messages", "hello", "must be a list"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(client, field, value, says):
    response = client.post(CHAT, json={"messages": MESSAGES} | {field: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"].startswith(field)
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("field", "value"), [("echo", True), ("best_of", 2), ("suffix", "x"), ("logprobs", True)]
)
def test_refusals_of_completions(client, field, value):
    response = client.post(TEXT, json={"prompt": "a", field: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


@pytest.mark.parametrize(
    "more",
    [
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"n": 1, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"temperature": None, "stop": None, "audio": None, "reasoning_effort": None, "seed": None},
        {"modalities": ["text"], "parallel_tool_calls": True, "prompt_cache_key": "k"},
        {"prompt_cache_options": {"mode": "explicit"}, "prompt_cache_retention": "24h"},
        {"keep_alive": "5m", "ttl": 300, "draft_model": "small", "verbosity": "low"},
        {"cache_prompt": True, "id_slot": -1, "timings_per_token": False, "return_progress": True},
        {"request_id": "a", "priority": 0, "include_reasoning": True, "usage": {"include": True}},
        {"provider": {"order": ["a"]}, "route": "fallback", "transforms": []},
        {"chat_id": "1", "session_id": "2", "litellm_metadata": {"a": 1}},
        {"litellm_session_id": "a", "litellm_trace_id": "b"},
    ],
)
def test_what_changes_nothing_is_taken(client, more):
    answer = client.post(CHAT, json={"messages": MESSAGES} | more)
    assert answer.json()["choices"][0]["message"]["content"] == "Hi, what can I do?"


def test_both_names_of_a_length(client):
    body = {"messages": MESSAGES, "max_tokens": 1, "max_completion_tokens": 2}
    assert "one thing" in client.post(CHAT, json=body).json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "must be a JSON object"),
        (b'{"prompt": NaN}', "not JSON"),
        (b'{"prompt": "a", "temperature": 1e999}', "out of range"),
        (b'{"prompt": "\\ud800"}', "Unicode"),
        (b'{"\\ud800": 1}', "Unicode"),
        (b'\xff{"prompt": "a"}', "Unicode"),
        (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", ""),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_bodies_that_are_no_requests(client, body, says):
    response = client.post(TEXT, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


def test_another_type_of_body_is_refused(client):
    """Web pages may send these without asking; so a page elsewhere cannot use this server."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = client.post(TEXT, content=b'{"prompt": "a"}', headers={"Content-Type": kind})
        assert response.status_code == 415


def test_the_description_lists_what_is_taken(client):
    told = client.get("/openapi.json").json()
    paths, schemas = told["paths"], told["components"]["schemas"]
    for path, kind in (KINDS | CONVERTED).items():
        content = paths[path]["post"]["requestBody"]["content"]
        name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
        schema = schemas[name]
        assert set(schema["properties"]) == set(kind.__struct_fields__)
        assert schema["additionalProperties"] is False
        assert all("description" in s for s in schema["properties"].values())


def test_the_pages_name_what_is_taken():
    reference = Path(__file__).parents[2] / "docs" / "reference"
    pages = (reference / "server-api.md", reference / "settings.md")
    page = "".join(each.read_text(encoding="utf-8") for each in pages)
    kinds = (KINDS | CONVERTED).values()
    fields = [f for kind in kinds for f in msgspec.inspect.type_info(kind).fields]
    taken = [f.name for f in fields if "Not supported" not in str(f.type.extra_json_schema)]
    assert "messages" in taken
    assert "functions" not in taken
    assert [name for name in taken if f"`{name}`" not in page] == []


def test_what_the_engine_takes_may_be_asked_for():
    of_others = {"schema", "regex", "choices"}  # which other parameters ask for
    for kind in KINDS.values():
        fields = set(edgespec.SamplingParams.__dataclass_fields__) - of_others
        assert fields <= set(kind.__struct_fields__)
