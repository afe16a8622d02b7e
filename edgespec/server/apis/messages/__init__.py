"""Anthropic's `/v1/messages`, and its token count."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ....chat.history import Transcript
from ....chat.request import GenerationRequest
from ...base import ParsedRequest, ServedModel
from ...errors import bad_value
from ..fields import TOO_DEEP, check, is_shallow, missing, parsed
from ..pictures import url_of
from ..sampling import given_of, stops_of
from ..tools import Choice, GivenTool, Tools, given_tool
from .structs import (
    STATELESS,
    Block,
    CountRequest,
    ImageBlock,
    MessagesRequest,
    MessagesTool,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    prepared,
)
from .writer import MessagesWriter

_BILLING = "x-anthropic-billing-header:"


def parse(body: bytes, serving: ServedModel) -> ParsedRequest:
    """Return the request in a body. Raises ApiError, and ConfigError for settings out of range."""
    given = check(prepared(parsed(body)), MessagesRequest)
    asked = _asked(given, serving)
    if given.thread is not None:
        message = f"thread is not supported: {STATELESS}"
        raise bad_value("thread", message, "thread_unsupported_request")
    return asked


def parse_count(body: bytes, serving: ServedModel) -> ParsedRequest:
    """Return the request whose tokens are to be counted. Raises the same errors as `parse`."""
    return _asked(check(prepared(parsed(body)), CountRequest), serving)


def _asked(given: CountRequest, serving: ServedModel) -> ParsedRequest:
    tools = Tools(_functions(given.tools))
    talk = _talk(given)
    config, thinking = given.output_config, given.thinking
    form = config.format if config else None
    named: dict[str, Any] = {"schema": form.schema} if form else {}
    answers = isinstance(given, MessagesRequest)
    if isinstance(given, MessagesRequest):
        named |= given_of(given)
        if given.stop_sequences is not None:
            named["stop"] = stops_of(given.stop_sequences)
    disabled = thinking is not None and thinking.type == "disabled"
    options = tools.options(
        _choice(given),
        _parallel(given),
        effort="none" if disabled else config.effort if config else None,
        budget=None if disabled or thinking is None else thinking.budget_tokens,
    )
    return ParsedRequest(
        request=GenerationRequest(
            messages=talk.messages,
            params=serving.params(named),
            options=options,
            continues=True if answers and given.messages[-1].role == "assistant" else None,
            on_busy=(isinstance(given, MessagesRequest) and given.on_busy) or "wait",
        ),
        writer=lambda prepared: MessagesWriter(serving.model, len(prepared.prompts[0])),
        model=given.model,
        stream=isinstance(given, MessagesRequest) and bool(given.stream),
        form="output_config.format" if form else "",
        tools=tools.places,
        places=talk.places,
    )


def _talk(given: CountRequest) -> Transcript:
    talk = Transcript()
    talk.place = "system"
    for text in _system(given.system):
        talk.say("system", text)
    for i, turn in enumerate(given.messages):
        said = turn.content or ""
        blocks = [TextBlock(said)] if isinstance(said, str) else said
        for k, block in enumerate(blocks):
            _check_block(turn.role, block, f"messages[{i}].content[{k}]")
        talk.place = f"messages[{i}]"
        _add(talk, turn.role, blocks)
    return talk


def _system(system: str | list[TextBlock] | None) -> list[str]:
    """Return the texts of a system prompt.

    Claude Code puts a block for its provider's billing before them. The block is left out, because
    it is not meant for a model. It also differs in every request, so no cached token after it could
    be reused.
    """
    if isinstance(system, str):
        return [system]
    return [block.text for block in system or () if not block.text.startswith(_BILLING)]


def _check_block(role: str, block: Block, place: str) -> None:
    """Raise ApiError if a block does not belong in a message of this role, or if it is nested too
    deeply.
    """
    if isinstance(block, ToolUseBlock) and not is_shallow(block.input):
        raise bad_value(f"{place}.input", f"the values of {place}.input {TOO_DEEP}")
    speaker = "assistant" if isinstance(block, (ThinkingBlock, ToolUseBlock)) else ""
    speaker = "user" if isinstance(block, (ToolResultBlock, ImageBlock)) else speaker
    if speaker and role != speaker:
        kind = block.__struct_config__.tag
        raise bad_value(place, f"{place}: {kind} belongs in a message of the {speaker}, not {role}")


def _add(talk: Transcript, role: str, blocks: Sequence[Block]) -> None:
    """Add the blocks of a message to `talk`. The assistant's blocks of text are joined to one text,
    and its blocks of thinking to another.
    """
    if role == "assistant":
        said = [block.text for block in blocks if isinstance(block, TextBlock)]
        thought = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
        talk.think("".join(thought))
        talk.say(role, "".join(said))
    elif role == "user" and all(isinstance(block, RedactedThinkingBlock) for block in blocks):
        talk.say(role, "")
    for block in blocks:
        if isinstance(block, TextBlock) and role != "assistant":
            talk.say(role, block.text)
        elif isinstance(block, ImageBlock):
            talk.show(url_of(block))
        elif isinstance(block, ToolUseBlock):
            talk.call(block.id, block.name, json.dumps(block.input, ensure_ascii=False))
        elif isinstance(block, ToolResultBlock):
            talk.result(block.tool_use_id, _result(block))


def _result(block: ToolResultBlock) -> Iterator[tuple[str, str]]:
    if block.content is None or isinstance(block.content, str):
        yield "text", block.content or ""
        return
    for part in block.content:
        if isinstance(part, TextBlock):
            yield "text", part.text
        elif isinstance(part, ImageBlock):
            yield "picture", url_of(part)


def _functions(tools: list[MessagesTool] | None) -> list[GivenTool]:
    """Return the custom tools of a request."""
    functions = []
    for i, tool in enumerate(tools or ()):
        if tool.type not in (None, "custom"):
            continue
        functions.append(given_tool(f"tools[{i}]", tool, "input_schema"))
        if tool.input_schema is None:
            raise missing(f"tools[{i}].input_schema")
    return functions


def _choice(given: CountRequest) -> Choice:
    """Return the choice of tools: which may be called, and whether one has to be called."""
    choice = given.tool_choice
    if choice is None:
        return Choice()
    if choice.type == "tool":
        if choice.name is None:
            raise missing("tool_choice.name")
        return Choice(choice.name, [choice.name])
    return Choice("required" if choice.type == "any" else choice.type)


def _parallel(given: CountRequest) -> bool | None:
    """Return True if an answer may call several tools, None if the request does not say."""
    disabled = given.tool_choice and given.tool_choice.disable_parallel_tool_use
    return None if disabled is None else not disabled
