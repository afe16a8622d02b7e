"""The APIs: a module or package each, with its structs, its parser and its writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..base import ParsedRequest, ServedModel
from . import chat_completions, completions, messages, responses


class API(NamedTuple):
    """An endpoint that answers. parse: reads a body. counts: its answer is the number of tokens of
    the conversation.
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
)
"""All APIs: a new one is added here."""
