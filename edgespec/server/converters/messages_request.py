"""The requests of `/v1/messages` and its token count, and the chat-completions requests that they
become.

Fields inside of blocks that are not known are ignored, because clients send answers back with
everything that they hold; fields of the request itself are refused by name as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ..errors import bad_value
from ..messages import IGNORED, TOO_DEEP, about, is_shallow, only
from ..parameters import (
    REPETITION,
    Length,
    RepetitionDetection,
    Request,
    StopText,
    Streamed,
    Temperature,
    TopK,
    TopP,
    given_fields,
)
from .conversion import (
    Conversion,
    Transcript,
    called,
    joined,
    missing,
    tool_fields,
    without_none,
)

_NAMES = {
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "thinking_budget_tokens": "thinking.budget_tokens",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
_BEGUN = (
    "the last message must not be the assistant's: an answer that has begun is not continued here"
)
_STATELESS = "nothing is stored here; send the whole conversation"
_BILLING = "x-anthropic-billing-header:"


class Block(Struct, frozen=True, tag_field="type"):
    """A block of a message's content, told apart by its `type`."""


class TextBlock(Block, frozen=True, tag="text"):
    """Text."""

    text: str


class ThinkingBlock(Block, frozen=True, tag="thinking"):
    """Reasoning of an earlier answer; templates decide what becomes of it."""

    thinking: str


class RedactedThinkingBlock(Block, frozen=True, tag="redacted_thinking"):
    """Reasoning that only its maker can read. It is skipped."""


class ToolUseBlock(Block, frozen=True, tag="tool_use"):
    """A call of a tool, as an answer had it."""

    id: str
    name: str
    input: dict[str, Any]


class ImageBlock(Block, frozen=True, tag="image"):
    """An image, which is refused."""

    def __post_init__(self) -> None:
        raise ValueError("images are not supported here; send text")


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
    content: str | Blocks


class MessagesTool(Struct, frozen=True):
    """A tool that may be called. Those with a type other than custom are the provider's own and are
    skipped.
    """

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class MessagesToolChoice(Struct, frozen=True):
    """Says whether tools have to be called; `name` is that of the tool, for the type tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, frozen=True):
    """Says whether to reason. Types that ask for it differ only by the budget."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=0)] | None = None


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


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """The body of `/v1/messages`."""

    max_tokens: Annotated[Length, about("Most tokens of the answer")]
    stop_sequences: Annotated[
        Annotated[list[StopText], Meta(max_length=16)] | None,
        about("Texts that end the answer and are not part of it"),
    ] = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    stream: Streamed = None
    repetition_detection: Annotated[RepetitionDetection | None, REPETITION] = None
    thread: Annotated[dict[str, Any] | None, only(_STATELESS)] = None
    metadata: Annotated[dict[str, Any] | None, IGNORED] = None
    service_tier: Annotated[str | None, IGNORED] = None
    inference_geo: Annotated[str | None, IGNORED] = None
    diagnostics: Annotated[dict[str, Any] | None, IGNORED] = None


def conversion(given: CountRequest) -> Conversion:
    """Return the chat-completions request for a request; raise ApiError where there is none."""
    tools, names = _functions(given)
    asked = {
        "model": given.model,
        "messages": _messages(given),
        "response_format": _response_format(given),
        **_reasoning(given),
        **tool_fields(tools, *_choice(given)),
    }
    if isinstance(given, MessagesRequest):
        _check_whole(given)
        asked |= {
            "max_completion_tokens": given.max_tokens,
            "stop": given.stop_sequences,
            "temperature": given.temperature,
            "top_p": given.top_p,
            "top_k": given.top_k,
            "repetition_detection": given_fields(given.repetition_detection),
            "stream": given.stream,
            "stream_options": {"include_usage": True} if given.stream else None,
        }
    return Conversion(without_none(asked), _NAMES | names)


def _check_whole(given: MessagesRequest) -> None:
    """Raise ApiError for a request that is only a part of something."""
    if given.thread is not None:
        message = f"thread is not supported: {_STATELESS}"
        raise bad_value("thread", message, "thread_unsupported_request")
    if given.messages[-1].role == "assistant":
        raise bad_value("messages", _BEGUN)


def _messages(given: CountRequest) -> list[dict[str, Any]]:
    talk = Transcript()
    for text in _system(given.system):
        talk.say("system", text)
    for i, turn in enumerate(given.messages):
        blocks = [TextBlock(turn.content)] if isinstance(turn.content, str) else turn.content
        for k, block in enumerate(blocks):
            _check_block(turn.role, block, f"messages[{i}].content[{k}]")
        _add(talk, turn.role, blocks)
    return talk.messages


def _system(system: str | list[TextBlock] | None) -> list[str]:
    """Return the texts of a system prompt.

    Claude Code puts a block for the accounting of its provider before them. It is no text for a
    model, and another one in every request, so that nothing behind it could be reused.
    """
    if isinstance(system, str):
        return [system]
    return [block.text for block in system or () if not block.text.startswith(_BILLING)]


def _check_block(role: str, block: Block, place: str) -> None:
    """Raise ApiError for a block in a message of somebody who does not say such things, and for one
    that is nested too deeply.
    """
    if isinstance(block, ToolUseBlock) and not is_shallow(block.input):
        raise bad_value(f"{place}.input", f"the values of {place}.input {TOO_DEEP}")
    speaker = "assistant" if isinstance(block, (ThinkingBlock, ToolUseBlock)) else ""
    speaker = "user" if isinstance(block, ToolResultBlock) else speaker
    if speaker and role != speaker:
        kind = block.__struct_config__.tag
        raise bad_value(place, f"{place}: {kind} belongs in a message of the {speaker}, not {role}")


def _add(talk: Transcript, role: str, blocks: Sequence[Block]) -> None:
    """Add the blocks of a message; what an assistant says and thinks in several is one text."""
    if role == "assistant":
        said = [block.text for block in blocks if isinstance(block, TextBlock)]
        thought = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
        talk.think("".join(thought))
        if said:
            talk.say(role, "".join(said))
    for block in blocks:
        if isinstance(block, TextBlock) and role != "assistant":
            talk.say(role, block.text)
        elif isinstance(block, ToolUseBlock):
            talk.call(block.id, block.name, json.dumps(block.input, ensure_ascii=False))
        elif isinstance(block, ToolResultBlock):
            talk.result(block.tool_use_id, _result(block))


def _result(block: ToolResultBlock) -> str:
    if block.content is None or isinstance(block.content, str):
        return block.content or ""
    return joined(*(part.text for part in block.content if isinstance(part, TextBlock)))


def _reasoning(given: CountRequest) -> dict[str, Any]:
    """Return the fields of a chat-completions request that are about reasoning."""
    thinking, told = given.thinking, given.output_config
    if thinking is not None and thinking.type == "disabled":
        return {"reasoning_effort": "none"}
    return {
        "reasoning_effort": told.effort if told else None,
        "thinking_budget_tokens": thinking.budget_tokens if thinking else None,
    }


def _response_format(given: CountRequest) -> dict[str, Any] | None:
    if given.output_config is None or given.output_config.format is None:
        return None
    schema = given.output_config.format.schema
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _functions(given: CountRequest) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the custom tools as chat completions have them, and where each stands here, by its
    place there.
    """
    found: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for i, tool in enumerate(given.tools or ()):
        if tool.type not in (None, "custom"):
            continue
        for field in ("name", "input_schema"):
            if getattr(tool, field) is None:
                raise missing(f"tools[{i}].{field}")
        there = f"tools[{len(found)}].function"
        names |= {there: f"tools[{i}]", f"{there}.parameters": f"tools[{i}].input_schema"}
        function = {
            "name": tool.name, "description": tool.description,
            "parameters": tool.input_schema, "strict": tool.strict,
        }  # fmt: skip
        found.append({"type": "function", "function": without_none(function)})
    return found, names


def _choice(given: CountRequest) -> tuple[Any, bool | None]:
    """Return the choice of tools as chat completions have it, and whether several may be called."""
    choice = given.tool_choice
    if choice is None:
        return None, None
    disabled = choice.disable_parallel_tool_use
    parallel = None if disabled is None else not disabled
    if choice.type == "tool":
        if choice.name is None:
            raise missing("tool_choice.name")
        return called(choice.name), parallel
    return "required" if choice.type == "any" else choice.type, parallel
