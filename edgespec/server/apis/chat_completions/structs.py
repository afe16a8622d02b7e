"""The body of `/v1/chat/completions`, and the conversion of its messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from ....chat.history import call_of
from ....chat.messages import Message as ChatMessage
from ....chat.pictures import picture_at
from ..fields import Budget, Generation, Length, ToolName, Top, about, ignored, only
from ..pictures import url_of

TEXT_ONLY = only("messages are plain text")
Empty = Annotated[list[Any], Meta(max_length=0)]


TOOLS = about("Functions that the model may call; other types than functions are skipped")
VARIABLES = about('Variables of the chat template, such as {"enable_thinking": false}')
_NO_FUNCTIONS = only("tools holds functions")
_PLAIN = only("answers are plain text")
Modalities = Annotated[list[Literal["text"]], Meta(max_length=1)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
PARSE_SPECIAL = about(
    "Read special tokens that are written in texts as such "
    "(default: true for a text, false for the contents of messages)"
)

CONTINUES = about(
    "Whether the answer continues the last message, if that is the assistant's "
    "(default: true where the template allows it)"
)


class TextPart(Struct, frozen=True):
    """A piece of a message's content, or of an answer that refuses the request."""

    type: Annotated[Literal["text", "refusal"], TEXT_ONLY]
    text: str | None = None
    refusal: str | None = None

    def __post_init__(self) -> None:
        if getattr(self, self.type) is None:
            raise ValueError(f"the field '{self.type}' is missing")


Content = str | Annotated[list[TextPart], Meta(max_length=1024)] | None


class ImageUrl(Struct, frozen=True):
    """A picture. `detail` is ignored: the server's settings bound the tokens of pictures."""

    url: Annotated[str, about("data:image/png;base64,… (PNG, JPEG, WebP, GIF or BMP)")]
    detail: str | None = None


class UserPart(Struct, frozen=True):
    """A piece of a user's message or of a tool's result: text or a picture."""

    type: Annotated[Literal["text", "refusal", "image_url"], only("text and pictures")]
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | None = None

    def __post_init__(self) -> None:
        if getattr(self, self.type) is None:
            raise ValueError(f"the field '{self.type}' is missing")


UserContent = str | Annotated[list[UserPart], Meta(max_length=1024)] | None


class CalledFunction(Struct, frozen=True):
    """The function that a call names, and its arguments as the model wrote them."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: Annotated[str | None, about("JSON, as a text; default: no arguments")] = None


class Call(Struct, frozen=True):
    """A tool call in a message of the assistant."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None


class Message(Struct, frozen=True, kw_only=True, tag_field="role"):
    """The fields that messages of every role have. Unknown fields are ignored, because clients send
    answers back with all their fields.
    """

    name: str | None = None


class SystemMessage(Message, frozen=True, kw_only=True, tag="system"):
    """Instructions to the model."""

    content: Content


class DeveloperMessage(SystemMessage, frozen=True, kw_only=True, tag="developer"):
    """Instructions to the model, under OpenAI's newer name."""


class UserMessage(Message, frozen=True, kw_only=True, tag="user"):
    """A message of the user."""

    content: UserContent


class AssistantMessage(Message, frozen=True, kw_only=True, tag="assistant"):
    """A message of the model, and the tools that it called."""

    content: Content = None
    reasoning_content: str | None = None
    reasoning: Annotated[str | None, about("Another name of reasoning_content")] = None
    tool_calls: Annotated[list[Call], Meta(max_length=1024)] | None = None
    refusal: str | None = None
    audio: Annotated[None, TEXT_ONLY] = None
    function_call: Annotated[None, only("tool_calls holds calls")] = None


class ToolMessage(Message, frozen=True, kw_only=True, tag="tool"):
    """The result of a tool call."""

    content: UserContent = None
    tool_call_id: str


Messages = Annotated[
    list[SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage],
    Meta(
        min_length=1,
        max_length=4096,
        description="The conversation, rendered with the model's own template",
    ),
]


class Function(Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: Annotated[
        dict[str, Any] | None, about("A JSON schema of its arguments; default: no arguments")
    ] = None
    strict: Annotated[
        bool | None,
        about("true: a schema that cannot be followed in all is refused (default: false)"),
    ] = None
    returns: Annotated[
        Any, about("Accepted and ignored: the schema of its result, as transformers writes it")
    ] = field(name="return", default=None)


class Tool(Struct, frozen=True):
    """A tool that the model may use. Tools of a type other than "function" are skipped."""

    type: str
    function: Function | None = None


Tools = Annotated[list[Tool], Meta(max_length=512)]


class FunctionName(Struct, frozen=True, forbid_unknown_fields=True):
    """The name of one of the tools."""

    name: str


class NamedTool(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """A tool by its name. As a choice: the tool that has to be called."""

    function: FunctionName


class AllowedTools(Struct, frozen=True, forbid_unknown_fields=True):
    """The tools that may be called, and whether one has to be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=512)]


class AllowedChoice(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"
):
    """A choice that allows only some of the tools."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedChoice


class Schema(Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON schema in the form of OpenAI's API."""

    schema: Annotated[dict[str, Any] | None, about("Default: any JSON object")] = None
    name: str | None = None
    description: str | None = None
    strict: Annotated[bool | None, about("Accepted: schemas are always followed")] = None


class ResponseFormat(Struct, frozen=True, forbid_unknown_fields=True):
    """The format of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None
    schema: Annotated[
        dict[str, Any] | None, about("A schema for json_object, as in llama.cpp's API")
    ] = None


class Prediction(Struct, frozen=True, forbid_unknown_fields=True):
    """A predicted output in the form of OpenAI's API."""

    type: Literal["content"]
    content: Content


class ChatRequest(Generation, frozen=True, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: Messages
    parse_special: Annotated[bool | None, PARSE_SPECIAL] = None
    continue_final_message: Annotated[bool | None, CONTINUES] = None
    add_generation_prompt: Annotated[
        bool | None, ignored("vLLM's clients, which send it with continue_final_message")
    ] = None
    max_completion_tokens: Annotated[Length | None, about("Newer name of max_tokens")] = None
    logprobs: Annotated[
        bool | None, about("Log-probability of each token under the unmodified logits")
    ] = None
    top_logprobs: Annotated[Top | None, about("Likeliest tokens to name beside it")] = None
    response_format: Annotated[
        ResponseFormat | None, about("json_schema and json_object: the answer is JSON")
    ] = None
    modalities: Annotated[Modalities | None, _PLAIN] = None
    tools: Annotated[Tools | None, TOOLS] = None
    tool_choice: Annotated[
        ToolChoice | None, about("Whether tools are called: auto, none, required, or which")
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, about("Whether an answer may hold several calls (default: true)")
    ] = None
    functions: Annotated[Empty | None, _NO_FUNCTIONS] = None
    function_call: Annotated[Literal["none", "auto"] | None, _NO_FUNCTIONS] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, VARIABLES] = None
    reasoning_effort: Annotated[
        Effort | None, about("For templates that have this variable; none: no reasoning")
    ] = None
    thinking_token_budget: Annotated[
        Budget | None, about("Most tokens of reasoning, -1 for any number; vLLM's name")
    ] = None
    reasoning_budget_tokens: Annotated[Budget | None, about("llama.cpp's name of the same")] = None
    thinking_budget_tokens: Annotated[Budget | None, about("llama.cpp's name of the same")] = None
    audio: Annotated[None, _PLAIN] = None
    prediction: Annotated[
        Prediction | None,
        about("Text that the answer may well have: drafts for this request, which change no text"),
    ] = None
    web_search_options: Annotated[None, only("nothing is searched")] = None
    moderation: Annotated[None, only("nothing is moderated")] = None


def messages_of(messages: Messages) -> list[ChatMessage]:
    """Return the messages of a body in the form that all APIs use."""
    return list(map(_told, messages))


def _told(message: Message) -> ChatMessage:
    assert isinstance(message, (SystemMessage, UserMessage, AssistantMessage, ToolMessage))
    told: ChatMessage = {
        "role": str(message.__struct_config__.tag), "content": _content(message.content),
    }  # fmt: skip
    if isinstance(message, AssistantMessage):
        told["content"] = told["content"] or message.refusal or ""
        if reasoning := message.reasoning_content or message.reasoning:
            told["reasoning_content"] = reasoning
        if message.tool_calls:
            told["tool_calls"] = [
                call_of(call.id or "", call.function.name, call.function.arguments or "")
                for call in message.tool_calls
            ]
    elif isinstance(message, ToolMessage):
        told |= {"tool_call_id": message.tool_call_id, "name": message.name or ""}
    return told


def _content(content: Content | UserContent) -> Any:
    """Return a content as text, or with pictures as a list of parts."""
    if not isinstance(content, list) or all(part.type != "image_url" for part in content):
        return text_of(content)
    return [
        picture_at(url_of(part))
        if part.type == "image_url"
        else {"type": "text", "text": part.text or part.refusal or ""}
        for part in content
    ]


def text_of(content: Content | UserContent) -> str:
    """Return the text of a content."""
    if isinstance(content, list):
        return "".join(part.text or part.refusal or "" for part in content)
    return content or ""
