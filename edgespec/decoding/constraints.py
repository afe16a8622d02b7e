"""Constraints on answers: JSON schemas, regular expressions, grammars and choices, by llguidance.

The package is imported, and a vocabulary read, when the first request asks for a constraint.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..backends.base import Tokenizer
from ..config import CONSTRAINTS, SamplingParams
from ..errors import ConfigError, DecodeError
from ..sampling.base import Constraint
from . import schemas
from .answers.budget import Budget, BudgetedConstraint
from .answers.format import AnswerFormat
from .answers.grammar import whole
from .answers.markers import ReasoningMarkers
from .answers.options import AnswerOptions

if TYPE_CHECKING:
    import llguidance

_MOST_BYTES = 1 << 18  # of a schema, an expression, a grammar or choices
_KEPT = 16  # compiled constraints of an engine


class Constraints:
    """Compiles what requests ask for, over the vocabulary of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiled = functools.lru_cache(_KEPT)(self._compile)
        self._lock = threading.Lock()

    def of(self, params: SamplingParams) -> Grammar | None:
        """Return the constraint of a request, None where it has none.

        Raises ConfigError for one that cannot be compiled, with what is wrong in it.
        """
        given = self._given(params)
        with self._lock:
            return self._compiled(*given) if given else None

    def described(self, description: Mapping[str, Any]) -> Constraint | None:
        """Return the constraint that another machine describes, as Constraint.description has it.

        Raises ConfigError for one that cannot be compiled, or is none.
        """
        kinds = [name for name in (*CONSTRAINTS, "answer") if name in description]
        if not kinds and description:
            raise ConfigError(f"{', '.join(description)} came without a form of answers")
        if len(kinds) > 1:
            raise ConfigError(f"{' and '.join(kinds)} were given; an answer follows one of them")
        if not kinds:
            return None
        given = _given_text(kinds[0], description[kinds[0]])
        with self._lock:
            compiled = self._compiled(kinds[0], given)
        if description.keys() == set(kinds):
            return compiled
        most, begin, end, is_open = [
            _typed(description, f"reasoning_{name}", kind)
            for name, kind in (("budget", int), ("begin", str), ("end", str), ("open", bool))
        ]
        if not begin or not end:
            raise ConfigError(
                "reasoning_begin and reasoning_end must be texts that stand around it"
            )
        markers = ReasoningMarkers(begin, end)
        return self._budgeted(compiled, most, markers, is_open, self._control(f"{begin}\n{end}"))

    def of_answer(
        self, params: SamplingParams, form: AnswerFormat, options: AnswerOptions, rendered: str
    ) -> Constraint | None:
        """Return the constraint of a whole answer to the prompt `rendered`, None for no limits.

        It reasons, calls tools and, where the request has a form, follows that behind its
        reasoning. Raises ConfigError as `of`, and for options that the model cannot follow.
        """
        form.check(options)
        given = self._given(params)
        control = self._control(form.texts)
        shown = {id: text.encode() for text, id in control.items() if id is not None}
        lark = form.grammar(options, rendered, "@form" if given else None, control)
        if lark is None:
            return Unlimited(shown) if shown else None
        source = whole(lark, self._source(*given) if given else None)
        with self._lock:
            compiled = self._compiled("answer", source).showing(shown)
        thought = form.beginning(rendered)
        if options.reasoning_budget is None or not form.reasoning or thought == "none":
            return compiled
        return self._budgeted(
            compiled, options.reasoning_budget, form.reasoning, thought == "open", control
        )

    def _budgeted(
        self,
        compiled: Grammar,
        most: int,
        markers: ReasoningMarkers,
        is_open: bool,
        control: Mapping[str, int | None],
    ) -> BudgetedConstraint:
        shown = {id: text.encode() for text, id in control.items() if id is not None}
        budget = Budget.of(
            most,
            markers,
            is_open,
            self._tokens(markers.end, control),
            lambda token: shown.get(token) or self._tokenizer.piece(token),
        )
        return BudgetedConstraint(compiled, budget)

    def _control(self, markers: str) -> dict[str, int | None]:
        """Return the ids of the control tokens that stand in the texts of markers, by their texts.

        None stands for one that ends answers.
        """
        encode = functools.partial(self._tokenizer.encode, add_special=False)
        texts = (text for text in self._tokenizer.control_texts() if text in markers)
        found = {text: ids[0] for text in texts if len(ids := encode(text)) == 1}
        ends = self._tokenizer.is_eog
        return {text: None if ends(token) else token for text, token in found.items()}

    def _tokens(self, marker: str, control: Mapping[str, int | None]) -> list[int]:
        token = control.get(marker)
        return self._words(marker.encode()) if token is None else [token]

    @staticmethod
    def _given(params: SamplingParams) -> tuple[str, str] | None:
        """Return the kind of a request's form and its text, None where it has none."""
        if not params.is_constrained:
            return None
        kind = next(name for name in CONSTRAINTS if getattr(params, name) not in (None, ()))
        given = getattr(params, kind)
        text = schemas.text_of(given) if kind == "schema" else json.dumps(given)
        if len(text) > _MOST_BYTES:
            raise ConfigError(
                f"{kind} has {len(text)} bytes, and may have {_MOST_BYTES}; split the task"
            )
        return kind, text

    @staticmethod
    def _source(kind: str, text: str) -> str:
        """Return what llguidance compiles."""
        from llguidance import LLMatcher

        if kind == "answer":
            return text
        if kind == "schema":
            try:
                return LLMatcher.grammar_from_json_schema(
                    text, overrides={"whitespace_flexible": False}
                )
            except ValueError as error:
                raise ConfigError(f"schema cannot be followed: {error}") from None
        given = json.loads(text)
        if kind == "regex":
            return LLMatcher.grammar_from_regex(given)
        lark = _lark_of_choices(given) if kind == "choices" else _lark_of_grammar(given)
        return LLMatcher.grammar_from_lark(lark)

    def _compile(self, kind: str, text: str) -> Grammar:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._vocabulary, self._source(kind, text), log_level=0)
        if matcher.is_error():
            raise ConfigError(f"{kind} cannot be followed: {_plainly(matcher.get_error())}")
        text = json.loads(text) if kind in ("regex", "grammar") else text
        return Grammar(matcher, self._words, description={kind: text})

    @functools.cached_property
    def _words(self) -> _Words:
        return _Words(self._tokenizer)

    @functools.cached_property
    def _vocabulary(self) -> llguidance.LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        words = self._words
        return LLTokenizer(TokenizerWrapper(words), len(words.tokens), eos_token=words.ends)


class _Words:
    """A vocabulary as llguidance reads it: the bytes of each token, and which end an answer.

    usual_end: of the latter, the one that came last.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        ids = range(tokenizer.vocab_size)
        self.tokens = [tokenizer.piece(token) for token in ids]
        self.ends = [token for token in ids if tokenizer.is_eog(token)]
        if not self.ends:
            raise ConfigError("the model has no token that ends an answer, as constraints need")
        self.special_token_ids = [token for token in ids if not self.tokens[token]]
        for token in self.special_token_ids:
            self.tokens[token] = tokenizer.token_text(token) or b"<%d>" % token
        self.eos_token_id = self.usual_end = self.ends[0]
        special = set(self.special_token_ids)
        self._of_bytes = {self.tokens[token]: token for token in ids if token not in special}
        self._longest = max(map(len, self._of_bytes), default=1)

    def __call__(self, text: bytes) -> list[int]:
        """Return the tokens of a text, which begins in the middle of another.

        Vocabularies that put a space before a text are read behind a line's end, and what the
        tokenizer cannot read is put together of the longest tokens.
        """
        words = text.decode("utf-8", "replace")
        for before in ("", "\n"):
            ids = self._encode(before + words)[len(self._encode(before)) :]
            if b"".join(self.tokens[token] for token in ids) == text:
                return ids
        return self._longest_tokens(text)

    def _encode(self, text: str) -> list[int]:
        try:
            return self._tokenizer.encode(text, add_special=False, parse_special=False)
        except ConfigError:
            return []

    def _longest_tokens(self, text: bytes) -> list[int]:
        found, at = [], 0
        while at < len(text):
            parts = (text[at : at + n] for n in range(self._longest, 0, -1))
            part = next((part for part in parts if part in self._of_bytes), None)
            if part is None:
                break
            found.append(self._of_bytes[part])
            at += len(part)
        return found


class Grammar:
    """A compiled constraint. shown: control tokens that are read as text. description: its kind
    with the text that it was compiled from.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        words: _Words,
        shown: Mapping[int, bytes] | None = None,
        description: Mapping[str, bool | int | str] | None = None,
    ) -> None:
        self._matcher = matcher
        self._words = words
        self.shown = shown or {}
        self.description = description or {}

    def showing(self, shown: Mapping[int, bytes]) -> Grammar:
        """Return this constraint with control tokens that are read as text."""
        return Grammar(self._matcher, self._words, shown, self.description)

    def matcher(self) -> GrammarMatcher:
        """Return a matcher at the beginning of an answer."""
        return GrammarMatcher(self._matcher.deep_copy(), self._words)


class Unlimited:
    """No constraint, but control tokens that are read as text."""

    def __init__(self, shown: Mapping[int, bytes]) -> None:
        self.shown = shown
        self.description: Mapping[str, bool | int | str] = {}

    def matcher(self) -> None:
        """Return None: everything is allowed."""


class GrammarMatcher:
    """Where an answer stands in a grammar, and where it would stand behind drafted tokens.

    The tokens ahead that it was asked about last are kept in the engine's state: rows of a draft
    come one behind the other. A token that ends answers is allowed where the text is complete, and
    the engine is not told of it.
    """

    def __init__(self, matcher: llguidance.LLMatcher, words: _Words) -> None:
        n = len(words.tokens)
        self._matcher = matcher
        self._ahead: list[int] = []
        self._words = words
        self.ends = frozenset(words.ends)
        self.has_ended = False
        self._bits = np.zeros((n + 31) // 32, np.int32)
        self._all = np.ones(n, bool)

    def mask(self, ahead: Sequence[int] = ()) -> npt.NDArray[np.bool_]:
        """Return which tokens are allowed behind the text and `ahead`, [vocab_size]."""
        if not self._go(ahead):
            return self._all
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")
        return bits[: len(self._all)].view(bool)

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        """Return whether a token is allowed behind the text and `ahead`."""
        if not self._go(ahead):
            return True
        if token in self.ends:
            return self._matcher.is_accepting()
        return self._n_valid([token]) == 1

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        """Return the tokens of the only text that is allowed next, or the end of the answer."""
        if self.has_ended or not self._go(ahead):
            return []
        if self._matcher.is_stopped():
            return [self._words.usual_end]
        return self._matcher.compute_ff_tokens()

    def accept(self, tokens: Sequence[int]) -> None:
        """Add emitted tokens to the text. Raises DecodeError for one that is not allowed."""
        ends = len(tokens) > 0 and tokens[-1] in self.ends
        text = tokens[:-1] if ends else tokens
        if not self._go(text) or (ends and not self._matcher.is_accepting()):
            raise DecodeError(
                f"the tokens {list(tokens)} do not follow the constraint of the request"
            )
        self._ahead, self.has_ended = [], ends
        if ends:
            self._words.usual_end = int(tokens[-1])

    def _go(self, ahead: Sequence[int]) -> bool:
        """Move to the state behind `ahead`; return False, without moving, if it is not allowed."""
        if self.has_ended:
            return not ahead
        n = _n_common(self._ahead, ahead)
        if n < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - n)
            del self._ahead[n:]
        rest = [int(token) for token in ahead[n:]]
        if rest:
            if self._n_valid(rest) < len(rest):
                return False
            self._matcher.consume_tokens(rest)
            self._check()
            self._ahead += rest
        return True

    def _n_valid(self, tokens: list[int]) -> int:
        """Return how many of the tokens may follow. Rows can be longer than the vocabulary, and an
        id outside it is an error that the engine never gets over.
        """
        n = len(self._all)
        known = next((i for i, token in enumerate(tokens) if not 0 <= token < n), len(tokens))
        return self._matcher.validate_tokens(tokens[:known])

    def _check(self) -> None:
        if self._matcher.is_error():
            raise DecodeError(
                f"the constraint of the request failed: {_plainly(self._matcher.get_error())}"
            )


def _n_common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def _lark_of_grammar(grammar: str) -> str:
    """Return a grammar in Lark's form; llama.cpp's is recognised and converted."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(grammar)
    except Exception as error:  # what it lacks, a root for example, is a plain Exception
        raise ConfigError(f"grammar cannot be followed: {error}") from None


def _lark_of_choices(choices: Sequence[str]) -> str:
    if "" in choices:
        raise ConfigError("a choice must not be empty")
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _given_text(kind: str, given: Any) -> str:
    """Return the text of a constraint from elsewhere as it is compiled. Raises ConfigError."""
    if not isinstance(given, str):
        raise ConfigError(f"{kind} must be text, got {given!r:.80}")
    if kind in ("regex", "grammar"):
        return json.dumps(given)
    if kind == "answer":
        return given
    try:
        value = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{kind} cannot be followed: it is no JSON: {error}") from None
    if kind == "schema":
        return schemas.text_of(value)
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise ConfigError(f"choices must be a list of texts that are not empty, got {given!r:.80}")
    if not value:
        raise ConfigError("choices are empty; give one at least")
    return given


def _typed(description: Mapping[str, Any], name: str, kind: type) -> Any:
    found = description.get(name)
    if type(found) is not kind:
        raise ConfigError(f"{name} must be of type {kind.__name__}, got {found!r:.80}")
    return found


def _plainly(error: str) -> str:
    """Return an error of llguidance on one line, without what it prints below for its makers."""
    return " ".join(re.split(r"\n<|\n *\d+ \|", error)[0].split())


def parsed(params: SamplingParams, text: str) -> Any:
    """Return the value of a complete answer: of the schema's type where it is one, else of JSON.
    Other constraints have none but their text, and so None.
    """
    return None if params.schema is None else schemas.value_of(params.schema, text)
