"""Responses made of the parts of answers, however events cut the text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec import Completion, Event, SamplingParams, Stats, ToyTokenizer
from edgespec.chat.format import AnswerFormat
from edgespec.chat.options import AnswerOptions
from edgespec.chat.reading import Reading
from edgespec.chat.tools import Tool
from edgespec.server.apis.chat_completions.writer import ChatWriter
from edgespec.server.apis.openai_writer import Envelope
from edgespec.server.base import Answer
from tests.helpers.scripted_chats import TEMPLATE, accumulated, called
from tests.helpers.selection import share

FORM = AnswerFormat.of(TEMPLATE, {"bos_token": "", "eos_token": ""})
OPTIONS = AnswerOptions((Tool("look"), Tool("look_up")))
TOKENIZER = ToyTokenizer(["a", "</s>"], [1])

NOTHING = [{"role": "system", "content": []}]

words = st.text("ab<>/{}\"'é\U0001f642 \n", max_size=12).map(str.strip)
arguments = st.dictionaries(words, st.one_of(words, st.integers(), st.lists(words))).map(json.dumps)
calls = st.lists(st.tuples(st.sampled_from(["look", "look_up"]), arguments), max_size=3)


def completion(text: str, reason: str) -> Completion:
    return Completion(text, (0,), reason, None, Stats(num_emitted_tokens=1))


def chunks_of(pieces: list[str], reason: str):
    """Return the chunks for an answer in these pieces, and its whole response."""
    ended = completion("".join(pieces), reason)
    events = [Event("token", 0, piece) for piece in pieces]
    events.append(Event("done", text="", completion=ended))
    told = Envelope(model="toy", tokenizer=TOKENIZER, fingerprint="f", id="1", created=0)
    writer, answer = ChatWriter(told, has_parts=True), Answer()
    reading = Reading(FORM.reader(OPTIONS, ""), SamplingParams())
    texts = [*writer.opening(), *writer.begin(0)]
    for event in map(reading.take, events):
        answer.take(event)
        texts += writer.part(0, event)
    texts += writer.end(0, answer)
    chunks = [json.loads(text.removeprefix("data: ")) for text in texts]
    return chunks, writer.whole([answer])


def without_ids(message):
    for i, call in enumerate(message.get("tool_calls", [])):
        call["id"] = str(i)
    return message


@settings(max_examples=share(300), deadline=None)
@given(st.data(), words, words, calls, st.sampled_from(["stop", "length"]))
def test_streams_and_whole_answers_say_the_same_however_they_are_cut(
    data, thought, content, called_ones, reason
):
    text = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    text += "\n".join([content, *(called(*one) for one in called_ones)])
    if reason == "length":
        text = text[: data.draw(st.integers(0, len(text)))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    chunks, whole = chunks_of(pieces, reason)
    _, reference = chunks_of([text], reason)
    message, reasons = accumulated(chunks)
    choice = whole["choices"][0]
    assert without_ids(choice["message"]) == without_ids(reference["choices"][0]["message"])
    streamed = without_ids(message) | {"refusal": None}
    assert (streamed["content"] or None) == (choice["message"]["content"] or None)
    assert streamed | {"content": None} == choice["message"] | {"content": None}
    assert reasons == [choice["finish_reason"]]
    if reason == "length":
        assert reasons == ["length"]
    elif "<" not in thought + content:
        told = choice["message"].get("tool_calls", [])
        assert [(c["function"]["name"], c["function"]["arguments"]) for c in told] == called_ones
        assert reasons == ["tool_calls" if called_ones else "stop"]


def test_a_notice_is_no_part_of_an_answer():
    answer = Answer()
    answer.take(Event("notice", text="the verification server is gone"))
    answer.take(Event("token", 0, "a"))
    assert answer.content == "a"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/responses", {"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ("/v1/messages", {"max_tokens": 5, "messages": NOTHING}, "messages"),
        ("/v1/messages/count_tokens", {"messages": NOTHING}, "messages"),
    ],
)
def test_a_conversation_without_a_message_is_refused(client, path, body, param):
    answer = client.post(path, json=body)
    assert (answer.status_code, "send at least one" in answer.text) == (400, True)
    assert param in answer.text
