"""The OpenAPI description, with schemas made from the Structs that requests are checked with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct

from .apis.chat_completions.structs import ChatRequest
from .apis.completions import CompletionRequest
from .apis.llama_server import InfillRequest, NativeCompletion
from .apis.messages.structs import CountRequest, MessagesRequest
from .apis.responses.structs import ResponsesRequest
from .apis.tokens import DetokenizeRequest, TokenizeConversation, TokenizeText
from .settings import ServerSettings


class ErrorDetails(Struct):
    """The reason why a request was refused or failed."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(Struct):
    """Any response with a status other than 200."""

    error: ErrorDetails


class MessagesErrorDetails(Struct):
    """The reason why a request was refused or failed."""

    type: str
    message: str
    details: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class MessagesError(Struct):
    """Any response under `/v1/messages` with a status other than 200."""

    type: Literal["error"]
    error: MessagesErrorDetails
    request_id: str


class Model(Struct):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    speculation: str
    sampling: Annotated[
        str, msgspec.Meta(description="Of requests that do not name theirs, in words")
    ]
    fill_in_middle: Annotated[
        Literal["trained", "markers"] | None,
        msgspec.Meta(
            description="Whether the model fills in the middle of texts: it was trained for it, or "
            "its vocabulary has the markers"
        ),
    ]


class Models(Struct):
    """All models that are served."""

    object: Literal["list"]
    data: list[Model]


class NextToken(Struct):
    """The answer so far."""

    n_decoded: int


class Slot(Struct):
    """A slot, and how far the client's own request in it is."""

    id: int
    n_ctx: int
    is_processing: bool
    n_prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    n_prompt_tokens_processed: int | msgspec.UnsetType = msgspec.UNSET
    next_token: list[NextToken] | msgspec.UnsetType = msgspec.UNSET
    running_ms: float | msgspec.UnsetType = msgspec.UNSET


class Health(Struct):
    """The state of the server."""

    status: Literal["ok", "loading", "closing"]


class Usage(Struct):
    """Token counts of an answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: Annotated[
        dict[str, int],
        msgspec.Meta(
            description="Drafted tokens of a prediction: accepted_prediction_tokens and "
            "rejected_prediction_tokens; reasoning_tokens, where an answer may reason or call tools"
        ),
    ]


class Answer(Struct):
    """The fields that answers to chats and to completions have in common."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage


class ResponsesAnswer(Struct):
    """The fields of a response that say what the answer is."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class MessagesAnswer(Struct):
    """A message of the assistant."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: dict[str, Any]


class NativeAnswer(Struct):
    """The fields of an answer in llama.cpp's own form; `response_fields` chooses among them."""

    content: str | msgspec.UnsetType = msgspec.UNSET
    stop: bool | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType = msgspec.UNSET
    prompt: str | msgspec.UnsetType = msgspec.UNSET
    tokens: list[int] | msgspec.UnsetType = msgspec.UNSET
    tokens_predicted: int | msgspec.UnsetType = msgspec.UNSET
    tokens_evaluated: int | msgspec.UnsetType = msgspec.UNSET
    tokens_cached: int | msgspec.UnsetType = msgspec.UNSET
    stop_type: Literal["eos", "word", "limit"] | msgspec.UnsetType = msgspec.UNSET
    stopping_word: str | msgspec.UnsetType = msgspec.UNSET
    truncated: bool | msgspec.UnsetType = msgspec.UNSET
    has_new_line: bool | msgspec.UnsetType = msgspec.UNSET
    generation_settings: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    timings: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class TokenCount(Struct):
    """Number of tokens of a conversation."""

    input_tokens: int


class Tokens(Struct):
    """Token ids of a text or of a conversation."""

    count: int
    max_model_len: int
    tokens: list[int]


class Text(Struct):
    """The text of token ids."""

    prompt: str


_STRUCTS = (
    Error, MessagesError, Model, Models, Slot, Health, Answer, ResponsesAnswer, MessagesAnswer,
    Tokens, TokenCount, Text, ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest,
    CountRequest, TokenizeText, TokenizeConversation, DetokenizeRequest, InfillRequest,
    NativeCompletion, NativeAnswer,
)  # fmt: skip
_REF = "#/components/schemas/{name}"
_WHY = {
    400: "A field is missing, unknown, out of range or not supported; `param` names it",
    401: "The API key is missing or wrong",
    403: "A host or an origin that is not allowed",
    404: "No such model or path",
    405: "Not with this method",
    409: 'A later request with on_busy "replace" and the same key has ended this one',
    413: "The body is too large",
    415: "The body is not JSON",
    429: "The queue is full or a limit is reached; `Retry-After` says when to come again",
    500: "A failure of the server; its log has more",
    503: "The server is starting or shutting down",
}


def document(settings: ServerSettings) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of one server."""
    from .. import __version__

    _, schemas = msgspec.json.schema_components(_STRUCTS, ref_template=_REF)
    components: dict[str, Any] = {"schemas": schemas}
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "edgespec", "version": __version__},
        "paths": _paths(settings),
        "components": components,
    }
    if settings.api_keys:
        components["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
        }
        description["security"] = [{"key": []}, {"header": []}]
    return description


def _paths(settings: ServerSettings) -> dict[str, Any]:
    get = {
        "/health": _health(),
        "/metrics": _get("Metrics for Prometheus", {"text/plain": {}}),
        "/openapi.json": _get("This description", _json({"type": "object"})),
        "/slots": _get("What the slots do", _json({"type": "array", "items": _ref(Slot)})),
        "/v1/models": _get("The models that are served", _json(_ref(Models))),
        "/v1/models/{model}": _model(settings),
        "/v1/vocabulary": _vocabulary(),
    }
    post = {
        "/v1/chat/completions": _generate("Continue a conversation", ChatRequest),
        "/v1/completions": _generate("Continue texts", CompletionRequest),
        "/v1/responses": _generate(
            "Continue a conversation, as OpenAI's Responses API has it",
            ResponsesRequest,
            ResponsesAnswer,
        ),
        "/v1/messages": _as_messages(
            _generate(
                "Continue a conversation, as Anthropic's Messages API has it",
                MessagesRequest,
                MessagesAnswer,
            )
        ),
        "/v1/messages/count_tokens": _as_messages(
            _post("Number of tokens", _ref(CountRequest), _json(_ref(TokenCount)))
        ),
        "/infill": _generate(
            "Fill the hole in a text, as llama.cpp's server does", InfillRequest, NativeAnswer
        ),
        "/completion": _generate(
            "Continue a text, as llama.cpp's server does", NativeCompletion, NativeAnswer
        ),
        "/tokenize": _post(
            "Token ids",
            {"oneOf": [_ref(TokenizeText), _ref(TokenizeConversation)]},
            _json(_ref(Tokens)),
        ),
        "/detokenize": _post("The text of token ids", _ref(DetokenizeRequest), _json(_ref(Text))),
    }
    return {path: {"get": told} for path, told in get.items()} | {
        path: {"post": told} for path, told in post.items()
    }


def _get(summary: str, content: Mapping[str, Any], *errors: int) -> dict[str, Any]:
    answer = {"200": {"description": summary, "content": content}}
    return {"summary": summary, "responses": answer | _errors(401, 403, 405, 500, *errors)}


def _health() -> dict[str, Any]:
    content = _json(_ref(Health))
    answers = {
        "200": {"description": "Requests are taken", "content": content},
        "503": {"description": _WHY[503], "content": content},
    }
    return {"summary": "The state of the server", "security": [], "responses": answers}


def _model(settings: ServerSettings) -> dict[str, Any]:
    parameter = {
        "name": "model", "in": "path", "required": True, "example": settings.model,
        "schema": {"type": "string", "minLength": 1},
    }  # fmt: skip
    operation = _get("The model that is served under a name", _json(_ref(Model)), 404)
    return operation | {"parameters": [parameter]}


def _vocabulary() -> dict[str, Any]:
    summary = "What each token adds to a text; docs/concepts/protocol.md has the format"
    operation = _get(summary, {"application/octet-stream": {}})
    operation["responses"]["304"] = {"description": "The vocabulary that `If-None-Match` names"}
    return operation


def _generate(summary: str, request: type[Struct], answer: type[Struct] = Answer) -> dict[str, Any]:
    operation = _post(summary, _ref(request), _json(_ref(answer)) | {"text/event-stream": {}})
    operation["responses"] |= _errors(409, 429, 503)
    return operation


def _as_messages(described: dict[str, Any]) -> dict[str, Any]:
    """Return the description of an endpoint, with errors in the form of Anthropic's API."""
    for status, answer in described["responses"].items():
        if status != "200":
            answer["content"] = _json(_ref(MessagesError))
    return described


def _post(summary: str, body: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    answer = {"200": {"description": "The answer", "content": content}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": _json(body)},
        "responses": answer | _errors(400, 401, 403, 404, 405, 413, 415, 500),
    }


def _errors(*statuses: int) -> dict[str, Any]:
    content = _json(_ref(Error))
    return {str(status): {"description": _WHY[status], "content": content} for status in statuses}


def _ref(struct: type[Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=struct.__name__)}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
