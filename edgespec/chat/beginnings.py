"""Finds the tokens that all conversations share which begin with the same messages and tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..cache.token_cache import common_prefix
from ..errors import ConfigError
from .encoder import ConversationEncoder
from .functions import Functions
from .options import AnswerOptions

if TYPE_CHECKING:
    from ..engine import Engine

_NEXT = ("0", "Why?")  # two messages that have nothing in common


def beginning(
    engine: Engine, messages: Sequence[Mapping[str, Any]], tools: Iterable[Any] = ()
) -> list[int]:
    """Return the tokens of all prompts that begin with these messages and offer these tools,
    whatever the user's next message is.

    messages: in OpenAI's form; it may be empty. tools: as for `Engine.chat`. Raises ConfigError and
    TemplateError.
    """
    options = AnswerOptions(tools=Functions(tuple(tools)).tools)
    if options.tools:
        engine.answer_format.check(options)
    encoder = ConversationEncoder(engine.tokenizer)
    one, other = (
        encoder.encode(
            encoder.render([*messages, {"role": "user", "content": text}], options=options)
        )
        for text in _NEXT
    )
    tokens = one[: common_prefix(one, other)]
    if not tokens:
        raise ConfigError("these messages leave nothing to read in front of the next message")
    return tokens
