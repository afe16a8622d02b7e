"""Compiler of constraints on answers: JSON schemas, regular expressions, grammars and choices.

It uses llguidance. That package is imported, and the vocabulary is read, when the first request
asks for a constraint.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.base import Tokenizer
from ..config import CONSTRAINTS, SamplingParams
from ..device import usable_cpus
from ..errors import ConfigError
from ..sampling.base import Constraint
from . import grammars, omissions, schemas
from .budget import Budget, BudgetedConstraint
from .descriptions import Limit, form_of, limit_of
from .matcher import Grammar, plainly
from .once import Once
from .stack import with_stack
from .vocabulary import Words

if TYPE_CHECKING:
    import llguidance


_MOST_BYTES = {  # bytes of the largest text that is compiled, by kind of form
    "schema": 1 << 18, "choices": 1 << 18, "grammar": 1 << 16, "regex": 1 << 12, "answer": 1 << 19
}  # fmt: skip
_MOST_GRAMMAR = 1 << 19  # bytes of the largest grammar that is made from such a text
_OPTIONAL = re.compile(r"[*?]|\{0,|\|\s*\)")  # marks of optional parts
_MOST_OPTIONAL = 8000  # memory grows with the square of their number: 8,000 in a row took 180 MB
_STACK = 128 << 20  # bytes of stack: llguidance recurses once for each of 14,000 rules in a row
_MOST_ITEMS = 8_200  # items in a parser's state; an optional field of an object makes 4. With
# 20,000, llguidance holds the GIL for 0.1 s at each token
_MOST_WORK = 20_000_000  # work of a step, in units of 0.1 µs: ranges of multiples took up to 0.9 s
_MOST_STATES = 1_000_000  # states of the automaton of a form's texts and numbers
_TRIED, _TRIED_TOKENS = 3, 64  # steps of a form that are tried, and most tokens of one step
_KEPT_SCHEMAS = 256  # schemas for which it is remembered whether they can be followed
_KEPT = 16  # compiled constraints that an engine keeps


def compiled_at_once() -> int:
    """Return how many forms may be compiled at the same time; each can take a core for seconds."""
    return max(2, usable_cpus() // 2)


class Constraints:
    """Compiles the constraints of requests, over the vocabulary of a tokenizer.

    Compiled constraints are kept for each owner separately. Otherwise a form that is ready at once
    would reveal that another owner has used it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.compiled = Once(self._compile, _KEPT)
        self.refusal = Once(self._refusal, _KEPT_SCHEMAS)

    def prepare(self) -> None:
        """Read the vocabulary now instead of at the first constraint.

        llguidance holds the GIL meanwhile, for 0.1 s with 50,000 tokens.
        """
        with contextlib.suppress(ImportError, ConfigError):  # the first constraint raises it again
            self._vocabulary  # noqa: B018

    def of(self, params: SamplingParams, owner: str = "") -> Grammar | None:
        """Return the constraint of a request, None if it has none.

        Raises ConfigError, with the reason, if the constraint cannot be compiled.
        """
        given = self.given(params)
        return self.compiled(owner, *given) if given else None

    def described(self, description: Mapping[str, Any], owner: str = "") -> Constraint | None:
        """Return the constraint that another machine has described by `Constraint.description`.

        Raises ConfigError if the description is invalid or cannot be compiled.
        """
        if not description:
            return None
        given, limit = form_of(description), limit_of(description)
        compiled = self.compiled(owner, *given)
        return self.limited(compiled, limit) if limit else compiled

    def limited(self, compiled: Grammar, limit: Limit) -> Constraint:
        """Return a compiled constraint with a limit on the tokens of reasoning."""
        control = self.control(f"{limit.begin}\n{limit.end}")
        shown = {id: text.encode() for text, id in control.items() if id is not None}
        token, end = control.get(limit.end), limit.end.encode()
        budget = Budget(
            limit.budget,
            limit.begin.encode(),
            end,
            limit.open,
            tuple(self._words(end)) if token is None else (token,),
            lambda token: shown.get(token) or self._tokenizer.piece(token),
        )
        return BudgetedConstraint(compiled, budget)

    def control(self, markers: str) -> dict[str, int | None]:
        """Return the ids of the control tokens whose texts occur in `markers`, by these texts.

        The id is None for a token that ends answers.
        """
        encode = functools.partial(self._tokenizer.encode, add_special=False)
        texts = (text for text in self._tokenizer.control_texts() if text in markers)
        tokens = {text: ids[0] for text in texts if len(ids := encode(text)) == 1}
        ends = self._tokenizer.is_eog
        return {text: None if ends(token) else token for text, token in tokens.items()}

    @staticmethod
    def given(params: SamplingParams) -> tuple[str, str] | None:
        """Return the kind and the text of a request's constraint, None if it has none."""
        if not params.is_constrained:
            return None
        kind = next(name for name in CONSTRAINTS if getattr(params, name) is not None)
        given = getattr(params, kind)
        if kind == "schema":
            return kind, schemas.text_of(given, is_open=params.additional_properties)
        return kind, json.dumps(given)

    @staticmethod
    def source(kind: str, text: str) -> str:
        """Return the grammar that llguidance compiles. Raises ValueError for an invalid one."""
        from llguidance import LLMatcher

        if kind == "answer":
            return text
        if kind == "schema":
            schema, _ = omissions.followed(json.loads(text))
            options: Any = schemas.guidance(schema)
            return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
        given = json.loads(text)
        if kind == "regex":
            return LLMatcher.grammar_from_regex(given)
        lark = grammars.of_choices(given) if kind == "choices" else grammars.of_grammar(given)
        return LLMatcher.grammar_from_lark(lark)

    def _compile(self, owner: str, kind: str, text: str) -> Grammar:
        matcher, error = self.tried(kind, text)
        if matcher is None:
            place = self.refusal(owner, text)[1] if kind == "schema" else ""
            where = f" (at {place})" if place else ""
            raise ConfigError(f"{kind} cannot be followed: {error}{where}")
        has_json = kind == "schema" or (kind == "answer" and _has_json(text))
        notes = omissions.followed(json.loads(text))[1] if kind == "schema" else ()
        text = json.loads(text) if kind in ("regex", "grammar") else text
        return Grammar(
            matcher, self._words, description={kind: text}, has_json=has_json, notes=notes
        )

    def _refusal(self, owner: str, text: str) -> tuple[str, str]:
        """Return the error of a schema that cannot be followed, and its place; else "" and ""."""
        error = self.tried("schema", text)[1]
        if not error:
            return "", ""

        def is_wrong(part: Any) -> bool:
            return bool(self.tried("schema", json.dumps(part))[1])

        return error, schemas.place_of(json.loads(text), is_wrong)

    def tried(self, kind: str, text: str) -> tuple[llguidance.LLMatcher | None, str]:
        """Return a compiled form and "", or None and the reason why it cannot be compiled.

        The form's first steps are tried, to find forms that allow nothing or exceed the limits.
        """
        if len(text) > _MOST_BYTES[kind]:
            most = _MOST_BYTES[kind]
            return None, f"it has {len(text)} bytes, and may have {most}; split the task"
        n_optional = len(_OPTIONAL.findall(text)) if kind in ("grammar", "regex", "answer") else 0
        if n_optional > _MOST_OPTIONAL:
            return None, f"{n_optional} parts may be left out, and {_MOST_OPTIONAL} may be at most"
        return with_stack(_STACK, lambda: self._tried(kind, text))

    def _tried(self, kind: str, text: str) -> tuple[llguidance.LLMatcher | None, str]:
        """Return a compiled form whose first steps work and "", or None and the reason why not."""
        from llguidance import LLMatcher, LLParserLimits

        try:
            source = self.source(kind, text)
        except UnicodeError:
            return None, "it is not valid Unicode"
        except ValueError as refused:
            return None, plainly(str(refused))
        if len(source) > _MOST_GRAMMAR:
            return None, f"its grammar has {len(source)} bytes, and may have {_MOST_GRAMMAR}"
        limits = LLParserLimits(
            verbose_errors=False,
            max_items_in_row=_MOST_ITEMS,
            step_lexer_fuel=_MOST_WORK,
            max_lexer_states=_MOST_STATES,
        )
        matcher = LLMatcher(self._vocabulary, source, log_level=0, limits=limits)
        error = _error_of(matcher.deep_copy(), self._words)
        return (None, error) if error else (matcher, "")

    @functools.cached_property
    def _words(self) -> Words:
        return Words(self._tokenizer)

    @functools.cached_property
    def _vocabulary(self) -> llguidance.LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        words = self._words
        return LLTokenizer(TokenizerWrapper(words), len(words.tokens), eos_token=words.ends)


def _has_json(answer: str) -> bool:
    """Return True if a grammar of a whole answer has JSON in it, and no other form of content."""
    form = '"json_schema"' in answer
    return form if answer.startswith("{") else "%json" in answer


def _error_of(matcher: llguidance.LLMatcher, words: Words) -> str:
    """Return the error of a form's first steps, "" if they work."""
    for _ in range(_TRIED):
        if matcher.is_error() or matcher.is_stopped():
            break
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        if matcher.is_error() or not bits.any():
            break
        allowed = bits[: len(words.tokens)].view(bool)
        forced = matcher.compute_ff_tokens() if words.begin_alike(allowed) else []
        matcher.consume_tokens(forced[:_TRIED_TOKENS] or [int(bits.argmax())])
    return plainly(matcher.get_error()) if matcher.is_error() else ""
