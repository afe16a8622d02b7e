"""OpenAI's Responses API: what requests become, what answers look like, and its own client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec import Part, SamplingParams
from edgespec.server.apis.responses import parse
from edgespec.server.base import ParsedRequest, PreparedRequest, Writer
from edgespec.server.errors import ApiError
from tests.helpers.conversions import (
    DEEP,
    SAID,
    USAGE,
    asked_of,
    call,
    cut,
    events_of,
    said,
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


def asked(**body: Any) -> ParsedRequest:
    return asked_of(parse, **{"input": "hello"} | body)


def told(**body: Any) -> list[dict[str, Any]]:
    """Return the messages of a request."""
    return list(asked(**body).request.messages)


def writer(**body: Any) -> Writer:
    return asked(**body).writer(PreparedRequest([]))


# --- requests ----------------------------------------------------------------------------------


def test_a_text_is_what_the_user_says():
    request = asked(instructions="be brief", max_output_tokens=5).request
    assert request.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ]
    assert request.params == SamplingParams(max_tokens=5)


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

    assert told(input=items) == [
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
    assert told(input=items, instructions="be brief") == [
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
    assert told(input=items, instructions="be brief") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Good day.", "reasoning_content": "Hm."},
        {"role": "system", "content": "permissions"},
        {"role": "assistant", "content": "Wait.", "tool_calls": [call("a", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": "one\n\ntwo"},
    ]  # fmt: skip


@pytest.mark.parametrize("nothing", ["", None, []])
def test_messages_without_text_keep_their_place(nothing):
    items = [
        {"role": "user", "content": nothing},
        {"role": "assistant", "content": nothing},
        {"type": "function_call_output", "call_id": "a", "output": nothing},
    ]
    assert told(input=items) == [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
        {"role": "tool", "tool_call_id": "a", "content": ""},
    ]


def test_items_of_other_tools_are_their_text():
    items = [
        {"role": "user", "content": "hello"},
        {"type": "web_search_call", "id": "w", "status": "completed",
         "action": {"type": "search", "query": "q?"}},
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        {"type": "compaction", "encrypted_content": "gAAAA"},
        {"type": "local_shell_call", "id": "l", "call_id": "d", "status": "completed",
         "action": {"type": "exec", "command": ["ls", "-l"], "env": {"A": "b"}}},
        {"type": "local_shell_call_output", "id": "l", "output": "a.txt"},
        {"type": "image_generation_call", "id": "i", "result": "iVBOR", "status": "completed"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]  # fmt: skip
    assert told(input=items) == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "q?\n\n*** Begin"},
        {"role": "user", "content": "done"},
        {"role": "assistant", "content": "ls\n-l"},
        {"role": "user", "content": "a.txt"},
        {"role": "assistant", "content": "No."},
    ]


def test_functions_are_taken_and_other_tools_skipped():
    tools = [
        {"type": "web_search"},
        {"type": "namespace", "name": "apps", "tools": [WEATHER]},
        WEATHER,
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
    ]
    found = asked(tools=tools, tool_choice="required", parallel_tool_calls=False).request.options
    (tool,) = found.tools
    assert (tool.name, tool.description, tool.strict) == ("weather", "Tell the weather", True)
    assert tool.parameters["properties"] == WEATHER["parameters"]["properties"]
    assert (found.tool_choice, found.parallel_tool_calls) == ("required", False)
    named = asked(tools=tools, tool_choice={"type": "function", "name": "weather"})
    assert named.request.options.tool_choice == "weather"
    skipped = asked(tools=tools[:2], tool_choice="auto")
    assert skipped.request.options == asked().request.options


def test_only_allowed_tools_are_offered():
    tools = [WEATHER, WEATHER | {"name": "time"}]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [
        {"type": "function", "name": "time"}, {"type": "web_search"},
    ]}  # fmt: skip
    options = asked(tools=tools, tool_choice=allowed).request.options
    assert ([tool.name for tool in options.tools], options.tool_choice) == (["time"], "required")


def test_formats_and_reasoning():
    schema = {"type": "object", "properties": {"a": {}}}
    form = {"type": "json_schema", "name": "a", "schema": schema, "strict": True}
    found = asked(text={"format": form, "verbosity": "low"}, reasoning={"effort": "high"})
    assert (found.request.params.schema, found.form) == (schema, "text.format")
    assert found.request.options.template_kwargs == {"reasoning_effort": "high"}
    json_object = asked(text={"format": {"type": "json_object"}})
    assert json_object.request.params.schema == {"type": "object"}
    assert asked(text={"verbosity": "high"}).request.params.schema is None


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
        ({"input": [{"type": "web_search"}]}, "input[0].type", "web_search"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "u"}]}]},
         "input[0].content[0]", "'image_url' is missing"),
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
        asked(**body)
    error = refused.value
    assert (error.status, error.param) == (400, param)
    assert says in error.message


def test_tools_are_known_by_their_places():
    tools = [{"type": "web_search"}, WEATHER]
    found = asked(tools=tools)
    assert (found.messages, found.tools) == ("input", {"weather": "tools[1].parameters"})


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


@given(said(), st.data())
def test_however_an_answer_is_cut_the_same_comes_out(parts, data):
    reason = data.draw(st.sampled_from(["stop", "length", "tool_calls"]))
    whole = whole_of(writer(), parts, reason)
    events = events_of(writer(), cut(parts, data.draw), reason)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]["response"]
    assert plain(accumulated(events)) == plain(final["output"])
    output = plain(final["output"])
    if reason == "stop":  # calls that are not complete then are content, which a stream repeats
        output = [item for item in output if item["type"] != "function_call"]
    assert plain(whole["output"]) == output
    assert len({item["id"] for item in final["output"]}) == len(final["output"])


def test_the_events_of_an_answer_with_everything():
    another = Part("call", "{}", 1, "b", "time")
    events = events_of(writer(), [*SAID, another], "tool_calls")
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
        "input_tokens": USAGE["prompt"],
        "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 0},
        "output_tokens": USAGE["emitted"],
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": USAGE["prompt"] + USAGE["emitted"],
    }


def test_an_answer_that_was_cut_is_incomplete():
    events = events_of(writer(), [Part("content", "one")], "length")
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert final["status"] == final["output"][0]["status"] == "incomplete"
    assert final["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("part", "n_reasoning", "status"),
    [
        (Part("reasoning", "Hm"), 3, "completed"),
        (Part("reasoning", "Hm"), 5, "incomplete"),
        (Part("call", "{}", 0, "a", "b"), 0, "completed"),
        (Part("call", "{", 0, "a", "b"), 0, "incomplete"),
    ],
)
def test_an_item_that_had_ended_before_the_cut_is_complete(part, n_reasoning, status):
    events = events_of(writer(), [part], "length", n_reasoning=n_reasoning)
    assert events[-2]["item"]["status"] == status
    final = events[-1]["response"]
    assert (final["status"], final["output"][0]["status"]) == ("incomplete", status)


def test_an_answer_repeats_what_was_asked():
    body = {"text": {"format": {"type": "json_object"}}, "metadata": {"a": "b"}, "tools": [WEATHER]}
    response = whole_of(writer(**body, instructions="be brief"), [], "stop")
    assert {name: response[name] for name in body} == body
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
