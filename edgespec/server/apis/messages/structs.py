"""The bodies of `/v1/messages` and of its token count.

Unknown fields inside blocks are ignored, because clients send answers back with all their fields.
Unknown fields of the request itself are refused by name, as in every API.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ....chat.pictures import LEFT_OUT
from ..fields import (
    IGNORED,
    Length,
    OnBusy,
    Request,
    Streamed,
    ToolName,
    about,
    only,
    with_settings,
)
from ..pictures import url_of
from ..skipped import BLOCKS, as_text, text_in

STATELESS = "nothing is stored here; send the whole conversation"


class Block(Struct, frozen=True, tag_field="type"):
    """A block of a message's content. Its `type` tells which kind of block it is."""


class TextBlock(Block, frozen=True, tag="text"):
    """A block of text."""

    text: str


class ThinkingBlock(Block, frozen=True, tag="thinking"):
    """Reasoning of an earlier answer. The chat template decides what to do with it."""

    thinking: str


class RedactedThinkingBlock(Block, frozen=True, tag="redacted_thinking"):
    """Reasoning that only the provider that wrote it can read. It is skipped."""


class ToolUseBlock(Block, frozen=True, tag="tool_use"):
    """A tool call of an earlier answer."""

    id: str
    name: str
    input: dict[str, Any]


class ImageSource(Struct, frozen=True):
    """The bytes of a picture in base64, or its address."""

    type: Literal["base64", "url"]
    data: str | None = None
    url: str | None = None
    media_type: str | None = None

    def __post_init__(self) -> None:
        name = "url" if self.type == "url" else "data"
        if getattr(self, name) is None:
            raise ValueError(f"the field '{name}' is missing")


class ImageBlock(Block, frozen=True, tag="image"):
    """A picture in a user's message, or in the result of a tool."""

    source: ImageSource


class DocumentBlock(Block, frozen=True, tag="document"):
    """A document, which is refused."""

    def __post_init__(self) -> None:
        raise ValueError("documents are not supported here; send their text")


class ToolResultBlock(Block, frozen=True, tag="tool_result"):
    """The result of a tool. `is_error` is ignored: the content says what failed."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None


Blocks = Annotated[
    list[
        TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
        | ImageBlock | DocumentBlock
    ],
    Meta(max_length=4096),
]  # fmt: skip


class Turn(Struct, frozen=True):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks | None


class MessagesTool(Struct, frozen=True):
    """A tool that may be called. Tools of a type other than custom are the provider's own, and are
    skipped.
    """

    name: ToolName | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class MessagesToolChoice(Struct, frozen=True):
    """Says whether tools have to be called. With the type `tool`, `name` is the tool to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, frozen=True):
    """Says whether to reason. The types that ask for reasoning differ only in the budget."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] | None = None


class OutputFormat(Struct, frozen=True):
    """The format of an answer: JSON that follows a schema."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, frozen=True):
    """The effort of reasoning, and the format of an answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(Request, frozen=True, kw_only=True):
    """The body of `/v1/messages/count_tokens`."""

    messages: Annotated[
        list[Turn], Meta(min_length=1, max_length=4096, description="The conversation")
    ]
    system: Annotated[str | list[TextBlock] | None, about("A system prompt")] = None
    tools: Annotated[
        Annotated[list[MessagesTool], Meta(max_length=512)] | None,
        about("Tools that may be called; those of the provider are skipped"),
    ] = None
    tool_choice: Annotated[
        MessagesToolChoice | None, about("Whether tools have to be called, and which")
    ] = None
    thinking: Annotated[
        Thinking | None, about("Whether to reason; left out, the model does as it does by itself")
    ] = None
    output_config: Annotated[
        OutputConfig | None, about("How much to reason, and the format of the answer")
    ] = None
    cache_control: Annotated[dict[str, Any] | None, IGNORED] = None
    context_management: Annotated[dict[str, Any] | None, IGNORED] = None
    speed: Annotated[str | None, IGNORED] = None
    user_profile_id: Annotated[str | None, IGNORED] = None
    workspace_id: Annotated[str | None, IGNORED] = None


@with_settings("temperature", "top_p", "top_k", "repetition_detection")
class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """The body of `/v1/messages`."""

    max_tokens: Annotated[Length, about("Most tokens of the answer")]
    stop_sequences: Annotated[
        Annotated[list[str], Meta(max_length=16)] | None,
        about("Texts that end the answer and are not part of it"),
    ] = None
    stream: Streamed = None
    on_busy: OnBusy = None
    thread: Annotated[dict[str, Any] | None, only(STATELESS)] = None
    metadata: Annotated[dict[str, Any] | None, IGNORED] = None
    service_tier: Annotated[str | None, IGNORED] = None
    inference_geo: Annotated[str | None, IGNORED] = None
    diagnostics: Annotated[dict[str, Any] | None, IGNORED] = None


def prepared(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request, with the text of blocks that belong to the provider's tools in
    place of these blocks.
    """
    turns = body.get("messages")
    return body | {"messages": list(map(_prepared, turns))} if isinstance(turns, list) else body


def _prepared(turn: Any) -> Any:
    if not isinstance(turn, dict) or not isinstance(turn.get("content"), list):
        return turn
    known = [_known(block) for block in turn["content"]]
    if turn.get("role") == "assistant":
        known = _apart(known, turn["content"])
    return turn | {"content": known}


def _known(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    if block.get("type") == "tool_result":
        return block | {"content": _result(block.get("content"))}
    if block.get("type") == "tool_use":
        return block | {"input": _arguments(block.get("input"))}
    if block.get("type") == "document" and (text := _text_of(block)):
        return {"type": "text", "text": text}
    if not isinstance(block.get("type"), str) or block["type"] not in BLOCKS:
        return block
    text = text_in(block)
    return {"type": "text", "text": text} if text else _NOTHING


def _result(content: Any) -> Any:
    """Return the content of a tool's result as text, or as blocks of text and pictures."""
    if isinstance(content, dict):
        content = [content] if "type" in content else as_text(content)
    if not isinstance(content, list):
        return content
    return [each for each in map(_result_block, content) if each is not _NOTHING]


def _result_block(block: Any) -> Any:
    """Return a block of a tool's result, with a text in place of what is no text and no picture."""
    kind = block.get("type") if isinstance(block, dict) else ""
    is_file = kind == "document" and not _text_of(block)
    if is_file or (kind == "image" and not url_of(block)):
        return {"type": "text", "text": LEFT_OUT}
    return _known(block)


def _text_of(document: dict[str, Any]) -> str:
    """Return the text of a document whose source is text or blocks of text, "" for any other."""
    source = document.get("source")
    if not isinstance(source, dict) or source.get("type") not in ("text", "content"):
        return ""
    if source["type"] == "content":
        return text_in(source)
    return source["data"] if isinstance(source.get("data"), str) else ""


def _arguments(given: Any) -> Any:
    """Return the input of a call as an object, if it is none or the text of an object."""
    if given is None or given == "":
        return {}
    try:
        value = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return given
    return value if isinstance(value, dict) else given


_NOTHING = {"type": "redacted_thinking"}  # a block that is skipped


def _apart(known: list[Any], given: list[Any]) -> list[Any]:
    """Return an answer's blocks with an empty line around the texts of tools among them."""
    apart, last = [], None
    for block, before in zip(known, given, strict=True):
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            is_tool = block is not before
            between = "\n\n" if last is not None and (is_tool or last) else ""
            block, last = block | {"text": between + block["text"]}, is_tool
        apart.append(block)
    return apart
