"""The body of `/v1/responses`.

Unknown fields inside items are ignored, because clients send answers back with all their fields.
Unknown fields of the request itself are refused by name, as in every API.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ....chat.pictures import LEFT_OUT
from ...errors import bad_value
from ..fields import (
    IGNORED,
    TOO_DEEP,
    Length,
    OnBusy,
    Request,
    Streamed,
    ToolName,
    about,
    is_shallow,
    only,
    with_settings,
)
from ..pictures import url_of
from ..skipped import ITEMS, as_text, text_in

REPEATED = ("text", "reasoning", "tools", "tool_choice", "metadata")
"""The fields of a request that its answer repeats unchanged."""
_STATELESS = only("nothing is stored here; send the whole conversation as input")
_ADDRESS = "the field 'image_url' is missing; files are not stored here"
_FILES = "files are not supported here; send their text"


class ContentPart(Struct, frozen=True, tag_field="type"):
    """A part of an item's content. Its `type` tells which kind of part it is."""


class InputText(ContentPart, frozen=True, tag="input_text"):
    """Text of a message or of a tool's result."""

    text: str


class OutputText(ContentPart, frozen=True, tag="output_text"):
    """Text of an answer."""

    text: str


class Refusal(ContentPart, frozen=True, tag="refusal"):
    """Text of an answer in which a model refused the request."""

    refusal: str


class InputImage(ContentPart, frozen=True, tag="input_image"):
    """A picture in a user's message, or in the result of a function. `detail` is ignored."""

    image_url: Annotated[str | None, about("data:image/png;base64,…")] = None
    file_id: str | None = None
    detail: str | None = None

    def __post_init__(self) -> None:
        if self.image_url is None:
            raise ValueError(_ADDRESS)


class InputFile(ContentPart, frozen=True, tag="input_file"):
    """A file, which is refused."""

    def __post_init__(self) -> None:
        raise ValueError(_FILES)


class SummaryText(ContentPart, frozen=True, tag="summary_text"):
    """A summary of reasoning."""

    text: str


class ReasoningText(ContentPart, frozen=True, tag="reasoning_text"):
    """Reasoning as the model wrote it."""

    text: str


Content = (
    str
    | Annotated[
        list[InputText | OutputText | Refusal | InputImage | InputFile], Meta(max_length=1024)
    ]
    | None
)


class Item(Struct, frozen=True, tag_field="type"):
    """An item of the input. Its `type` tells which kind it is; without a type it is a message."""


class MessageItem(Item, frozen=True, tag="message"):
    """A message of any role."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class FunctionCallItem(Item, frozen=True, tag="function_call"):
    """A function call of an earlier answer."""

    call_id: str
    name: str
    arguments: str | None


class FunctionCallOutputItem(Item, frozen=True, tag="function_call_output"):
    """The result of a function call."""

    call_id: str
    output: Content


class ReasoningItem(Item, frozen=True, tag="reasoning"):
    """Reasoning of an earlier answer. The chat template decides what to do with it."""

    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | None = None


class ItemReference(Item, frozen=True, tag="item_reference"):
    """A reference to a stored item, which is refused."""

    def __post_init__(self) -> None:
        raise ValueError("nothing is stored here; send the item itself")


Items = Annotated[
    list[MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | ItemReference],
    Meta(min_length=1, max_length=4096),
]


class FlatTool(Struct, frozen=True):
    """A function that may be called. Tools of other types are skipped."""

    type: str
    name: ToolName | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class AllowedTool(Struct, frozen=True):
    """A tool by its name. Tools of a type other than function are skipped."""

    type: str
    name: str | None = None


class Choice(Struct, frozen=True, tag_field="type"):
    """A choice of the tools to call. Its `type` tells which kind of choice it is."""


class FunctionChoice(Choice, frozen=True, tag="function"):
    """The function that has to be called."""

    name: str


class AllowedFunctions(Choice, frozen=True, tag="allowed_tools"):
    """The functions that may be called, and whether one has to be called."""

    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class Reasoning(Struct, frozen=True):
    """The effort of reasoning. Reasoning comes as the model writes it, without a summary."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class TextFormat(Struct, frozen=True):
    """The format of an answer's text. With the type json_schema it needs a `schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(Struct, frozen=True):
    """Options of an answer's text. `verbosity` is ignored."""

    format: TextFormat | None = None


@with_settings("temperature", "top_p", "repetition_detection")
class ResponsesRequest(Request, frozen=True, kw_only=True):
    """The body of `/v1/responses`."""

    input: Annotated[str | Items, about("The conversation: a text of the user, or items")]
    on_busy: OnBusy = None
    instructions: Annotated[str | None, about("A system prompt before the input")] = None
    tools: Annotated[
        Annotated[list[FlatTool], Meta(max_length=512)] | None,
        about("Functions that may be called; tools of other types are skipped"),
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | FunctionChoice | AllowedFunctions | None,
        about("Whether functions have to be called, and which"),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, about("Whether an answer may have several calls")
    ] = None
    text: Annotated[TextOptions | None, about("The format of the answer")] = None
    max_output_tokens: Annotated[Length | None, about("Most tokens of the answer")] = None
    reasoning: Annotated[Reasoning | None, about("How much to reason")] = None
    stream: Streamed = None
    previous_response_id: Annotated[None, _STATELESS] = None
    conversation: Annotated[None, _STATELESS] = None
    prompt: Annotated[None, only("nothing is stored here; send instructions and input")] = None
    background: Annotated[Literal[False] | None, only("answers are not stored")] = None
    truncation: Annotated[
        Literal["disabled"] | None, only("a conversation that is too long is refused")
    ] = None
    top_logprobs: Annotated[
        Literal[0] | None, only("/v1/chat/completions has log-probabilities")
    ] = None
    metadata: Annotated[dict[str, Any] | None, about("Comes back with the answer")] = None
    store: Annotated[bool | None, about("Accepted and ignored: nothing is stored")] = None
    include: Annotated[list[str] | None, IGNORED] = None
    stream_options: Annotated[dict[str, Any] | None, IGNORED] = None
    max_tool_calls: Annotated[
        int | None, about("Accepted and ignored: it bounds calls of built-in tools")
    ] = None
    client_metadata: Annotated[dict[str, Any] | None, IGNORED] = None
    user: Annotated[str | None, IGNORED] = None
    service_tier: Annotated[str | None, IGNORED] = None
    safety_identifier: Annotated[str | None, IGNORED] = None
    prompt_cache_key: Annotated[str | None, IGNORED] = None
    prompt_cache_retention: Annotated[str | None, IGNORED] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, IGNORED] = None


def prepared(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request, with `type` added to messages that leave it out, and with the
    text of items that belong to skipped tools in place of these items.

    Raises ApiError if a field that the answer repeats is nested too deeply.
    """
    for name in REPEATED:
        if not is_shallow(body.get(name)):
            raise bad_value(name, f"the values of {name} {TOO_DEEP}")
    items = body.get("input")
    if not isinstance(items, list):
        return body
    return body | {"input": [_prepared(item) for item in items]}


def _prepared(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    kind = item.get("type")
    if kind == "function_call_output":
        return item | {"output": _output(item.get("output"))}
    if not isinstance(kind, str) or kind not in ITEMS:
        return {"type": "message"} | item if "role" in item else item
    text = text_in(item)
    role = "user" if kind.endswith("_output") else "assistant"
    said = {"type": "message", "role": role, "content": text}
    return said if text else {"type": "reasoning"}  # which adds nothing


def _output(output: Any) -> Any:
    """Return the output of a function, with a text in place of files."""
    if isinstance(output, dict):
        return as_text(output)
    if not isinstance(output, list):
        return output
    attached = ("input_image", "input_file")
    return [
        {"type": "input_text", "text": LEFT_OUT}
        if isinstance(part, dict) and part.get("type") in attached and not url_of(part)
        else part
        for part in output
    ]
