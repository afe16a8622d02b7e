"""The bodies of `/tokenize` and `/detokenize`, which are like vLLM's."""

from __future__ import annotations

from typing import Annotated, Any

from .chat_completions.structs import CONTINUES, PARSE_SPECIAL, TOOLS, VARIABLES, Messages, Tools
from .fields import IGNORED, Request, TokenId, about


class TokenizeRequest(Request, frozen=True, kw_only=True):
    """The fields that both kinds of body of `/tokenize` have."""

    add_special_tokens: Annotated[
        bool | None, about("Begin a text as the model wants it begun (default: true)")
    ] = None
    add_generation_prompt: Annotated[
        bool | None,
        about("End a conversation with the opening of the assistant's turn (default: true)"),
    ] = None
    continue_final_message: Annotated[bool | None, CONTINUES] = None
    content: Annotated[str | None, IGNORED] = None  # llama-server's names, sent by some clients
    add_special: Annotated[bool | None, IGNORED] = None
    parse_special: Annotated[bool | None, PARSE_SPECIAL] = None


class TokenizeText(TokenizeRequest, frozen=True, kw_only=True):
    """The body of `/tokenize` for a text."""

    prompt: Annotated[str, about("A text")]


class TokenizeConversation(TokenizeRequest, frozen=True, kw_only=True):
    """The body of `/tokenize` for a conversation."""

    messages: Messages
    tools: Annotated[Tools | None, TOOLS] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, VARIABLES] = None


class DetokenizeRequest(Request, frozen=True, kw_only=True):
    """The body of `/detokenize`."""

    tokens: Annotated[list[TokenId], about("Token ids")]
