"""Writes answers of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....types import Event, Logprob, Part
from ...base import Answer, parts_of
from ..openai_writer import CompletionsWriter, Envelope, Offsets, shown


class ChatWriter(CompletionsWriter):
    """Writes the answer of a chat. has_parts: the answer may have reasoning or tool calls."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(
        self, envelope: Envelope, n_prompt_tokens: Sequence[int] = (), *, has_parts: bool
    ) -> None:
        super().__init__(envelope, n_prompt_tokens)
        self._has_parts = has_parts

    def _opening(self) -> Mapping[str, Any]:
        """Return the choice with the role. Its content is None if the answer may lack content."""
        content = None if self._has_parts else ""
        delta = {"role": "assistant", "content": content}
        return {"delta": delta, "logprobs": None, "finish_reason": None}

    def _parts(self, event: Event) -> Sequence[Mapping[str, Any]]:
        return [{"delta": _delta(part)} for part in parts_of(event)]

    def _nothing(self) -> Mapping[str, Any]:
        return {"delta": {} if self._has_parts else {"content": ""}}

    def _last(self) -> Mapping[str, Any]:
        return {"delta": {}}

    def _said(self, answer: Answer) -> Mapping[str, Any]:
        content = answer.content if answer.content or not answer.calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reasoning := answer.reasoning:
            message |= _reasoning(reasoning)
        if answer.calls:
            message["tool_calls"] = [
                _call(call["id"], call["name"], call["arguments"]) for call in answer.calls
            ]
        return {"message": message}

    def _usage(self, answers: Sequence[Answer]) -> dict[str, Any]:
        usage = super()._usage(answers)
        if self._has_parts:
            n_reasoning = sum(answer.n_reasoning for answer in answers)
            usage["completion_tokens_details"]["reasoning_tokens"] = n_reasoning
        return usage

    def _logprobs(self, tokens: Sequence[tuple[int, Logprob]], offsets: Offsets) -> dict[str, Any]:
        content = [
            self._entry(token, logprob.logprob)
            | {"top_logprobs": [self._entry(*top) for top in logprob.top]}
            for token, logprob in tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._name(token),
            "logprob": shown(logprob),
            "bytes": list(self._bytes(token)),
        }


def _delta(part: Part) -> Mapping[str, Any]:
    if part.kind == "content":
        return {"content": part.text}
    if part.kind == "reasoning":
        return _reasoning(part.text)
    if part.id:
        return {"tool_calls": [{"index": part.index} | _call(part.id, part.name, part.text)]}
    return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _reasoning(text: str) -> dict[str, str]:
    """Return reasoning under two names: that of llama.cpp and DeepSeek, that of vLLM and others."""
    return {"reasoning_content": text, "reasoning": text}
