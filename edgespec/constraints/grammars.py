"""Conversion of a request's grammar or choices to a grammar in Lark's form."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ..errors import ConfigError

MOST_TEXT = 4096
"""Most characters of a fixed text in an answer, because each token takes work for all the rest."""

MOST_AT_ONCE = 10
"""Most expressions that one text has to match at once; 20 took a minute to combine."""

_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/')  # texts and regular expressions


def of_grammar(grammar: str) -> str:
    """Return a grammar in Lark's form; a grammar in llama.cpp's form is recognised and converted.

    Raises ConfigError if the grammar is invalid or too large.
    """
    from llguidance.gbnf_to_lark import any_to_lark

    if (longest := max(map(len, _QUOTED.findall(grammar)), default=0)) > MOST_TEXT:
        raise ConfigError(f"a text has {longest} characters, and may have {MOST_TEXT}")
    if (n := _QUOTED.sub("", grammar).count("&")) > MOST_AT_ONCE:
        raise ConfigError(f"it has {n} times &, and may have {MOST_AT_ONCE}")
    try:
        return any_to_lark(grammar)
    except RecursionError:
        raise ConfigError("it is nested too deeply") from None
    except Exception as error:  # if a part such as the root is missing, it is a plain Exception
        raise ConfigError(str(error)) from None


def of_choices(choices: Sequence[str]) -> str:
    """Return a grammar that allows one of some texts. Raises ConfigError for an invalid text."""
    if "" in choices:
        raise ConfigError("a choice must not be empty")
    if (longest := max(map(len, choices))) > MOST_TEXT:
        raise ConfigError(f"a choice has {longest} characters, and may have {MOST_TEXT}")
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
