"""Tools, reasoning and forms through the Responses and the Messages API, in their own clients."""

from __future__ import annotations

import json
from typing import Any, Literal

import anthropic
import httpx
import openai
import pytest

from tests.helpers.scripted_chats import called
from tests.helpers.weather import ARGUMENTS, CUSTOM

pydantic = pytest.importorskip("pydantic")
pytest.importorskip("llguidance")

GIVEN = json.loads(ARGUMENTS)
FLAT = {"type": "function", "name": "weather", "parameters": CUSTOM["input_schema"], "strict": True}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


class weather(pydantic.BaseModel):
    """Look up the weather."""

    city: str
    unit: Literal["C", "F"]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def responses(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made.responses


@pytest.fixture(scope="module")
def messages(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as made:
        yield made.messages


# --- Responses ---------------------------------------------------------------------------------


def test_a_round_with_a_function(responses, chat):
    items: list[Any] = [user("weather")]
    tools = [{"type": "web_search"}, FLAT]
    answer = responses.create(model="toy", input=items, tools=tools)
    reasoning, message, call = answer.output
    assert reasoning.content[0].text == "I ask."
    assert message.content[0].text == "Wait."
    assert (call.name, json.loads(call.arguments), call.status) == ("weather", GIVEN, "completed")
    assert answer.usage.output_tokens_details.reasoning_tokens > 0
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "20 degrees"}
    again = responses.create(model="toy", input=[*items, *answer.output, result], tools=tools)
    assert again.output_text == "It is 20 degrees."
    assert "I ask." in chat.seen[-1]
    assert called("weather", ARGUMENTS) in chat.seen[-1]


def test_a_streamed_function_call(responses):
    with responses.stream(model="toy", input="weather", tools=[FLAT]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    whole = responses.create(model="toy", input="weather", tools=[FLAT])
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output[2].arguments == whole.output[2].arguments
    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert deltas[-1].snapshot == "".join(event.delta for event in deltas) == ARGUMENTS
    thought = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(thought) == "I ask."


def test_two_calls_have_their_own_items(responses):
    answer = responses.create(model="toy", input="twice", tools=[FLAT])
    assert [item.type for item in answer.output] == ["function_call", "function_call"]
    assert len({item.call_id for item in answer.output}) == 2
    one = responses.create(model="toy", input="twice", tools=[FLAT], parallel_tool_calls=False)
    assert [item.type for item in one.output] == ["function_call"]


def test_parsed_functions_and_formats(responses):
    tool = openai.pydantic_function_tool(weather)["function"] | {"type": "function"}
    asked = responses.parse(model="toy", input="weather", tools=[tool])
    assert asked.output[2].parsed_arguments == GIVEN
    formed = responses.parse(model="toy", input="as a form", text_format=weather)
    assert formed.output_parsed == weather(city="Rome", unit="C")
    with responses.stream(model="toy", input="as a form", text_format=weather) as stream:
        assert stream.get_final_response().output_parsed == weather(city="Rome", unit="C")


def test_a_function_that_has_to_be_called(responses):
    answer = responses.create(
        model="toy", input="20 degrees", tools=[FLAT], reasoning={"effort": "none"},
        tool_choice={"type": "function", "name": "weather"}, max_output_tokens=200,
    )  # fmt: skip
    assert answer.output[-1].name == "weather"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "web_search"}, FLAT, FLAT]}, "tools[2].name"),
        ({"tools": [{"type": "web_search"}, FLAT | {"parameters": {"type": "strange"}}]},
         "tools[1].parameters"),
        ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "look"}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "strange"}}}},
         "text.format"),
    ],
)  # fmt: skip
def test_refused_functions_are_named_as_they_were_sent(responses, more, param):
    with pytest.raises(openai.BadRequestError) as refused:
        responses.create(model="toy", input="weather", **more)
    assert refused.value.param == param


# --- Messages ----------------------------------------------------------------------------------


def test_a_round_with_a_tool(messages, chat):
    turns = [user("weather")]
    more = {"model": "toy", "max_tokens": 500, "tools": [SEARCH, CUSTOM]}
    answer = messages.create(messages=turns, **more)
    thinking, text, call = answer.content
    assert (thinking.thinking, text.text) == ("I ask.", "Wait.")
    assert (call.name, call.input, answer.stop_reason) == ("weather", GIVEN, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "20 degrees"}
    turns += [
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    again = messages.create(messages=turns, **more)
    assert again.content[0].text == "It is 20 degrees."
    assert called("weather", ARGUMENTS) in chat.seen[-1]
    counted = messages.count_tokens(model="toy", messages=turns, tools=[SEARCH, CUSTOM])
    used = again.usage
    assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens


def test_a_streamed_tool_call(messages):
    more = {"model": "toy", "max_tokens": 500, "tools": [CUSTOM], "messages": [user("weather")]}
    with messages.stream(**more) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert "".join(pieces) == ARGUMENTS
    whole = messages.create(**more)
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[0].thinking == whole.content[0].thinking == "I ask."
    assert final.content[1].text == whole.content[1].text == "Wait."
    assert final.content[2].input == whole.content[2].input == GIVEN
    assert final.stop_reason == whole.stop_reason == "tool_use"
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_parsed_format(messages):
    answer = messages.parse(
        model="toy", max_tokens=500, messages=[user("as a form")], output_format=weather
    )
    assert answer.parsed_output == weather(city="Rome", unit="C")


def test_one_tool_at_a_time(messages):
    more = {"model": "toy", "max_tokens": 500, "tools": [CUSTOM], "messages": [user("twice")]}
    assert [block.type for block in messages.create(**more).content] == ["tool_use"] * 2
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert [b.type for b in messages.create(**more, tool_choice=one).content] == ["tool_use"]


def test_thinking_that_is_switched_off(messages):
    answer = messages.create(
        model="toy", max_tokens=500, messages=[user("weather")], tools=[CUSTOM],
        thinking={"type": "disabled"}, tool_choice={"type": "any"},
    )  # fmt: skip
    assert [block.type for block in answer.content] == ["tool_use"]


def test_a_tool_call_that_was_cut(messages):
    more = {"model": "toy", "tools": [CUSTOM], "messages": [user("twice")]}
    answer = messages.create(max_tokens=len(called("weather", ARGUMENTS)) - 40, **more)
    assert answer.stop_reason == "max_tokens"
    assert [block.input for block in answer.content if block.type == "tool_use"] == [{}]


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"tools": [SEARCH, CUSTOM, CUSTOM]}, "tools[2].name"),
        ({"tools": [SEARCH, CUSTOM | {"input_schema": {"type": "strange"}}]},
         "tools[1].input_schema"),
        ({"tools": [CUSTOM], "tool_choice": {"type": "tool", "name": "look"}}, "tool_choice"),
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tool_choice"),
    ],
)  # fmt: skip
def test_refused_tools_are_named_as_they_were_sent(messages, more, place):
    with pytest.raises(anthropic.BadRequestError) as refused:
        messages.create(model="toy", max_tokens=5, messages=[user("weather")], **more)
    assert place in refused.value.body["error"]["message"]


# --- hostile requests --------------------------------------------------------------------------

DEEP = b'{"a":' * 900 + b"1" + b"}" * 900
SAID = b'{"role": "user", "content": "hello"}'
FORMAT = b'{"type": "json_schema", "schema": %b}'
CALL = b'{"type": "tool_use", "id": "a", "name": "a", "input": %b}'
TO_RESPONSES = (
    b'{"input": "hello", "metadata": %b}',
    b'{"input": "hello", "text": {"format": {"type": "json_schema", "name": "a", "schema": %b}}}',
    b'{"input": "hello", "tools": [{"type": "function", "name": "a", "parameters": %b}]}',
    b'{"input": "hello", "tools": [{"type": "custom", "a": %b}]}',
    b'{"input": [{"role": "user", "content": %b}]}',
)
TO_MESSAGES = (
    b'"messages": [' + SAID + b'], "output_config": {"format": ' + FORMAT + b"}",
    b'"messages": [' + SAID + b'], "tools": [{"name": "a", "input_schema": %b}]',
    b'"messages": [' + SAID + b', {"role": "assistant", "content": [' + CALL
    + b"]}, " + SAID + b"]",
    b'"messages": [{"role": "user", "content": [{"type": "text", "text": %b}]}]',
)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/responses", body) for body in TO_RESPONSES]
    + [("/v1/messages", b'{"max_tokens": 5, ' + body + b"}") for body in TO_MESSAGES],
)
def test_what_is_nested_deeply_is_refused(url, path, body):
    headers = {"Content-Type": "application/json"}
    refused = httpx.post(url + path, content=body % DEEP, headers=headers)
    assert refused.status_code == 400, refused.text


# --- a template without tools ------------------------------------------------------------------


def test_a_template_without_tools_refuses_them(client):
    body = {"input": "hello", "tools": [FLAT]}
    refused = client.post("/v1/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
    body = {"messages": [user("hello")], "max_tokens": 5, "tools": [CUSTOM]}
    refused = client.post("/v1/messages", json=body)
    assert refused.status_code == 400
    assert "tools" in refused.json()["error"]["message"]
    skipped = body | {"tools": [SEARCH]}
    assert client.post("/v1/messages", json=skipped).status_code == 200
