"""Writes answers of `/v1/messages`: a message with blocks, and the events for streaming it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from ....types import Part
from ...base import Answer, BlockWriter, arguments_of, named_event, notes_of
from ...errors import ApiError

_REASONS = {
    "stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use",
    "repetition": "max_tokens",  # the API's nearest reason: the answer was cut off
}  # fmt: skip


class MessagesWriter(BlockWriter):
    """Writes one answer in the form of Anthropic's Messages API.

    The signature of a thinking block is empty, because reasoning that clients send back is not
    checked.
    """

    def __init__(self, model: str, n_prompt_tokens: int) -> None:
        super().__init__()
        usage = _usage(n_prompt_tokens)
        self._message: dict[str, Any] = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        self._blocks: list[dict[str, Any]] = []
        self._said: list[str] = []  # the texts of the open block

    def alive(self) -> str:
        """Return the API's own event for this."""
        return named_event({"type": "ping"})

    def _begin(self) -> Iterator[dict[str, Any]]:
        """Yield the event that begins the answer."""
        yield {"type": "message_start", "message": dict(self._message)}

    def _end(self, answer: Answer) -> Iterator[dict[str, Any]]:
        """Close the answer; yield its last events, which say why it ended."""
        yield from self._close_block()
        completion, reason = answer.ended, answer.finish_reason
        delta = {"stop_reason": _REASONS[reason], "stop_sequence": None}
        if reason == "stop" and isinstance(completion.stop_reason, str):
            delta = {"stop_reason": "stop_sequence", "stop_sequence": completion.stop_reason}
        stats = completion.stats
        usage = _usage(
            stats.num_prompt_tokens,
            stats.num_cached_tokens,
            stats.num_emitted_tokens,
            answer.n_reasoning,
        )
        notes = notes_of(completion)
        told = {"edgespec": notes} if notes else {}
        self._message |= {**delta, "usage": usage, "content": self._blocks, **told}
        yield {"type": "message_delta", "delta": delta, "usage": usage, **told}
        yield {"type": "message_stop"}

    def _fail(self, error: ApiError, request_id: str) -> Iterator[dict[str, Any]]:
        """Yield the event that reports an error."""
        yield error.messages_body(request_id)

    def _whole(self) -> dict[str, Any]:
        """Return the message."""
        return self._message

    def _begin_block(self, part: Part) -> Iterator[dict[str, Any]]:
        self._blocks.append(_block(part))
        self._said = []
        yield self._event("content_block_start", content_block=dict(self._blocks[-1]))

    def _continue_block(self, part: Part) -> Iterator[dict[str, Any]]:
        self._said.append(part.text)
        if part.kind == "call":
            delta = {"type": "input_json_delta", "partial_json": part.text}
        elif part.kind == "reasoning":
            delta = {"type": "thinking_delta", "thinking": part.text}
        else:
            delta = {"type": "text_delta", "text": part.text}
        yield self._event("content_block_delta", delta=delta)

    def _end_block(self, cut: bool) -> Iterator[dict[str, Any]]:
        block, said = self._blocks[-1], "".join(self._said)
        if block["type"] == "tool_use":
            block["input"] = arguments_of(said) or {}
        else:
            block[block["type"]] = said
        yield self._event("content_block_stop")

    def _event(self, name: str, **fields: Any) -> dict[str, Any]:
        return {"type": name, "index": len(self._blocks) - 1, **fields}


def _block(part: Part) -> dict[str, Any]:
    """Return the block that a part begins, without its text."""
    if part.kind == "call":
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _usage(
    n_prompt: int, n_cached: int = 0, n_emitted: int = 0, n_reasoning: int = 0
) -> dict[str, Any]:
    """Return token counts. Input tokens from the cache are counted separately from the others."""
    return {
        "input_tokens": n_prompt - n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": n_emitted,
        "output_tokens_details": {"thinking_tokens": n_reasoning},
    }
