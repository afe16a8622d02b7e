"""Requests that APIs parse, and answers that they write: synthetic parts, cut at random."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from edgespec import Completion, Event, Part, SamplingParams, Stats, ToolCall, ToyTokenizer
from edgespec.server.base import Answer, ParsedRequest, ServedModel, Writer
from edgespec.server.filling import Filling

TOKENIZER = ToyTokenizer(["a", "</s>"], [1])
SERVING = ServedModel(
    "toy", TOKENIZER, "f", lambda named: SamplingParams(**named), Filling(TOKENIZER)
)
USAGE = {"prompt": 10, "cached": 7, "emitted": 5, "reasoning": 3}
SAID = [  # the parts of an answer with everything
    Part("reasoning", "Hm"),
    Part("content", "Wait"),
    Part("call", "", 0, "a", "weather"),
    Part("call", '{"city":'),
    Part("call", '"Rome"}'),
]
DEEP = json.loads('{"a":' * 100 + "1" + "}" * 100)
TEXT = st.text(min_size=1, max_size=12)


def asked_of(parse: Callable[[bytes, ServedModel], ParsedRequest], **body: Any) -> ParsedRequest:
    """Return what a body asks for."""
    return parse(json.dumps(body).encode(), SERVING)


def call(id: str, arguments: str, name: str = "weather") -> dict[str, Any]:
    """Return a call in a message of an assistant."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said() -> st.SearchStrategy[list[Part]]:
    """Return a strategy for all that an answer says, each block in one part."""
    calls = st.lists(st.tuples(st.text("abc", min_size=1, max_size=4), TEXT), max_size=3)
    return st.builds(_parts, st.none() | TEXT, st.none() | TEXT, calls)


def _parts(reasoning: str | None, content: str | None, calls: list[tuple[str, str]]) -> list[Part]:
    parts = [Part("reasoning", reasoning)] if reasoning else []
    parts += [Part("content", content)] if content else []
    for index, (name, value) in enumerate(calls):
        parts.append(Part("call", json.dumps({"a": value}), index, f"call_{index}{name}", name))
    return parts


def cut(parts: Sequence[Part], draw: Callable[[Any], Any]) -> list[Part]:
    """Return the same in more parts, cut where `draw` says."""
    found = []
    for part in parts:
        places = sorted(draw(st.lists(st.integers(0, len(part.text)), max_size=4)))
        pieces = zip([0, *places], [*places, len(part.text)], strict=True)
        texts = [part.text[a:b] for a, b in pieces]
        if part.kind == "call":
            found.append(Part("call", "", part.index, part.id, part.name))
            found += [Part("call", text, part.index) for text in texts]
        else:
            found += [Part(part.kind, text) for text in texts]
    return found


def answered(
    parts: Sequence[Part], reason: str, stop: str | int | None = None, n_reasoning: int = 3
) -> tuple[list[Event], Answer]:
    """Return the events of an answer, and the answer; with the reason "tool_calls" its calls are
    complete.
    """
    is_called = reason == "tool_calls"
    made = [ToolCall(p.id, p.name, "{}") for p in parts if p.id] if is_called else []
    stats = Stats(
        num_prompt_tokens=USAGE["prompt"],
        num_cached_tokens=USAGE["cached"],
        num_emitted_tokens=USAGE["emitted"],
    )
    ended = Completion(
        "", (0,), "stop" if is_called else reason, stop, stats, tool_calls=tuple(made)
    )
    events = [Event("token", 0, parts=(part,)) for part in parts]
    events.append(Event("done", completion=ended))
    answer = Answer()
    for event in events:
        answer.take(event)
    answer.n_reasoning = n_reasoning
    return events, answer


def events_of(writer: Writer, parts: Sequence[Part], *how: Any, **more: Any) -> list[Any]:
    """Return the events that a writer makes of an answer, as a client reads them."""
    events, answer = answered(parts, *how, **more)
    texts = [*writer.opening(), *writer.begin(0)]
    for event in events:
        texts += writer.part(0, event)
    texts += [*writer.end(0, answer), *writer.close([answer])]
    found = []
    for text in texts:
        name, data = text.removesuffix("\n\n").split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def whole_of(writer: Writer, parts: Sequence[Part], *how: Any, **more: Any) -> dict[str, Any]:
    """Return what a writer makes of a whole answer."""
    return dict(writer.whole([answered(parts, *how, **more)[1]]))
