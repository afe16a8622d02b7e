"""Writes answers of `/v1/responses`: a response with items, and the events for streaming it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from ....types import Part
from ...base import Answer, BlockWriter, arguments_of, notes_of
from ...errors import ApiError
from ..sampling import given_of
from .structs import REPEATED, ResponsesRequest

_TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "message": ("response.output_text", {"logprobs": []}),
    "reasoning": ("response.reasoning_text", {}),
}
"""For each type of item, the name of the events about its text, and their additional fields."""


class ResponsesWriter(BlockWriter):
    """Writes one answer in the form of OpenAI's Responses API.

    Reasoning is an item whose content is the text itself; its summary is always empty.
    """

    def __init__(self, given: ResponsesRequest, body: Mapping[str, Any], model: str) -> None:
        super().__init__()
        self._response = _envelope(given, body, model)
        self._n_events = 0

    def _begin(self) -> Iterator[dict[str, Any]]:
        """Yield the events that begin the answer."""
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=self._response | {"output": []})

    def _end(self, answer: Answer) -> Iterator[dict[str, Any]]:
        """Close the answer; yield its last events, which say whether it is complete."""
        cut = answer.finish_reason in ("length", "repetition")
        yield from self._close_block(cut=cut and not self._is_finished(answer))
        status = "incomplete" if cut else "completed"
        self._response |= {"status": status, "usage": _usage(answer)}
        if notes := notes_of(answer.ended):
            self._response["edgespec"] = notes
        if cut:
            # the API's nearest reason, also for an answer that repeats itself
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self._response["completed_at"] = int(time.time())
        yield self._event(f"response.{status}", response=self._whole())

    def _fail(self, error: ApiError, request_id: str) -> Iterator[dict[str, Any]]:
        """Yield the event that says that the answer failed, and why."""
        told = {"code": "server_error", "message": error.message}
        self._response |= {"status": "failed", "error": told}
        yield self._event("response.failed", response=self._whole())

    def _whole(self) -> dict[str, Any]:
        """Return the response."""
        return self._response

    def _is_finished(self, answer: Answer) -> bool:
        """Return True if the answer ended after the open item, not inside it."""
        kind = self._open[0] if self._open else ""
        if kind == "reasoning":
            return answer.n_reasoning < answer.ended.stats.num_emitted_tokens
        return kind == "call" and arguments_of(self._item["arguments"]) is not None

    def _begin_block(self, part: Part) -> Iterator[dict[str, Any]]:
        self._item = _item(part)
        self._response["output"].append(self._item)
        begun = dict(self._item)
        yield self._event("response.output_item.added", output_index=self._index, item=begun)
        if part.kind != "call":
            self._item["content"] = [_content(part.kind)]
            yield self._told("response.content_part.added", part=_content(part.kind))

    def _continue_block(self, part: Part) -> Iterator[dict[str, Any]]:
        if part.kind == "call":
            self._item["arguments"] += part.text
            yield self._told("response.function_call_arguments.delta", delta=part.text)
            return
        self._item["content"][0]["text"] += part.text
        name, more = _TEXTS[self._item["type"]]
        yield self._told(f"{name}.delta", delta=part.text, **more)

    def _end_block(self, cut: bool) -> Iterator[dict[str, Any]]:
        item = self._item
        item["status"] = "incomplete" if cut else "completed"
        if item["type"] == "function_call":
            said = {"name": item["name"], "arguments": item["arguments"]}
            yield self._told("response.function_call_arguments.done", **said)
        else:
            content, (name, more) = item["content"][0], _TEXTS[item["type"]]
            yield self._told(f"{name}.done", text=content["text"], **more)
            yield self._told("response.content_part.done", part=content)
        yield self._event("response.output_item.done", output_index=self._index, item=item)

    @property
    def _index(self) -> int:
        """The number of the open item."""
        return len(self._response["output"]) - 1

    def _told(self, name: str, /, **fields: Any) -> dict[str, Any]:
        """Return an event about the open item, and about its content if it has any."""
        place = {"item_id": self._item["id"], "output_index": self._index}
        if self._item["type"] != "function_call":
            place["content_index"] = 0
        return self._event(name, **place, **fields)

    def _event(self, name: str, /, **fields: Any) -> dict[str, Any]:
        event = {"type": name, "sequence_number": self._n_events, **fields}
        self._n_events += 1
        return event


def _envelope(given: ResponsesRequest, body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return a response without output, which repeats the options of the request unchanged."""
    told = {name: body[name] for name in REPEATED if body.get(name) is not None}
    sampling = given_of(given)
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": given.instructions,
        "max_output_tokens": given.max_output_tokens,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": given.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": sampling.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": sampling.get("top_p"),
        "truncation": "disabled",
        "usage": None,
    } | told


def _item(part: Part) -> dict[str, Any]:
    """Return the item that a part begins, without its content."""
    number, status = uuid.uuid4().hex, "in_progress"
    if part.kind == "call":
        return {
            "id": f"fc_{number}", "type": "function_call", "status": status,
            "call_id": part.id, "name": part.name, "arguments": "",
        }  # fmt: skip
    if part.kind == "reasoning":
        return {
            "id": f"rs_{number}", "type": "reasoning", "status": status,
            "summary": [], "content": [],
        }  # fmt: skip
    return {
        "id": f"msg_{number}", "type": "message", "status": status,
        "role": "assistant", "content": [],
    }  # fmt: skip


def _content(kind: str) -> dict[str, Any]:
    """Return an empty content part for an item that holds a part of this kind."""
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _usage(answer: Answer) -> dict[str, Any]:
    stats = answer.ended.stats
    n_prompt, n_emitted = stats.num_prompt_tokens, stats.num_emitted_tokens
    return {
        "input_tokens": n_prompt,
        "input_tokens_details": {
            "cached_tokens": stats.num_cached_tokens, "cache_write_tokens": 0,
        },
        "output_tokens": n_emitted,
        "output_tokens_details": {"reasoning_tokens": answer.n_reasoning},
        "total_tokens": n_prompt + n_emitted,
    }  # fmt: skip
