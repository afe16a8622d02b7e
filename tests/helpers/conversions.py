"""Chat completions for the tests of converters: synthetic chunks, cut at random."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from hypothesis import strategies as st

from edgespec.server.converters.writer import Converted, Writer

USAGE = {
    "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 7},
    "completion_tokens_details": {"reasoning_tokens": 3},
}  # fmt: skip
SAID = [  # deltas of an answer with everything
    {"role": "assistant", "content": ""},
    {"reasoning_content": "Hm", "reasoning": "Hm"},
    {"content": "Wait"},
    {"tool_calls": [{"index": 0, "id": "a", "type": "function",
                     "function": {"name": "weather", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Rome"}'}}]},
]  # fmt: skip
DEEP = json.loads('{"a":' * 100 + "1" + "}" * 100)
TEXT = st.text(min_size=1, max_size=12)


def call(id: str, arguments: str, name: str = "weather") -> dict[str, Any]:
    """Return a call in a message of an assistant."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def message() -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for the whole messages of an assistant."""
    calls = st.builds(
        lambda name, value: call(f"call_{name}", json.dumps({"a": value}), name),
        st.text("abc", min_size=1, max_size=4), TEXT,
    )  # fmt: skip
    return st.fixed_dictionaries(
        {},
        optional={
            "reasoning_content": TEXT,
            "content": TEXT,
            "tool_calls": st.lists(calls, min_size=1, max_size=3),
        },
    )


def cut_message(said: dict[str, Any], draw: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """Return deltas that add up to a message, cut where `draw` says."""

    def cut(text: str) -> list[str]:
        places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
        return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]

    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "content"):
        deltas += [{name: text} for text in cut(said.get(name, ""))]
    for index, call in enumerate(said.get("tool_calls", ())):
        begin = call | {"index": index, "function": call["function"] | {"arguments": ""}}
        deltas.append({"tool_calls": [begin]})
        for text in cut(call["function"]["arguments"]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    return deltas


def chunks(
    deltas: list[dict[str, Any]], reason: str, stop: str | int | None = None
) -> list[dict[str, Any]]:
    """Return the chunks of a streamed chat completion."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason, "stop_reason": stop})
    told: list[dict[str, Any]] = [{"choices": [choice], "usage": None} for choice in choices]
    return [*told, {"choices": [], "usage": USAGE}]


def events_of(writer: Writer, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events that a writer makes of chunks, as a client reads them."""

    async def source() -> AsyncIterator[dict[str, Any]]:
        for chunk in told:
            yield chunk

    async def collect() -> list[str]:
        return [text async for text in Converted(writer).stream(source())]

    found = []
    for text in asyncio.run(collect()):
        name, data = text.removesuffix("\n\n").split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def whole_of(
    writer: Writer, said: dict[str, Any], reason: str, stop: str | int | None = None
) -> dict[str, Any]:
    """Return what a writer makes of a whole chat completion."""
    choice = {"index": 0, "message": said, "finish_reason": reason, "stop_reason": stop}
    return Converted(writer).whole({"choices": [choice], "usage": USAGE})
