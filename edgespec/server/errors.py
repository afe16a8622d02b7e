"""The errors of the APIs, in OpenAI's form, or in Anthropic's for requests to its API."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException

from ..errors import ConfigError, ContextFull, EngineBusy, TemplateError
from . import logs

_HTTP = {
    404: "there is nothing under this path; /openapi.json lists what there is",
    405: "this path does not take that method; /openapi.json lists those it takes",
}

_COMPLETIONS = "POST /v1/completions continues a prompt, of at most max_tokens tokens"
_CHAT = "POST /v1/chat/completions answers messages"
_MODELS = "GET /v1/models names the model"
_NO_EMBEDDINGS = "answers are written, no embeddings"
_PATHS = {  # paths of llama.cpp's server and of Ollama, and what to use instead
    "/api/chat": _CHAT,
    "/api/generate": _COMPLETIONS,
    "/api/tags": _MODELS,
    "/apply-template": "POST /tokenize with messages returns the tokens of the rendered prompt",
    "/chat/completions": _CHAT,
    "/completions": _COMPLETIONS,
    "/embedding": _NO_EMBEDDINGS,
    "/embeddings": _NO_EMBEDDINGS,
    "/models": _MODELS,
    "/props": _MODELS,
    "/rerank": _NO_EMBEDDINGS,
    "/v1/completion": _COMPLETIONS,
    "/v1/detokenize": "POST /detokenize",
    "/v1/embeddings": _NO_EMBEDDINGS,
    "/v1/tokenize": "POST /tokenize",
}

TOO_LONG = "context_length_exceeded"
"""The code of errors about prompts that are too long. OpenAI's clients recognize such an error by
this code, Anthropic's by a message that begins with "prompt is too long: N tokens > M maximum".
"""
_MESSAGES_PATH = "/v1/messages"  # everything under it speaks Anthropic's API
_MESSAGES_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """An error response (a status other than 200). param: the request's field that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return OpenAI's error object."""
        return {
            "error": {
                "message": self.message,
                "type": _type(self.status),
                "param": self.param,
                "code": self.code,
            }
        }

    def messages_body(self, request_id: str) -> dict[str, Any]:
        """Return Anthropic's error object. Its message begins with the field that is wrong, unless
        clients recognize the error by the beginning of the message.

        If the code in `details` is thread_unsupported_request, Anthropic's client sends the whole
        conversation.
        """
        kind = "api_error" if self.status >= 500 else "invalid_request_error"
        message = self.message
        if self.param and self.param not in message and self.code != TOO_LONG:
            message = f"{self.param}: {message}"
        told: dict[str, Any] = {
            "type": _MESSAGES_TYPES.get(self.status, kind),
            "message": message,
        }
        if self.code:
            told["details"] = {"error_code": self.code}
        return {"type": "error", "error": told, "request_id": request_id}

    def body_at(self, path: str, request_id: str) -> dict[str, Any]:
        """Return the error object in the form of the API that a path belongs to."""
        if path == _MESSAGES_PATH or path.startswith(f"{_MESSAGES_PATH}/"):
            return self.messages_body(request_id)
        return self.body()


def _type(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def bad_value(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """Return the error (400) for a field of the request with a value that is not allowed."""
    return ApiError(400, message, param=param, code=code)


def shutting_down() -> ApiError:
    """Return the error (503) for requests that come while the server ends."""
    return ApiError(
        503,
        "the server is shutting down; try again when it is back",
        code="shutting_down",
        headers={"Retry-After": "5"},
    )


def replaced() -> ApiError:
    """Return the error (409) for a request whose slot a later one of its owner has taken over."""
    return ApiError(
        409,
        'a later request with on_busy "replace" and the same key has ended this one',
        code="replaced",
    )


def instead_of(path: str) -> str:
    """Return advice on what to use instead of another server's endpoint, "" if it is unknown."""
    return _PATHS.get(path.rstrip("/"), "")


def as_api_error(error: Exception, request_id: str) -> ApiError:
    """Return any exception as the error that the client is shown.

    An unexpected exception is logged under `request_id`; the client gets a 500 without its message.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        message = _HTTP.get(error.status_code, error.detail)
        return ApiError(error.status_code, message, headers=error.headers)
    if isinstance(error, ContextFull):
        return bad_value(None, str(error), TOO_LONG)
    if isinstance(error, TemplateError):
        return bad_value("messages", str(error))
    if isinstance(error, ConfigError):
        return bad_value(None, str(error))
    if isinstance(error, EngineBusy):
        return ApiError(503, str(error), code="busy", headers={"Retry-After": "1"})
    logs.log_failure(error, request_id)
    return ApiError(
        500,
        f"the server failed at this request; its log says where, under the id {request_id}",
        code="internal_error",
    )
