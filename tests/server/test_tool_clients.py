"""The client of OpenAI calls tools and reads reasoning, and so does a framework for agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import openai
import pytest

import edgespec
from tests.helpers.scripted_chats import ScriptedChat, accumulated
from tests.helpers.selection import every

pydantic = pytest.importorskip("pydantic")
pytest.importorskip("llguidance")

DATA = Path(__file__).parents[1] / "data" / "openai_agents.json"
RECORDED = json.loads(DATA.read_text(encoding="utf-8"))
ARGUMENTS = '{"city": "Rome", "unit": "C"}'
CALL = f'<tool_call>\n{{"name": "Weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
ANSWERS = {
    "weather": "<think>\nI ask.\n</think>\n\n" + CALL,
    "20 degrees": "It is 20 degrees.",
    "as a form": '<think>\nA form.\n</think>\n\n{"city":"Rome","unit":"C"}',
}


class Weather(pydantic.BaseModel):
    """Look up the weather."""

    city: str
    unit: Literal["C", "F"]


TOOL = openai.pydantic_function_tool(Weather)


@pytest.fixture
def chat():
    return ScriptedChat(ANSWERS)


@pytest.fixture
def engine(chat):
    with chat.engine() as made:
        yield made


@pytest.fixture
def official(client):
    return openai.OpenAI(base_url="http://localhost/v1", api_key="none", http_client=client)


def user(text: str):
    return {"role": "user", "content": text}


def test_create_and_the_round_with_a_result(official, chat):
    messages = [user("weather")]
    answer = official.chat.completions.create(model="toy", messages=messages, tools=[TOOL])
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    assert message.reasoning_content == message.reasoning == "I ask."
    [call] = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("Weather", ARGUMENTS)
    result = {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"}
    again = official.chat.completions.create(
        model="toy", messages=[*messages, message, result], tools=[TOOL]
    )
    assert again.choices[0].message.content == "It is 20 degrees."
    assert "I ask." in chat.seen[-1]


def test_parse_reads_arguments_into_models(official):
    messages = [user("weather")]
    for _ in range(2):  # what was parsed can be sent back, too
        answer = official.chat.completions.parse(model="toy", messages=messages, tools=[TOOL])
        message = answer.choices[0].message
        assert message.tool_calls[0].function.parsed_arguments == Weather(city="Rome", unit="C")
        messages += [message, user("weather")]


@pytest.mark.filterwarnings("ignore:Pydantic serializer")  # the client's, of its own message
def test_a_form_behind_reasoning(official):
    answer = official.chat.completions.parse(
        model="toy", messages=[user("as a form")], response_format=Weather
    )
    assert answer.choices[0].message.parsed == Weather(city="Rome", unit="C")
    assert answer.choices[0].message.reasoning == "A form."
    again = official.chat.completions.create(
        model="toy", messages=[answer.choices[0].message, user("hello")]
    )
    assert again.choices[0].message.content == "hello"


def test_the_stream_helper(official):
    with official.chat.completions.stream(
        model="toy", messages=[user("weather")], tools=[TOOL],
        stream_options={"include_usage": True},
    ) as stream:  # fmt: skip
        events = list(stream)
        final = stream.get_final_completion()
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.parsed_arguments for event in done] == [Weather(city="Rome", unit="C")]
    pieces = [e for e in events if e.type == "tool_calls.function.arguments.delta"]
    assert "".join(event.arguments_delta for event in pieces) == ARGUMENTS
    message = final.choices[0].message
    assert message.reasoning_content == "I ask."
    assert message.content is None
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage.completion_tokens_details.reasoning_tokens > 0
    again = official.chat.completions.create(
        model="toy", messages=[user("weather"), message, user("hello")], tools=[TOOL]
    )
    assert again.choices[0].message.content == "hello"


def test_refusals_name_the_place(official):
    with pytest.raises(openai.BadRequestError) as refused:
        official.chat.completions.create(model="toy", messages=[user("x")], tools=[TOOL, TOOL])
    assert refused.value.param == "tools[1].function.name"


class TestRequestsOfAnAgentFramework:
    """tests/helpers/record_agents.py wrote them down, with what the framework ended with."""

    @pytest.fixture
    def chat(self):
        return ScriptedChat(RECORDED["answers"])

    @pytest.mark.parametrize(
        "exchange",
        every(2, RECORDED["exchanges"], "more recorded exchanges"),
        ids=lambda e: e["about"],
    )
    def test_they_are_answered_as_they_were(self, client, events, exchange):
        *calling, last = [self.message(client, events, body) for body in exchange["requests"]]
        assert all(message["tool_calls"] for message in calling)
        said = last["content"]
        assert said == exchange["output"] or json.loads(said)["city"] in exchange["output"]

    @staticmethod
    def message(client, events, body):
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        if not body.get("stream"):
            return response.json()["choices"][0]["message"]
        return accumulated(events(response.text)[:-1])[0]


class TestARealModel:
    @pytest.fixture
    def engine(self, qwen_pair):
        with edgespec.load(qwen_pair[1], draft=None, n_ctx=1024) as made:
            yield made

    def test_required_calls_always_parse(self, official):
        asks = ["How warm is it in Rome?", "What is 2 + 2?", "Write a poem about a {brace}."]
        for text in asks:
            answer = official.chat.completions.parse(
                model="toy", messages=[user(text)], tools=[TOOL], tool_choice="required",
                parallel_tool_calls=False, temperature=1, seed=7,
            )  # fmt: skip
            assert answer.choices[0].finish_reason == "tool_calls"
            [call] = answer.choices[0].message.tool_calls
            assert isinstance(call.function.parsed_arguments, Weather)
            assert answer.choices[0].message.content is None
