"""Arguments that are written one by one, between markers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...constraints.texts import BLANKS, overlap
from .. import argument_schemas
from ..templates import TAG
from ..texts import escaped, matched
from ..tools import Tool
from .arguments import Arguments, ArgumentsReader, as_object

if TYPE_CHECKING:
    from ..grammar import AnswerGrammar

_MOST_COUNTED = 50  # the most characters that a grammar counts in a text; 100 were too many


@dataclass(frozen=True, slots=True)
class Pairs(Arguments):
    """Arguments in the form `opening` KEY `middle` VALUE `closing`, one after the other.

    Their order is that of the schema. Texts are written without quotes, also where a schema lists
    the allowed values; other values are written as JSON. text_middle: the text in place of `middle`
    before a value that is a text, if it differs.
    """

    opening: str
    middle: str
    closing: str
    text_middle: str = ""

    def texts(self) -> Iterator[str]:
        """Yield the markers around keys and values."""
        yield from (self.opening, self.middle, self.closing, self.text_middle)

    def _between(self, is_text: bool) -> str:
        """Return the text between a key and its value."""
        return self.text_middle if is_text and self.text_middle else self.middle

    def begins(self, closing: str) -> tuple[str, ...]:
        """Return the marker that opens an argument, and the end of a call without arguments."""
        return self.opening, closing

    def check(self, tool: Tool) -> None:
        """Raise ConfigError, with the place, if some arguments cannot be written one by one."""
        argument_schemas.check(tool, self.closing)

    def schemas(self, tool: Tool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the schemas of those arguments that are written as JSON."""
        for key in argument_schemas.properties(tool):
            if not argument_schemas.is_text(tool, key) and not argument_schemas.choices_of(
                tool, key
            ):
                yield f"/properties/{key}", self._schema(tool, key)

    def _schema(self, tool: Tool, key: str) -> dict[str, Any]:
        return argument_schemas.of_argument(tool, key, self.guidance(tool))

    # --- grammar -------------------------------------------------------------------------------

    def rule(self, grammar: AnswerGrammar, index: int, tool: Tool, ends: Sequence[str]) -> str:
        """Return the rule for the arguments, one after the other, and for the end of the call.

        A value that is a text ends where the reader finds its end: at its `closing`, but only
        before an argument or the end of the call.
        """
        end = grammar.text(ends[0])
        opening = grammar.text(self.opening)
        can_end, more = True, ""  # what may follow an argument; `more` comes after an `opening`
        for number, key in reversed([*enumerate(argument_schemas.properties(tool))]):
            name = f"{index}_{number}"
            others = [f"{opening} {more}"] if more else []
            following = f" ({' | '.join([*others, end] if can_end else others)})"
            if self._is_looked_ahead(grammar, tool, key, ends):
                value = self._text(grammar, ends, more, can_end)
                pair = f"{grammar.text(key + self._between(is_text=True))} {value}"
            else:
                pair = self._pair(grammar, f"value_{name}", tool, key, ends) + following
            is_required = argument_schemas.is_required(tool, key)
            alternatives = pair if is_required or not more else f"{pair} | {more}"
            more = grammar.rule(f"pair_{name}", alternatives)
            can_end = can_end and not is_required
        begun = [f"{opening} {more}"] if more else []
        return f"({' | '.join([*begun, end] if can_end else begun)})"

    def _is_looked_ahead(
        self, grammar: AnswerGrammar, tool: Tool, key: str, ends: Sequence[str]
    ) -> bool:
        """Return True for a text that may hold its `closing`: one of any length, without control
        tokens in the markers that may follow it.
        """
        if argument_schemas.choices_of(tool, key) or not argument_schemas.is_text(tool, key):
            return False
        is_free = self._lengths(tool, key, False) == (0, None)
        return is_free and bool(ends[0]) and not grammar.has_control(*self.texts(), *ends)

    def _pair(
        self, grammar: AnswerGrammar, name: str, tool: Tool, key: str, ends: Sequence[str]
    ) -> str:
        """Return the grammar of an argument from its key to the marker that closes it."""
        choices = argument_schemas.choices_of(tool, key)
        if choices:
            written = (
                grammar.text(key + self._between(isinstance(value, str)) + text + self.closing)
                for text, value in choices.items()
            )
            return f"({' | '.join(written)})"
        is_text = argument_schemas.is_text(tool, key)
        begun = grammar.text(key + self._between(is_text))
        if not is_text:
            schema = json.dumps(self._schema(tool, key))
            return f"{begun} %json {schema} {grammar.text(self.closing)}"
        is_control = grammar.has_control(self.closing)
        lengths = self._lengths(tool, key, is_control)
        excluded = [] if is_control else [self._ended(self.follows(ends))]
        return f"{begun} {grammar.until(self.closing, name, excluded, lengths)}"

    def _ended(self, tags: Sequence[str]) -> str:
        """Return an expression for texts in which a value ends before one of these tags."""
        marker = _loose(self.closing.strip(BLANKS))
        return f".*{marker}[ \\t\\n]*(?:{'|'.join(map(_loose, tags))}).*"

    def _text(self, grammar: AnswerGrammar, ends: Sequence[str], more: str, can_end: bool) -> str:
        """Return the grammar of a text of any length, and of all that follows it.

        more: the rule of the arguments that may follow an `opening`, "" if there are none. can_end:
        True if the call may end. All arguments of all tools share the rules of the text itself.
        """
        tags = self.follows(ends)
        following = {tags[0]: more} if more else {}
        if can_end:
            following[tags[1]] = grammar.text(ends[0].partition(tags[1])[2])
        marker, found = _loose(self.closing.strip(BLANKS)), []
        for tag, rest in following.items():
            pattern = f"(?s:.*{marker}[ \\t\\n]*{_loose(tag)})"
            others = [self._ended([each for each in tags if each != tag])]
            found.append(f"{grammar.lazy(f'text_{tags.index(tag)}', pattern, others)} {rest}")
        return f"({' | '.join(found)})"

    def follows(self, ends: Sequence[str]) -> list[str]:
        """Return the texts of which one follows every `closing`. Elsewhere it is part of a value.

        ends: the markers that may follow arguments.
        """
        return list(dict.fromkeys(map(_first_tag, filter(None, (self.opening, *ends)))))

    def _lengths(self, tool: Tool, key: str, is_control: bool) -> tuple[int, int | None]:
        """Return the least and most characters of a text, as far as a grammar can count them.

        is_control: True if a control token ends the text. Raises ConfigError if the tool is strict
        and the lengths cannot be counted.
        """
        least, most = argument_schemas.lengths_of(tool, key)
        n = max(least, most or 0) if is_control else least
        if n <= _MOST_COUNTED:
            return least, most
        if tool.strict:
            name = "minLength" if n == least else "maxLength"
            why = f"{name} of a text without quotes may be {_MOST_COUNTED}, got {n}"
            raise argument_schemas.refused(tool, why, f"/properties/{key}", is_broken=False)
        return 0, None if is_control else most

    def write(self, arguments: Any) -> str:
        """Return the arguments one after the other."""
        written = []
        for key, value in as_object(arguments).items():
            is_text = isinstance(value, str)
            text = value if is_text else json.dumps(value, ensure_ascii=False)
            written.append(f"{self.opening}{key}{self._between(is_text)}{text}{self.closing}")
        return "".join(written)

    def reader(self, tool: Tool, ends: Sequence[str]) -> ArgumentsReader:
        """Return a reader for arguments that are written one after the other."""
        return PairReader(tool, self, ends)


class PairReader(ArgumentsReader):
    """Reads arguments that are written one by one and returns the text of a JSON object.

    Blanks around markers may be missing. A value ends at its `closing` only if another argument or
    the end of the call follows; elsewhere this text is part of the value.
    """

    def __init__(self, tool: Tool, pairs: Pairs, ends: Sequence[str]) -> None:
        self._tool = tool
        self._pairs = pairs
        self._follows = [f" {tag}" for tag in pairs.follows(ends)]
        middles = filter(None, (pairs.text_middle, pairs.middle))
        self._middle = re.compile("|".join(f"({_with_optional_blanks(each)})" for each in middles))
        self._value = ""  # the part of a value that is read so far, if it is returned as a whole
        self._held = ""
        self._new = ""  # JSON that is not returned yet
        self._n = 0
        self._choices: dict[str, Any] = {}
        self._step = self._between

    def read(self, text: str) -> tuple[str, str]:
        """Return new JSON that is certain, and the text after the arguments ("" until they end)."""
        self._held += text
        while not self.is_complete and self._step():
            pass
        new, self._new = self._new, ""
        if not self.is_complete:
            return new, ""
        rest, self._held = self._held, ""
        return new, rest

    # --- steps, as in the reader of answers ----------------------------------------------------

    def _between(self) -> bool:
        n = matched(f" {self._pairs.opening}", self._held)
        if n is None:
            return False
        if n < 0:
            self._new += "}" if self._n else "{}"
            self.is_complete = True
            return False
        self._held = self._held[n:]
        self._step = self._in_key
        return True

    def _in_key(self) -> bool:
        match = self._middle.search(self._held)
        if not match or match.end() == len(self._held):  # blanks may follow, which belong to it
            return False
        key, self._held = self._held[: match.start()], self._held[match.end() :]
        self._new += f"{', ' if self._n else '{'}{json.dumps(key, ensure_ascii=False)}: "
        self._n += 1
        self._value = ""
        self._choices = argument_schemas.choices_of(self._tool, key)
        self._step = self._in_choice if self._choices else self._in_value
        is_text = argument_schemas.is_text(self._tool, key)
        if self._pairs.text_middle:  # the model says it
            is_text = match.lastindex == 1
            self._step = self._in_value
        if is_text:
            self._new += '"'
            self._step = self._in_text
        return True

    def _in_text(self) -> bool:
        text, ended = self._take_value()
        self._new += json.dumps(text, ensure_ascii=False)[1:-1]
        if ended:
            self._new += '"'
        return ended

    def _in_choice(self) -> bool:
        text, ended = self._take_value()
        self._value += text
        if ended:
            value = self._choices.get(self._value, self._value)
            self._new += json.dumps(value, ensure_ascii=False)
        return ended

    def _in_value(self) -> bool:
        text, ended = self._take_value()
        self._value += text
        self._new += text
        return ended

    def _take_value(self) -> tuple[str, bool]:
        """Take the text of a value that is certain. The second value is True if the value ended."""
        closing, at = self._pairs.closing, 0
        marker = closing.lstrip(BLANKS)
        blanks = closing[: len(closing) - len(marker)]
        marker = marker.rstrip(BLANKS)
        while (at := self._held.find(marker, at)) >= 0:
            after = self._held[at + len(marker) :]
            found = [matched(text, after) for text in self._follows]
            follows = any(n is not None and n >= 0 for n in found) or len(found) == 1
            if follows and self._is_value(self._held[:at]):
                text, self._held = self._held[:at].removesuffix(blanks), after
                self._step = self._between
                return text, True
            if None in found and not follows:
                break
            at += len(marker)
        end = at if at >= 0 else len(self._held) - overlap(self._held, marker)
        text = self._held[:end]
        text = text.removesuffix(blanks) if at >= 0 else text[: end - _begun(blanks, text)]
        self._held = self._held[len(text) :]
        return text, False

    def _is_value(self, text: str) -> bool:
        """Return True if a value may end with this text: JSON only where it is complete."""
        if self._step != self._in_value:
            return True
        try:
            json.loads(self._value + text)
        except (ValueError, RecursionError):
            return False
        return True


def _first_tag(marker: str) -> str:
    """Return the tag with which a marker begins, or the whole marker, without blanks around it."""
    text = marker.strip(BLANKS)
    tag = TAG.match(text)
    return tag[0] if tag else text


def _loose(marker: str) -> str:
    """Return an expression, as Lark takes it, for a marker in which blanks may be missing."""
    return r"[ \t\n]*".join(map(escaped, marker.split()))


def _begun(blanks: str, text: str) -> int:
    """Return how many characters at the end of a text are a beginning of these blanks, or they."""
    return next((n for n in range(len(blanks), 0, -1) if text.endswith(blanks[:n])), 0)


def _with_optional_blanks(marker: str) -> str:
    """Return a pattern for a marker. Its inner blanks may be others, those at its end missing."""
    whole = marker.rstrip(BLANKS)
    words = r"[ \t\n]*".join(map(re.escape, re.split(r"[ \t\n]+", whole)))
    end = "".join(f"{re.escape(blank)}?" for blank in marker[len(whole) :])
    return words + end
