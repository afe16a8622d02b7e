"""OpenAI's Responses API: what requests become, what answers look like, and its own client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.server import parameters
from edgespec.server.converters.responses_request import (
    ResponsesRequest,
    conversion,
    prepared,
)
from edgespec.server.converters.responses_writer import ResponsesWriter
from edgespec.server.errors import ApiError
from tests.helpers.conversions import (
    DEEP,
    SAID,
    USAGE,
    call,
    chunks,
    cut_message,
    events_of,
    message,
    whole_of,
)

PATH = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Tell the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


def chat_of(**body: Any) -> dict[str, Any]:
    """Return the chat-completions request for a request."""
    return conversion(parameters.check(prepared(body), ResponsesRequest)).fields


def writer(**body: Any) -> ResponsesWriter:
    body = {"input": "hello"} | body
    return ResponsesWriter(parameters.check(body, ResponsesRequest), body, "toy")


# --- requests ----------------------------------------------------------------------------------


def test_a_text_is_what_the_user_says():
    assert chat_of(input="hello", instructions="be brief", max_output_tokens=5) == {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
        ],
        "max_completion_tokens": 5,
    }


def test_a_conversation_with_calls_as_clients_send_it_back():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None,
         "content": [{"type": "reasoning_text", "text": "Look it up."}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "Wait.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "weather",
         "arguments": '{"city":"Rome"}', "status": "completed"},
        {"type": "function_call", "call_id": "b", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "sunny"},
        {"type": "function_call_output", "call_id": "b",
         "output": [{"type": "input_text", "text": "un"}, {"type": "input_text", "text": "known"}]},
    ]  # fmt: skip

    assert chat_of(input=items)["messages"] == [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Wait.", "reasoning_content": "Look it up.",
         "tool_calls": [call("a", '{"city":"Rome"}'), call("b", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
        {"role": "tool", "tool_call_id": "b", "content": "un\n\nknown"},
    ]  # fmt: skip


def test_what_one_role_says_in_pieces_is_one_message():
    """Codex sends instructions and three messages of the user; many templates refuse two."""
    items = [
        {"role": "developer", "content": "permissions"},
        {"role": "user", "content": "context"},
        {"role": "user", "content": "hello"},
    ]
    assert chat_of(input=items, instructions="be brief")["messages"] == [
        {"role": "system", "content": "be brief\n\npermissions"},
        {"role": "user", "content": "context\n\nhello"},
    ]


def test_messages_of_one_role_are_apart_and_the_parts_of_one_are_not():
    parts = [{"type": "output_text", "text": "Good "}, {"type": "output_text", "text": "day."}]
    results = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    items = [
        {"role": "user", "content": "hello"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "…"},
        {"role": "assistant", "content": parts},
        {"role": "developer", "content": "permissions"},
        {"role": "assistant", "content": "Wait."},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": results},
    ]
    assert chat_of(input=items, instructions="be brief")["messages"] == [
        {"role": "system", "content": "be brief\n\npermissions"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Good day.\n\nWait.", "reasoning_content": "Hm.",
         "tool_calls": [call("a", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": "one\n\ntwo"},
    ]  # fmt: skip


def test_functions_are_taken_and_other_tools_skipped():
    tools = [
        {"type": "web_search"},
        {"type": "namespace", "name": "apps", "tools": [WEATHER]},
        WEATHER,
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
    ]
    function = {name: WEATHER[name] for name in ("name", "description", "parameters", "strict")}
    found = chat_of(input="hello", tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert found["tools"] == [{"type": "function", "function": function}]
    assert (found["tool_choice"], found["parallel_tool_calls"]) == ("required", False)
    named = chat_of(input="hello", tools=tools, tool_choice={"type": "function", "name": "weather"})
    assert named["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert "tools" not in chat_of(input="hello", tools=tools[:2], tool_choice="auto")


def test_only_allowed_tools_are_offered():
    tools = [WEATHER, WEATHER | {"name": "time"}]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [
        {"type": "function", "name": "time"}, {"type": "web_search"},
    ]}  # fmt: skip
    choice = chat_of(input="hello", tools=tools, tool_choice=allowed)["tool_choice"][
        "allowed_tools"
    ]
    assert choice == {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "time"}}],
    }  # fmt: skip


def test_formats_and_reasoning():
    schema = {"type": "object"}
    told = {"type": "json_schema", "name": "a", "schema": schema, "strict": True}
    found = chat_of(
        input="hello", text={"format": told, "verbosity": "low"}, reasoning={"effort": "high"}
    )
    assert found["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": schema, "strict": True},
    }
    assert found["reasoning_effort"] == "high"
    json_object = chat_of(input="hello", text={"format": {"type": "json_object"}})
    assert json_object["response_format"] == {"type": "json_object"}
    assert "response_format" not in chat_of(input="hello", text={"verbosity": "high"})


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation"),
        ({"conversation": "conv_1"}, "conversation", "send the whole conversation"),
        ({"background": True}, "background", "not stored"),
        ({"truncation": "auto"}, "truncation", "too long is refused"),
        ({"max_tokens": 5}, "max_tokens", "unknown parameter"),
        ({"input": []}, "input", "at least 1"),
        ({"input": [{"role": "tool", "content": ""}]}, "input[0].role", '"assistant"'),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "nothing is stored"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type", "web_search_call"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]},
         "input[0].content[0]", "images are not supported"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
         "input[0].content[0]", "files are not supported"),
        ({"input": ["hello"]}, "input[0]", "must be an object"),
        ({"input": [{"content": "hello"}]}, "input[0].type", "missing"),
        ({"tools": [WEATHER, {"type": "function"}]}, "tools[1].name", "missing"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "missing"),
        ({"metadata": DEEP}, "metadata", "levels deep"),
        ({"tools": [{"type": "x", "a": DEEP}]}, "tools", "levels deep"),
        ({"text": {"a": DEEP}}, "text", "levels deep"),
        ({"tool_choice": "maybe"}, "tool_choice", "required"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(body, param, says):
    with pytest.raises(ApiError) as refused:
        chat_of(**{"input": "hello"} | body)
    error = refused.value
    assert (error.status, error.param) == (400, param)
    assert says in error.message


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("messages", "input"),
        ("messages[2].content", "input[2].content"),
        ("response_format", "text.format"),
        ("tools[0].function.parameters", "tools[1].parameters"),
        ("tool_choice", "tool_choice"),
        (None, None),
    ],
)
def test_errors_of_the_chat_name_the_field_of_the_request(there, here):
    tools = [{"type": "web_search"}, WEATHER]
    asked = conversion(parameters.check({"input": "hello", "tools": tools}, ResponsesRequest))
    error = asked.renamed(ApiError(400, f"{there} is wrong", param=there))
    assert (error.param, error.message) == (here, f"{here} is wrong")


# --- answers -----------------------------------------------------------------------------------


def accumulated(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the output that the deltas of a stream add up to."""
    output: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            output.append(json.loads(json.dumps(event["item"])))
        elif kind == "content_part.added":
            output[event["output_index"]]["content"].append(dict(event["part"]))
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            output[event["output_index"]]["content"][0]["text"] += event["delta"]
        elif kind == "function_call_arguments.delta":
            output[event["output_index"]]["arguments"] += event["delta"]
        elif kind == "output_item.done":
            output[event["output_index"]]["status"] = event["item"]["status"]
            assert output[event["output_index"]] == event["item"]
    return output


def plain(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return items without the ids, which differ from answer to answer."""
    return [{name: value for name, value in item.items() if name != "id"} for item in output]


@given(message(), st.data())
def test_however_an_answer_is_cut_the_same_comes_out(said, data):
    reason = data.draw(st.sampled_from(["stop", "length", "tool_calls"]))
    whole = whole_of(writer(), said, reason)
    pieces = chunks(cut_message(said, data.draw), reason)
    events = events_of(writer(), pieces)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]["response"]
    assert plain(accumulated(events)) == plain(final["output"]) == plain(whole["output"])
    assert len({item["id"] for item in final["output"]}) == len(final["output"])


def test_the_events_of_an_answer_with_everything():
    another = {"tool_calls": [call("b", "{}", "time") | {"index": 1}]}
    events = events_of(writer(), chunks([*SAID, another], "tool_calls"))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]  # fmt: skip
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip
    made = final["output"][2]
    assert (made["call_id"], made["name"]) == ("a", "weather")
    assert made["arguments"] == '{"city":"Rome"}'
    assert final["status"] == "completed"
    assert final["usage"] == {
        "input_tokens": USAGE["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 0},
        "output_tokens": USAGE["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": USAGE["total_tokens"],
    }


def test_an_answer_that_was_cut_is_incomplete():
    events = events_of(writer(), chunks([{"content": "one"}], "length"))
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert final["status"] == final["output"][0]["status"] == "incomplete"
    assert final["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("delta", "n_reasoning", "status"),
    [
        ({"reasoning_content": "Hm"}, 3, "completed"),
        ({"reasoning_content": "Hm"}, 5, "incomplete"),
        ({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "b", "arguments": "{}"}}]},
            0, "completed"),
        ({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "b", "arguments": "{"}}]},
            0, "incomplete"),
    ],
)  # fmt: skip
def test_an_item_that_had_ended_before_the_cut_is_complete(delta, n_reasoning, status):
    told = chunks([delta], "length")
    told[-1] = {"choices": [], "usage": USAGE | {
        "completion_tokens_details": {"reasoning_tokens": n_reasoning},
    }}  # fmt: skip
    events = events_of(writer(), told)
    assert events[-2]["item"]["status"] == status
    final = events[-1]["response"]
    assert (final["status"], final["output"][0]["status"]) == ("incomplete", status)


def test_an_answer_repeats_what_was_asked():
    told = {"text": {"format": {"type": "json_object"}}, "metadata": {"a": "b"}, "tools": [WEATHER]}
    response = writer(**told, instructions="be brief").whole()
    assert {name: response[name] for name in told} == told
    assert response["instructions"] == "be brief"


# --- the server --------------------------------------------------------------------------------


@pytest.fixture
def official(running, engine):
    with (
        running(engine, api_keys=("key",)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as made,
    ):
        yield made


def test_the_official_client(official):
    answer = official.responses.create(model="toy", input="hello", instructions="be brief")
    assert answer.output_text == "Hi, what can I do?"
    assert (answer.status, answer.object) == ("completed", "response")
    assert answer.usage.output_tokens == len("Hi, what can I do?") + 1
    more = [{"role": "user", "content": "hello"}, *answer.output, {"role": "user", "content": "x"}]
    again = official.responses.create(model="toy", input=more)
    assert again.output_text == "|x"
    assert again.usage.input_tokens_details.cached_tokens > 0
    short = official.responses.create(model="toy", input="hello", max_output_tokens=3)
    assert (short.output_text, short.status) == ("Hi,", "incomplete")
    assert short.incomplete_details.reason == "max_output_tokens"


def test_the_official_clients_stream(official):
    events = list(official.responses.create(model="toy", input="umlaut", stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "Grüße aus Köln"
    assert events[-1].type == "response.completed"
    with official.responses.stream(model="toy", input="umlaut") as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                assert "Grüße aus Köln".startswith(event.snapshot)
        assert stream.get_final_response().output_text == "Grüße aus Köln"


def test_refusals_under_the_official_client(official):
    with pytest.raises(openai.BadRequestError) as refused:
        official.responses.create(model="toy", input="hello", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError) as long:
        official.responses.create(model="toy", input="a" * 600)
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.NotFoundError) as missing:
        official.responses.create(model="gpt-5", input="hello")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        official.with_options(api_key="wrong").responses.create(model="toy", input="hello")


def test_a_stream_that_breaks_off_says_so(official):
    events = list(official.responses.create(model="toy", input="boom", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "failed"
    assert "its log says where" in events[-1].response.error.message
    with pytest.raises(openai.InternalServerError):
        official.responses.create(model="toy", input="boom")
    assert official.responses.create(model="toy", input="hello").status == "completed"


def test_the_requests_are_counted_under_their_own_name(client):
    assert client.post(PATH, json={"input": "hello"}).status_code == 200
    assert f'endpoint="{PATH}",status="200"' in client.get("/metrics").text
