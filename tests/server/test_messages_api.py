"""Anthropic's Messages API: what requests become, and what answers look like."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec import Part, SamplingParams
from edgespec.server.apis.messages import parse, parse_count
from edgespec.server.apis.messages.writer import MessagesWriter
from edgespec.server.base import ParsedRequest
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

ASK = [{"role": "user", "content": "hello"}]
WEATHER = {
    "name": "weather",
    "description": "Tell the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def asked(**body: Any) -> ParsedRequest:
    return asked_of(parse, **{"max_tokens": 5, "messages": ASK} | body)


def told(**body: Any) -> list[dict[str, Any]]:
    """Return the messages of a request."""
    return list(asked(**body).request.messages)


def writer() -> MessagesWriter:
    return MessagesWriter("toy", USAGE["prompt"])


# --- requests ----------------------------------------------------------------------------------


def test_a_plain_request():
    settings = {"temperature": 0.5, "top_p": 0.9, "top_k": 3}
    request = asked(system="be brief", stop_sequences=["x"], **settings).request
    assert request.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ]
    assert request.params == SamplingParams(max_tokens=5, stop=["x"], **settings)


def test_a_conversation_with_calls_as_clients_send_it_back():
    cached = {"cache_control": {"type": "ephemeral"}}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"} | cached]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Look it up.", "signature": ""},
            {"type": "redacted_thinking", "data": "…"},
            {"type": "text", "text": "Wait.", "citations": None},
            {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Köln"}},
            {"type": "tool_use", "id": "b", "name": "weather", "input": {}, "caller": None},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "sunny"} | cached,
            {"type": "tool_result", "tool_use_id": "b", "is_error": True,
             "content": [{"type": "text", "text": "un"}, {"type": "text", "text": "known"}]},
            {"type": "text", "text": "And now?"},
        ]},
    ]  # fmt: skip

    assert told(messages=turns) == [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Wait.", "reasoning_content": "Look it up.",
         "tool_calls": [call("a", '{"city": "Köln"}'), call("b", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
        {"role": "tool", "tool_call_id": "b", "content": "un\n\nknown"},
        {"role": "user", "content": "And now?"},
    ]  # fmt: skip


def test_turns_of_one_role_are_combined_as_anthropic_does():
    turns = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    assert told(messages=turns) == [{"role": "user", "content": "one\n\ntwo"}]


def test_what_an_assistant_says_in_a_turn_is_one_text_and_turns_are_apart():
    turns = [
        *ASK,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm", "signature": ""},
            {"type": "text", "text": "Good "},
            {"type": "thinking", "thinking": ".", "signature": ""},
            {"type": "text", "text": "day."},
        ]},
        {"role": "assistant", "content": "More?"},
        *ASK,
    ]  # fmt: skip
    assert told(messages=turns)[1] == {
        "role": "assistant", "content": "Good day.\n\nMore?", "reasoning_content": "Hm.",
    }  # fmt: skip


def test_what_the_system_says_later_stays_where_it_is():
    """Claude Code sends such messages. At the front they would change all that was read."""
    turns = [
        {"role": "user", "content": "one"},
        {"role": "system", "content": [{"type": "text", "text": "agents"}]},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four"},
        {"role": "system", "content": "today"},
    ]
    assert told(messages=turns, system="be brief") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "system", "content": "agents"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four"},
        {"role": "system", "content": "today"},
    ]


@pytest.mark.parametrize("nothing", ["", None, []])
def test_turns_without_text_keep_their_place(nothing):
    turns = [*ASK, {"role": "assistant", "content": nothing}, {"role": "user", "content": nothing}]
    assert told(messages=turns) == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": ""},
    ]
    result = {"type": "tool_result", "tool_use_id": "a", "content": nothing}
    assert told(messages=[{"role": "user", "content": [result]}]) == [
        {"role": "tool", "tool_call_id": "a", "content": ""}
    ]


def test_blocks_of_the_providers_tools_are_their_text():
    found = {"type": "search_result", "source": "a", "title": "Rome", "content": [
        {"type": "text", "text": "Sunny."}]}  # fmt: skip
    turns = [
        *ASK,
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q?"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": [
                {"type": "web_search_result", "title": "News", "url": "u", "encrypted_content": "x",
                 "page_age": None}]},
            {"type": "text", "text": "Look."},
            {"type": "container_upload", "file_id": "f"},
            {"type": "tool_use", "id": "a", "name": "weather", "input": {}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [
            {"type": "tool_reference", "tool_name": "weather"}, found]}]},
    ]  # fmt: skip
    assert told(messages=turns)[1:] == [
        {"role": "assistant", "content": "q?\n\nNews\n\nLook.", "tool_calls": [call("a", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": "Rome\nSunny."},
    ]


def test_the_block_for_accounting_is_no_text_for_a_model():
    """It differs from request to request: nothing after it could be reused from the cache."""
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=a5145;"},
        {"type": "text", "text": "You are Claude Code."},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ]
    first = told(system=system)[0]
    assert first == {"role": "system", "content": "You are Claude Code.\n\nBe brief."}


def test_custom_tools_are_taken_and_those_of_the_provider_skipped():
    tools = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        WEATHER | {"cache_control": {"type": "ephemeral"}},
        WEATHER | {"type": "custom", "name": "time", "strict": True, "defer_loading": False},
    ]

    def options(**choice: Any) -> Any:
        return asked(tools=tools, tool_choice=choice).request.options

    found = options(type="any", disable_parallel_tool_use=True)
    assert [tool.name for tool in found.tools] == ["weather", "time"]
    assert found.tools[0].parameters["properties"] == WEATHER["input_schema"]["properties"]
    assert [tool.strict for tool in found.tools] == [False, True]
    assert (found.tool_choice, found.parallel_tool_calls) == ("required", False)
    assert options(type="tool", name="time").tool_choice == "time"
    assert options(type="none").tool_choice == "none"
    assert options(type="auto").parallel_tool_calls
    assert options(type="auto", disable_parallel_tool_use=False).parallel_tool_calls
    skipped = asked(tools=tools[:1], tool_choice={"type": "auto"}).request.options
    assert skipped == asked().request.options


def test_thinking_and_formats():
    assert not asked().request.options.template_kwargs
    assert asked(thinking={"type": "disabled"}).request.options.reasoning_budget == 0
    enabled = asked(thinking={"type": "enabled", "budget_tokens": 2048})
    assert enabled.request.options.reasoning_budget == 2048
    schema = {"type": "object"}
    config = {"effort": "high", "format": {"type": "json_schema", "schema": schema}}
    found = asked(thinking={"type": "adaptive", "display": "omitted"}, output_config=config)
    assert found.request.options.template_kwargs == {"reasoning_effort": "high"}
    assert found.request.params.schema == schema
    assert found.form == "output_config.format"


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"max_tokens": None}, "max_tokens", "missing"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_completion_tokens": 1}, "max_completion_tokens", "unknown parameter"),
        ({"thread": {"type": "create"}}, "thread", "send the whole conversation"),
        ({"mcp_servers": [{}]}, "mcp_servers", "unknown parameter"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", '"assistant"'),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         "messages[0].content[0].source.type", "is missing"),
        ({"messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "url"}}]}]},
         "messages[0].content[0].source", "the field 'url' is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]},
         "messages[0].content[0]", "documents are not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b",
                                                     "input": {}}]}]},
         "messages[0].content[0]", "tool_use belongs in a message of the assistant"),
        ({"messages": [*ASK, {"role": "assistant", "content": [
            {"type": "tool_result", "tool_use_id": "a"}]}, *ASK]},
         "messages[1].content[0]", "tool_result belongs in a message of the user"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]},
         "messages[0].content[0].text", "missing"),
        ({"messages": [{"role": "user", "content": [{"type": "server_tool"}]}]},
         "messages[0].content[0].type", "server_tool"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [*ASK, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "a", "name": "b", "input": DEEP}]}, *ASK]},
         "messages[1].content[0].input", "levels deep"),
        ({"tools": [WEATHER, {"name": "x"}]}, "tools[1].input_schema", "missing"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "missing"),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type", '"any"'),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens",
         "at least 0"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(body, param, says):
    with pytest.raises(ApiError) as refused:
        asked(**body)
    error = refused.value
    assert (error.status, error.param) == (400, param)
    assert says in error.message
    shown = error.messages_body("id")["error"]
    assert shown["type"] == "invalid_request_error"
    assert param in shown["message"]


def test_tools_are_known_by_their_places():
    tools = [{"type": "web_search_20250305"}, WEATHER]
    assert asked(tools=tools).tools == {"weather": "tools[1].input_schema"}
    with pytest.raises(ApiError) as refused:
        asked(tools=[tools[0], WEATHER | {"name": "a b"}])
    assert refused.value.param == "tools[1].name"


def test_a_count_is_asked_for_without_what_only_answers_need():
    counted = [*ASK, {"role": "assistant", "content": "Hi"}]
    found = asked_of(parse_count, messages=counted, tools=[WEATHER]).request
    assert found.messages == counted
    assert [tool.name for tool in found.options.tools] == ["weather"]
    with pytest.raises(ApiError, match="max_tokens"):
        asked_of(parse_count, messages=ASK, max_tokens=5)


# --- answers -----------------------------------------------------------------------------------


def accumulated(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the content that the deltas of a stream add up to."""
    content: list[dict[str, Any]] = []
    arguments: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(content)
            content.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            index, delta = event["index"], event["delta"]
            if delta["type"] == "input_json_delta":
                arguments[index] = arguments.get(index, "") + delta["partial_json"]
            else:
                name = delta["type"].removesuffix("_delta")
                content[index][name] += delta[name]
    for index, text in arguments.items():
        content[index]["input"] = json.loads(text)
    return content


@given(said(), st.data())
def test_however_an_answer_is_cut_the_same_comes_out(parts, data):
    reason = "tool_calls" if any(part.id for part in parts) else "stop"
    whole = whole_of(writer(), parts, reason)
    events = events_of(writer(), cut(parts, data.draw), reason)
    assert accumulated(events) == whole["content"]
    starts = [event["index"] for event in events if event["type"] == "content_block_start"]
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert starts == stops == list(range(len(whole["content"])))
    ended = "tool_use" if reason == "tool_calls" else "end_turn"
    assert events[-2]["delta"] == {"stop_reason": ended, "stop_sequence": None}
    assert events[-2]["usage"] == whole["usage"]


def test_the_events_of_an_answer_with_everything():
    events = events_of(writer(), SAID, "tool_calls")
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [event["type"] for event in events] == [
        "message_start", *block, *block, *block[:2], *block[1:], "message_delta", "message_stop",
    ]  # fmt: skip
    assert accumulated(events) == [
        {"type": "thinking", "thinking": "Hm", "signature": ""},
        {"type": "text", "text": "Wait"},
        {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}},
    ]
    assert events[0]["message"]["usage"]["input_tokens"] == USAGE["prompt"]
    assert events[-2]["usage"] == {
        "input_tokens": 3, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 0,
        "output_tokens": 5, "output_tokens_details": {"thinking_tokens": 3},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "stop", "ends"),
    [
        ("stop", 256, {"stop_reason": "end_turn", "stop_sequence": None}),
        ("stop", "END", {"stop_reason": "stop_sequence", "stop_sequence": "END"}),
        ("length", None, {"stop_reason": "max_tokens", "stop_sequence": None}),
        ("tool_calls", 256, {"stop_reason": "tool_use", "stop_sequence": None}),
    ],
)
def test_why_an_answer_ended(reason, stop, ends):
    parts = [Part("content", "x"), *([Part("call", "{}", 0, "a", "b")] * (reason == "tool_calls"))]
    found = whole_of(writer(), parts, reason, stop)
    assert {name: found[name] for name in ends} == ends


@pytest.mark.parametrize("arguments", ["", '{"city": "Ro', "7"])
def test_a_call_that_was_cut_has_no_arguments(arguments):
    parts = [Part("call", arguments, 0, "a", "weather")]
    block = whole_of(writer(), parts, "length")["content"][0]
    assert (block["name"], block["input"]) == ("weather", {})
