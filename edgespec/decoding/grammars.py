"""Grammars and choices of requests, in Lark's form."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..errors import ConfigError


def of_grammar(grammar: str) -> str:
    """Return a grammar in Lark's form; llama.cpp's is recognised and converted."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(grammar)
    except Exception as error:  # what it lacks, a root for example, is a plain Exception
        raise ConfigError(str(error)) from None


def of_choices(choices: Sequence[str]) -> str:
    """Return the grammar of one of some texts. Raises ConfigError for an empty one."""
    if "" in choices:
        raise ConfigError("a choice must not be empty")
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
