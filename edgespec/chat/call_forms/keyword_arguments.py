"""Arguments that are written as keywords of a call in Python: key=value, key=value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...constraints.texts import BLANKS
from .. import argument_schemas
from ..tools import Tool
from .arguments import Arguments, ArgumentsReader, as_object

if TYPE_CHECKING:
    from ..grammar import AnswerGrammar

_BETWEEN, _MIDDLE = ", ", "="
_WORDS = {"True": "true", "False": "false", "None": "null"}
_LITERALS = {"boolean": ("True", "False"), "null": ("None",)}
_ENDS_TEXT = ",)]}:"  # what follows a text in quotes
_QUOTED = r"/'(?:[^'\\\n]|\\[^\n])*'/"  # a text in single quotes, as Lark takes it
_KEY = re.compile(r"[ \t\n]*([^\W\d]\w*)[ \t\n]*=")
_PARTS = re.compile(r"[^\W\d]\w*")
_ESCAPES = re.compile(r"\\(u[0-9a-fA-F]{4}|.)|[\"\x00-\x1f]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Keywords(Arguments):
    """Each argument is KEY=VALUE, with a comma and a blank between two; values are Python's.

    They come in the order of the schema, and a bracket follows them: `closing` of the call. Objects
    are written as JSON, which is how the templates of such models write them.
    """

    def texts(self) -> Iterator[str]:
        """Yield nothing: there are no markers."""
        yield from ()

    def begins(self, closing: str) -> tuple[str, ...]:
        """Return the empty text: any key may follow, or the end of the call."""
        return ("",)

    def check(self, tool: Tool) -> None:
        """Raise ConfigError, with the place, if some arguments cannot be written one by one."""
        argument_schemas.check_shape(tool)

    # --- grammar -------------------------------------------------------------------------------

    def rule(self, grammar: AnswerGrammar, index: int, tool: Tool, ends: Sequence[str]) -> str:
        """Return the rule for the arguments, one after the other, and for the end of the call.

        It is made from the last argument to the first. first: the rule where no argument is written
        yet; more: the rule after an argument.
        """
        between, end = grammar.text(_BETWEEN), grammar.text(ends[0])
        first, more = end, end
        for number, key in reversed([*enumerate(argument_schemas.properties(tool))]):
            name = f"{index}_{number}"
            value = self._value(grammar, tool, key)
            pair = grammar.rule(f"pair_{name}", f"{grammar.text(key + _MIDDLE)} ({value})")
            is_required = argument_schemas.is_required(tool, key)
            others = ("", "") if is_required else (f" | {first}", f" | {more}")
            first = grammar.rule(f"first_{name}", f"{pair} {more}{others[0]}")
            more = grammar.rule(f"more_{name}", f"{between} {pair} {more}{others[1]}")
        return first

    def _value(self, grammar: AnswerGrammar, tool: Tool, key: str) -> str:
        """Return the grammar of the value of an argument."""
        given = argument_schemas.of_argument(tool, key, self.guidance(tool))
        kept = {name: value for name, value in given.items() if name in ("x-guidance", *_DEFINED)}
        rules = [
            rule
            for schema in argument_schemas.alternatives(tool, key)
            for rule in self._alternative(grammar, schema, kept)
        ]
        return " | ".join(dict.fromkeys(rules))

    def _alternative(
        self, grammar: AnswerGrammar, schema: Mapping[str, Any], kept: Mapping[str, Any]
    ) -> Iterator[str]:
        """Yield the grammars of the values that an alternative of a schema allows.

        kept: what every schema for llguidance has.
        """
        if "enum" in schema:
            yield from (grammar.text(_literal(value)) for value in schema["enum"])
            return
        kinds = schema.get("type", [*_LITERALS, *_OTHERS])
        yield from (grammar.text(word) for kind in kinds for word in _LITERALS.get(kind, ()))
        if "string" in kinds and not _LIMITS & schema.keys():
            yield _QUOTED
        if "array" in kinds and (words := _words_of(schema)):
            yield self._list(grammar, words, schema)
            kinds = [each for each in kinds if each != "array"]
        others = [kind for kind in kinds if kind not in _LITERALS]
        if others:
            yield f"%json {json.dumps({**schema, 'type': others, **kept})}"

    def _list(self, grammar: AnswerGrammar, words: Sequence[str], schema: Mapping[str, Any]) -> str:
        """Return the grammar of a list of these words."""
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        word = f"({' | '.join(map(grammar.text, words))})"
        count = f"{{{max(least - 1, 0)},{'' if most is None else max(most - 1, 0)}}}"
        several = f"{word} ({grammar.text(_BETWEEN)} {word}){count}"
        several = "" if most == 0 else several if least else f"({several})?"
        return f'"[" {several} "]"'

    # --- texts ---------------------------------------------------------------------------------

    def write(self, arguments: Any) -> str:
        """Return the arguments one after the other."""
        given = as_object(arguments).items()
        return _BETWEEN.join(f"{key}{_MIDDLE}{_literal(value)}" for key, value in given)

    def reader(self, tool: Tool, ends: Sequence[str]) -> ArgumentsReader:
        """Return a reader for arguments that are written one after the other."""
        return KeywordReader(ends[0])


_OTHERS = ("string", "number", "integer", "array", "object")
_DEFINED = ("$defs", "definitions")
_NOTES = ("title", "description", "default", "examples")
_LIMITS = frozenset(("minLength", "maxLength", "pattern", "format"))


def _words_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words that a list may contain, () if it may contain anything else."""
    items = schema.get("items")
    counts = [schema[name] for name in ("minItems", "maxItems") if name in schema]
    is_known = not schema.keys() - {"type", "items", "minItems", "maxItems", *_NOTES}
    if not is_known or not all(type(each) is int and each >= 0 for each in counts):
        return ()
    if not isinstance(items, Mapping) or items.keys() - {"type", *_NOTES}:
        return ()
    kind = items.get("type")
    return _LITERALS.get(kind, ()) if isinstance(kind, str) else ()


def _literal(value: Any) -> str:
    """Return a value as Python writes it, with texts and objects as in JSON."""
    if isinstance(value, list):
        return f"[{_BETWEEN.join(map(_literal, value))}]"
    text = json.dumps(value, ensure_ascii=False)
    return next((word for word, json_word in _WORDS.items() if json_word == text), text)


class KeywordReader(ArgumentsReader):
    """Reads keywords and returns the text of a JSON object.

    Each value is returned as a whole, as JSON. Texts may be in single or double quotes, and words
    may be Python's or JSON's. A quote ends a text only before what can follow a text. end: the text
    after the arguments.
    """

    def __init__(self, end: str) -> None:
        self._end = end
        self._held = ""
        self._at = 0  # how far the held text has been read
        self._value: list[str] = []  # the parts of a value that are read, as JSON
        self._quote = ""
        self._depth = 0
        self._n = 0

    def read(self, text: str) -> tuple[str, str]:
        """Return new JSON that is certain, and the text after the arguments ("" until they end)."""
        self._held += text
        new = ""
        while not self.is_complete:
            part = self._in_value() if self._is_in_value else self._in_key()
            if part is None:
                return new, ""
            new += part
        rest, self._held = self._held, ""
        return new, rest

    _is_in_value = False

    def _in_key(self) -> str | None:
        """Read a key, or the end of the arguments. Returns None if more text is needed."""
        match = _KEY.match(self._held)
        if match:
            self._held = self._held[match.end() :]
            self._n += 1
            self._is_in_value = True
            return f"{'{' if self._n == 1 else ', '}{json.dumps(match[1], ensure_ascii=False)}: "
        begun = self._held.lstrip(BLANKS)
        if not begun or re.fullmatch(r"[^\W\d]\w*[ \t\n]*", begun):
            return None
        self.is_complete = True
        if not begun.startswith(self._end):
            return ""  # which is no object, and so no call
        return "}" if self._n else "{}"

    def _in_value(self) -> str | None:
        """Read a value and the comma after it. Returns None if more text is needed."""
        while self._at < len(self._held):
            char = self._held[self._at]
            if char in "'\"":
                if not self._in_text(char):
                    return None
            elif not self._depth and char in ",)]}":
                return self._ended(char)
            else:
                self._depth += (char in "[{") - (char in "]}")
                self._at += 1
        return None

    def _in_text(self, quote: str) -> bool:
        """Read a text in quotes; return False if more text is needed."""
        at = self._at + 1
        while (at := self._held.find(quote, at)) >= 0:
            n_slashes = at - len(self._held[:at].rstrip("\\"))
            following = self._held[at + 1 :].lstrip(BLANKS)
            if n_slashes % 2 == 0 and not following:
                return False
            if n_slashes % 2 == 0 and following[0] in _ENDS_TEXT:
                self._keep(self._at)
                self._value.append(_json_text(self._held[1:][: at - self._at - 1]))
                self._held, self._at = self._held[at - self._at + 1 :], 0
                return True
            at += 1
        return False

    def _keep(self, n: int) -> None:
        """Take the first characters of the held text, which are no text in quotes, as JSON."""
        words = _PARTS.sub(lambda word: _WORDS.get(word[0], word[0]), self._held[:n])
        self._value.append(words)
        self._held = self._held[n:]

    def _ended(self, char: str) -> str:
        self._keep(self._at)
        value = "".join(self._value).strip(BLANKS)
        self._value, self._at, self._is_in_value = [], 0, False
        if char == ",":
            self._held = self._held[1:]
            return value
        self.is_complete = True
        return f"{value}}}"


def _json_text(text: str) -> str:
    """Return the JSON of a text that is written between quotes."""

    def escaped(match: re.Match[str]) -> str:
        char = match[1]
        if char == "'":
            return char
        is_json = char and (char in '"\\/bfnrt' or len(char) > 1)
        return match[0] if is_json else json.dumps(match[0])[1:-1]

    return f'"{_ESCAPES.sub(escaped, text)}"'
