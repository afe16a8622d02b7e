"""The APIs: each is a module or package with its structs, its parser and its writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..base import ParsedRequest, ServedModel
from . import chat_completions, completions, llama_server, messages, responses


class API(NamedTuple):
    """An endpoint of an API. parse: parses the body of a request. counts: True if the endpoint only
    counts the tokens of the conversation.
    """

    path: str
    parse: Callable[[bytes, ServedModel], ParsedRequest]
    counts: bool = False


APIS = (
    API("/v1/chat/completions", chat_completions.parse),
    API("/v1/completions", completions.parse),
    API("/v1/responses", responses.parse),
    API("/v1/messages", messages.parse),
    API("/v1/messages/count_tokens", messages.parse_count, counts=True),
    API("/infill", llama_server.parse_infill),
    API("/completion", llama_server.parse_completion),
)
"""All APIs. Add a new one here."""
