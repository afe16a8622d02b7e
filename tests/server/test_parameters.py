"""Requests that are not quite right are refused by name, and the description says the same."""

from __future__ import annotations

import json
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
        ("top_p", -0.5, "at least 0"),
        ("top_p", 1.5, "at most 1"),
        ("top_k", 2.5, "a whole number"),
        ("min_p", 2, "at most 1"),
        ("seed", 2**64, "at most"),
        ("max_tokens", 0, "at least 1"),
        ("n", 0, "at least 1"),
        ("n", 129, "at most 128"),
        ("on_busy", "cry", "wait"),
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
        ("structured_outputs", {"regex": "(a"}, "regex cannot be followed"),
        ("structured_outputs", {"json": {}, "regex": "a"}, "both say what an answer is"),
        ("audio", {}, "not supported"),
        ("reasoning_effort", "huge", '"high" or "low"'),
        ("messages", [], "at least 1"),
        ("messages", [{"role": "robot", "content": "x"}], 'must be "system" or'),
        ("messages", [{"role": "tool", "content": "x", "tool_call_id": 1}], "must be text"),
        ("messages", [{"role": "user"}], "'messages[0].content' is missing"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "'image_url' is miss"),
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


CLIENT_TOOL = {"name": "get", "parameters": {"type": "object"}, "return": {"type": "string"}}
DEFAULTS = [
    *({"top_k": k} for k in (-1, 0)),
    {"top_p": 1}, {"min_p": 0}, {"repetition_penalty": 1}, {"repetition_detection": {}},
    {"repetition_detection": {"max_pattern_size": 0, "min_count": 0}},
    {"presence_penalty": 0, "frequency_penalty": 0.0}, {"logit_bias": {}}, {"logit_bias": []},
    {"seed": -1}, {"max_tokens": -1}, {"stop": ""}, {"stop": []}, {"stop": [""]},
    {"stop_token_ids": []}, {"ignore_eos": False}, {"stream": False}, {"stream_options": {}},
    {"stream_options": {"include_usage": False, "continuous_usage_stats": False}},
    {"return_tokens_as_token_ids": False}, {"grammar": ""}, {"structured_outputs": {}},
    {"structured_outputs": {"regex": "", "grammar": "", "disable_any_whitespace": False}},
    {"n": 1, "best_of": None, "disable_spec_decode": False, "num_draft_tokens": None},
    {"min_tokens": 0, "length_penalty": 1.0, "use_beam_search": False, "typical_p": 1},
    {"skip_special_tokens": True, "mirostat": 0, "xtc_probability": 0.0, "mcp_servers": []},
    {"additional_properties": False, "user": "", "metadata": {}, "parse_special": None},
]  # fmt: skip
OF_CHAT = [
    {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}, {"max_completion_tokens": -1},
    {"tools": []}, {"tools": [], "tool_choice": "auto"}, {"functions": [], "function_call": "auto"},
    {"function_call": "none"}, {"modalities": []}, {"chat_template_kwargs": {}},
    {"thinking_token_budget": -1, "reasoning_budget_tokens": -1, "thinking_budget_tokens": -1},
    {"response_format": {"type": "text"}}, {"parallel_tool_calls": False},
    {"add_generation_prompt": True, "continue_final_message": False},
]  # fmt: skip
OF_TEXTS = [{"logprobs": False}, {"echo": False}, {"suffix": ""}, {"best_of": 1}]


@pytest.mark.parametrize("more", DEFAULTS + OF_CHAT, ids=str)
def test_values_that_mean_the_default_of_chats(client, more):
    answer = client.post(CHAT, json={"messages": MESSAGES} | more)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "Hi, what can I do?"


@pytest.mark.parametrize("more", DEFAULTS + OF_TEXTS, ids=str)
def test_values_that_mean_the_default_of_completions(client, more):
    prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    answer = client.post(TEXT, json={"prompt": prompt, "max_tokens": 60} | more)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == "Hi, what can I do?"


@pytest.mark.parametrize("more", [
    {"max_output_tokens": -1}, {"text": {}}, {"text": {"format": {"type": "text"}}}, {"tools": []},
    {"tool_choice": "auto"}, {"reasoning": {}}, {"reasoning": {"effort": None}}, {"include": []},
    {"truncation": "disabled"}, {"background": False}, {"top_logprobs": 0}, {"stream": False},
    {"stream_options": {}}, {"metadata": {}}, {"store": True}, {"top_p": 1}, {"min_tokens": 0},
    {"previous_response_id": None}, {"max_tool_calls": None}, {"instructions": ""},
], ids=str)  # fmt: skip
def test_values_that_mean_the_default_of_responses(client, more):
    answer = client.post("/v1/responses", json={"input": "hello"} | more)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][0]["content"][0]["text"].endswith("Hi, what can I do?")


@pytest.mark.parametrize("more", [
    {"max_tokens": -1}, {"stop_sequences": []}, {"stop_sequences": [""]}, {"top_k": 0},
    {"top_k": -1}, {"top_p": 1}, {"tools": []}, {"thinking": {"type": "disabled"}},
    {"stream": False}, {"output_config": {}}, {"metadata": {}}, {"mcp_servers": []},
    {"betas": []}, {"system": []},
], ids=str)  # fmt: skip
def test_values_that_mean_the_default_of_messages(client, more):
    body = {"messages": MESSAGES, "max_tokens": 60} | more
    answer = client.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["content"][0]["text"] == "Hi, what can I do?"


@pytest.mark.parametrize("more", [
    {"min_tokens": 1}, {"min_tokens": False}, {"skip_special_tokens": 1}, {"mirostat": 2},
    {"suffix": "x"}, {"logit_bias": [[1, 2]]}, {"max_tokens": 0}, {"max_tokens": -2}, {"top_k": -2},
    {"top_p": -0.1},
], ids=str)  # fmt: skip
def test_other_values_are_refused(client, more):
    answer = client.post(TEXT, json={"prompt": "a"} | more)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in (*more, None)


def test_a_top_p_of_0_is_greedy(client):
    body = {"prompt": "ab", "max_tokens": 12, "temperature": 100, "seed": 1}
    greedy = client.post(TEXT, json=body | {"top_p": 0}).json()["choices"][0]["text"]
    assert greedy == "cdefghijklmn"
    assert client.post(TEXT, json=body).json()["choices"][0]["text"] != greedy


def test_the_schema_of_a_result_is_taken(client):
    """Transformers writes it as `return`."""
    body = {"messages": MESSAGES, "tools": [{"type": "function", "function": CLIENT_TOOL}]}
    error = client.post(CHAT, json=body).json()["error"]
    assert "tools" in error["message"]  # this model's template knows no tools
    assert "return" not in error["message"]


@pytest.mark.parametrize(
    "path", [f"{CHAT}/", f"{CHAT}//", "/v1//chat/completions", "/v1/chat//completions/"]
)
def test_slashes_that_clients_add(client, path):
    answer = client.post(path, json={"messages": MESSAGES}, follow_redirects=False)
    assert answer.json()["choices"][0]["message"]["content"] == "Hi, what can I do?"


@pytest.mark.parametrize("path", ["/v1/models/", "/health/", "/metrics//"])
def test_slashes_that_clients_add_elsewhere(client, path):
    assert client.get(path, follow_redirects=False).status_code == 200


@pytest.mark.parametrize("path", ["/metrics/", "/metrics//", "/v1/models/"])
def test_slashes_pass_no_check(client_of, path):
    keyed = client_of(api_keys=("k" * 32,), metrics_key="m" * 32)
    assert keyed.get(path).status_code == 401
    key = "m" if "metrics" in path else "k"
    assert keyed.get(path, headers={"Authorization": f"Bearer {key * 32}"}).status_code == 200


@pytest.mark.parametrize(("path", "body"), [
    (CHAT, {"messages": MESSAGES}), (TEXT, {"prompt": ["ab", "cde"], "max_tokens": 3}),
])  # fmt: skip
def test_usage_in_every_chunk(client, path, body):
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = client.post(path, json=body | {"stream": True, "stream_options": options}).text
    chunks = [json.loads(each[6:]) for each in answer.split("\n\n") if each[6:7] == "{"]
    usages = [chunk["usage"] for chunk in chunks]
    totals = [each["total_tokens"] for each in usages]
    assert totals == sorted(totals)
    assert all(u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] for u in usages)
    last = {key: usages[-1][key] for key in usages[-2]}
    assert usages[-2] == last
    alone = {"stream": True, "stream_options": {"continuous_usage_stats": True}}
    assert '"usage"' not in client.post(path, json=body | alone).text


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
