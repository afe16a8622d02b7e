"""The OpenAPI description, made from the table that requests are checked against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .parameters import CHAT, COMPLETIONS, DETOKENIZE, TOKENIZE, Parameter
from .settings import ServerSettings

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_MODEL = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
        "max_model_len": {"type": "integer"},
        "speculation": {"type": "string"},
    },
}
_MODELS = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}},
}
_HEALTH = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"enum": ["ok", "loading", "closing"]}},
}
_USAGE = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {
        "prompt_tokens": {"type": "integer"},
        "completion_tokens": {"type": "integer"},
        "total_tokens": {"type": "integer"},
        "prompt_tokens_details": {"type": "object"},
    },
}
_ANSWER = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {"choices": {"type": "array", "minItems": 1}, "usage": _USAGE},
}
_TOKENS = {
    "type": "object",
    "required": ["count", "max_model_len", "tokens"],
    "properties": {
        "count": {"type": "integer"},
        "max_model_len": {"type": "integer"},
        "tokens": {"type": "array", "items": {"type": "integer"}},
    },
}
_TEXT = {
    "type": "object",
    "required": ["prompt"],
    "properties": {"prompt": {"type": "string"}},
}
_WHY = {
    400: "A field is missing, unknown, out of range or not supported; `param` names it",
    401: "The API key is missing or wrong",
    403: "A host or an origin that is not let in",
    404: "No such model or path",
    405: "Not with this method",
    413: "The body is too large",
    415: "The body is not JSON",
    429: "The queue is full; `Retry-After` says when to come again",
    500: "A failure of the server; its log has more",
    503: "The server is starting or shutting down",
}


def document(settings: ServerSettings) -> dict[str, Any]:
    """The description of one server, OpenAPI 3.1."""
    from .. import __version__

    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "edgespec", "version": __version__},
        "paths": {
            "/health": {"get": _reading("Whether requests are taken", _HEALTH, 503, keyless=True)},
            "/metrics": {"get": _reading("Metrics for Prometheus", None)},
            "/openapi.json": {"get": _reading("This description", {"type": "object"})},
            "/v1/models": {"get": _reading("What is served", _MODELS)},
            "/v1/models/{model}": {"get": _model(settings)},
            "/v1/chat/completions": {
                "post": _answering("A conversation goes on", CHAT, "messages")
            },
            "/v1/completions": {"post": _answering("A text goes on", COMPLETIONS, "prompt")},
            "/tokenize": {
                "post": _asking("Token ids", TOKENIZE, ("prompt", "messages"), _json(_TOKENS))
            },
            "/detokenize": {
                "post": _asking("The text of token ids", DETOKENIZE, ("tokens",), _json(_TEXT))
            },
            "/v1/vocabulary": {"get": _vocabulary()},
        },
        "components": {"schemas": {"Error": _ERROR}},
    }
    if settings.api_keys:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
    return found


def _reading(
    summary: str, schema: Mapping[str, Any] | None, *others: int, keyless: bool = False
) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}} if schema else {"text/plain": {}}
    answers = {"200": {"description": summary, "content": content}}
    if keyless:
        others_too = {
            str(status): {"description": _WHY[status], "content": content} for status in others
        }
        return {"summary": summary, "security": [], "responses": answers | others_too}
    return {"summary": summary, "responses": answers | _errors(401, 403, 405, 500, *others)}


def _model(settings: ServerSettings) -> dict[str, Any]:
    parameter = {
        "name": "model", "in": "path", "required": True, "example": settings.model,
        "schema": {"type": "string", "minLength": 1},
    }  # fmt: skip
    return _reading("What is served under a name", _MODEL, 404) | {"parameters": [parameter]}


def _vocabulary() -> dict[str, Any]:
    found = _reading("What each token adds to a text, see docs/protocol.md", None)
    found["responses"]["200"]["content"] = {"application/octet-stream": {}}
    found["responses"]["304"] = {"description": "As `If-None-Match` has it"}
    return found


def _answering(summary: str, table: Mapping[str, Parameter], required: str) -> dict[str, Any]:
    found = _asking(summary, table, (required,), _json(_ANSWER) | {"text/event-stream": {}})
    found["responses"] |= _errors(429, 503)
    return found


def _asking(
    summary: str, table: Mapping[str, Parameter], required: tuple[str, ...], content: dict[str, Any]
) -> dict[str, Any]:
    """required: one of these fields."""
    bodies = [_body(table, name, set(required) - {name}) for name in required]
    body = bodies[0] if len(bodies) == 1 else {"oneOf": bodies}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": _json(body)},
        "responses": {"200": {"description": "The answer", "content": content}}
        | _errors(400, 401, 403, 404, 405, 413, 415, 500),
    }


def _body(table: Mapping[str, Parameter], required: str, others: set[str]) -> dict[str, Any]:
    properties = {
        name: parameter.schema if name == required else _nullable(parameter.schema)
        for name, parameter in table.items()
        if name not in others
    }
    return {
        "type": "object", "required": [required], "additionalProperties": False,
        "properties": properties,
    }  # fmt: skip


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _nullable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Null is the same as not there."""
    told = dict(schema)
    if "anyOf" in told:
        told["anyOf"] = [*told["anyOf"], {"type": "null"}]
    elif told["type"] != "null":
        told["type"] = [told["type"], "null"]
        if "enum" in told:
            told["enum"] = [*told["enum"], None]
    return told


def _errors(*statuses: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {str(s): {"description": _WHY[s], "content": content} for s in statuses}
