"""Constraints on answers: JSON schemas, regular expressions, grammars and choices, by llguidance.

The package is imported, and a vocabulary read, when the first request asks for a constraint.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..backends.base import Tokenizer
from ..cache.token_cache import common_prefix
from ..config import CONSTRAINTS, SamplingParams
from ..device import usable_cpus
from ..errors import ConfigError, DecodeError
from ..sampling.base import Constraint
from . import grammars, schemas
from .descriptions import Limit, form_of, limit_of
from .keywords import in_our_words
from .lenient import LenientTools
from .once import Once
from .stack import with_stack
from .vocabulary import Words

if TYPE_CHECKING:
    import llguidance

    from .answers.format import AnswerFormat
    from .answers.markers import ToolMarkers
    from .answers.options import AnswerOptions
    from .answers.tools import Tool

_MOST_BYTES = {  # of what is compiled
    "schema": 1 << 18, "choices": 1 << 18, "grammar": 1 << 16, "regex": 1 << 12, "answer": 1 << 19
}  # fmt: skip
_MOST_GRAMMAR = 1 << 19  # bytes of the grammar that is made of it
_OPTIONAL = re.compile(r"[*?]|\{0,|\|\s*\)")  # what may be left out
_MOST_OPTIONAL = 8000  # in a row they take memory by their square: 8,000 took 180 MB
_STACK = 128 << 20  # bytes for llguidance, which calls itself for each of 14,000 rules in a row
_LARGE = 1 << 14  # bytes of a form
_MOST_ITEMS = 8_200  # of a parser's state, four for an optional field of an object: with 20,000
# llguidance keeps the interpreter's lock for 0.1 s at each token
_MOST_WORK = 20_000_000  # of one step, in units of 0.1 µs: ranges of multiples took up to 0.9 s
_MOST_STATES = 1_000_000  # of the automaton of a form's texts and numbers
_TRIED, _TRIED_TOKENS = 3, 64  # steps of a form that are tried, and tokens of one step
_KEPT_TOOLS = 256  # schemas of tools of which is known whether they can be followed
_MOST_SAID = 300  # characters of what llguidance says is wrong: it may repeat whole expressions
_KEPT = 16  # compiled constraints of an engine


def compiled_at_once() -> int:
    """Return how many forms are to be compiled at the same time: each takes a core for seconds."""
    return max(2, usable_cpus() // 2)


class Constraints:
    """Compiles what requests ask for, over the vocabulary of a tokenizer.

    What is compiled is kept for its owner: a form that is ready at once would tell another owner
    that somebody else has used it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiled = Once(self._compile, _KEPT)
        self._refused = Once(self._refusal, _KEPT_TOOLS)
        self._lenient = LenientTools(lambda text: bool(self._matcher("schema", text)[1]))

    def prepare(self) -> None:
        """Read the vocabulary now, not for the first form: llguidance keeps the interpreter's lock
        meanwhile, for 0.1 s with 50,000 tokens.
        """
        with contextlib.suppress(ImportError, ConfigError):  # the first form says what is missing
            self._vocabulary  # noqa: B018

    def of(self, params: SamplingParams, owner: str = "") -> Grammar | None:
        """Return the constraint of a request, None where it has none.

        Raises ConfigError for one that cannot be compiled, with what is wrong in it.
        """
        given = self._given(params)
        return self._compiled(owner, *given) if given else None

    def described(self, description: Mapping[str, Any], owner: str = "") -> Constraint | None:
        """Return the constraint that another machine describes, as Constraint.description has it.

        Raises ConfigError for one that cannot be compiled, or is none.
        """
        if not description:
            return None
        given, limit = form_of(description), limit_of(description)
        compiled = self._compiled(owner, *given)
        return self._limited(compiled, limit) if limit else compiled

    def followed(
        self, form: AnswerFormat, options: AnswerOptions, owner: str = ""
    ) -> AnswerOptions:
        """Return options in which tools that are not strict have schemas that can be followed."""
        if not form.tools or all(tool.strict for tool in options.callable_tools):
            return options
        return self._lenient.of(options, form.tools, owner)

    def of_answer(
        self,
        params: SamplingParams,
        form: AnswerFormat,
        options: AnswerOptions,
        rendered: str,
        owner: str = "",
    ) -> Constraint | None:
        """Return the constraint of a whole answer to the prompt `rendered`, None for no limits.

        It reasons, calls tools and, where the request has a form, follows that behind its
        reasoning. Raises ConfigError as `of`, and for options that the model cannot follow.
        """
        from .answers.forms import told_apart, whole

        options = self.followed(form, options, owner)
        form.check(options)
        given, alone = self._given(params), self.of(params, owner)  # its errors are told as such
        control = self._control(form.texts)
        shown = {id: text.encode() for text, id in control.items() if id is not None}
        lark = form.grammar(options, rendered, "@form" if given else None, control)
        if lark is None:
            return Unlimited(shown) if shown else None
        if params.ignore_eos:
            raise ConfigError(
                "ignore_eos was given with tools or a reasoning_budget: such an answer ends where "
                "it is complete; leave ignore_eos out"
            )
        own = self._source(*given) if given else None
        if given and own and alone:
            others = form.beginnings(options, rendered)
            own = told_apart(given[0], own, others, alone.may_begin_with, self._matcher)
        if form.tools:
            schemas.check_remainders([tool.parameters for tool in options.callable_tools])
            for tool in options.callable_tools:
                self._check_tool(tool, form.tools, owner)
        compiled = self._compiled(owner, "answer", whole(lark, own)).showing(shown)
        if options.reasoning_budget is None or not form.reasoning:
            return compiled
        thought = form.beginning(rendered)
        is_open = thought == "open"
        limit = Limit(options.reasoning_budget, form.reasoning.begin, form.reasoning.end, is_open)
        return compiled if thought == "none" else self._limited(compiled, limit)

    def _limited(self, compiled: Grammar, limit: Limit) -> Constraint:
        """Return a constraint with a limit of its reasoning."""
        from .answers.budget import Budget, BudgetedConstraint

        control = self._control(f"{limit.begin}\n{limit.end}")
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

    def _control(self, markers: str) -> dict[str, int | None]:
        """Return the ids of the control tokens that stand in the texts of markers, by their texts.

        None stands for one that ends answers.
        """
        encode = functools.partial(self._tokenizer.encode, add_special=False)
        texts = (text for text in self._tokenizer.control_texts() if text in markers)
        found = {text: ids[0] for text in texts if len(ids := encode(text)) == 1}
        ends = self._tokenizer.is_eog
        return {text: None if ends(token) else token for text, token in found.items()}

    def _check_tool(self, tool: Tool, markers: ToolMarkers, owner: str) -> None:
        """Raise ConfigError for a tool whose arguments cannot be followed by themselves."""
        from .answers.schemas import embedded, refused

        for before, schema in embedded(tool, markers):
            error, inner = self._refused(owner, json.dumps(schema))
            if error:
                raise refused(tool, error, before + inner, is_broken=False)

    @staticmethod
    def _given(params: SamplingParams) -> tuple[str, str] | None:
        """Return the kind of a request's form and its text, None where it has none."""
        if not params.is_constrained:
            return None
        kind = next(name for name in CONSTRAINTS if getattr(params, name) is not None)
        given = getattr(params, kind)
        return kind, schemas.text_of(given) if kind == "schema" else json.dumps(given)

    @staticmethod
    def _source(kind: str, text: str) -> str:
        """Return what llguidance compiles. Raises ValueError for a schema that is none."""
        from llguidance import LLMatcher

        if kind == "answer":
            return text
        if kind == "schema":
            return LLMatcher.grammar_from_json_schema(
                text, overrides={"whitespace_flexible": False}
            )
        given = json.loads(text)
        if kind == "regex":
            return LLMatcher.grammar_from_regex(given)
        lark = grammars.of_choices(given) if kind == "choices" else grammars.of_grammar(given)
        return LLMatcher.grammar_from_lark(lark)

    def _compile(self, owner: str, kind: str, text: str) -> Grammar:
        matcher, error = self._matcher(kind, text)
        if matcher is None:
            place = self._refused(owner, text)[1] if kind == "schema" else ""
            where = f" (at {place})" if place else ""
            raise ConfigError(f"{kind} cannot be followed: {error}{where}")
        text = json.loads(text) if kind in ("regex", "grammar") else text
        return Grammar(matcher, self._words, description={kind: text})

    def _refusal(self, owner: str, text: str) -> tuple[str, str]:
        """Return why a schema cannot be followed and the place, both "" if it can be."""
        error = self._matcher("schema", text)[1]
        if not error:
            return "", ""

        def is_wrong(part: Any) -> bool:
            return bool(self._matcher("schema", json.dumps(part))[1])

        return error, schemas.place_of(json.loads(text), is_wrong)

    def _matcher(self, kind: str, text: str) -> tuple[llguidance.LLMatcher | None, str]:
        """Return a compiled form, or None and why there is none.

        The first steps are tried: they show what allows nothing and what grows beyond all limits.
        """
        if len(text) > _MOST_BYTES[kind]:
            most = _MOST_BYTES[kind]
            return None, f"it has {len(text)} bytes, and may have {most}; split the task"
        n_optional = len(_OPTIONAL.findall(text)) if kind in ("grammar", "regex", "answer") else 0
        if n_optional > _MOST_OPTIONAL:
            return None, f"{n_optional} parts may be left out, and {_MOST_OPTIONAL} may be at most"
        return with_stack(_STACK, lambda: self._tried(kind, text))

    def _tried(self, kind: str, text: str) -> tuple[llguidance.LLMatcher | None, str]:
        """Return a compiled form whose first steps can be made, or None and why there is none."""
        from llguidance import LLMatcher, LLParserLimits

        try:
            source = self._source(kind, text)
        except UnicodeError:
            return None, "it is not valid Unicode"
        except ValueError as refused:
            return None, _plainly(str(refused))
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


class Grammar:
    """A compiled constraint. shown: control tokens that are read as text. description: its kind
    with the text that it was compiled from.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        words: Words,
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
        size = sum(len(value) for value in self.description.values() if isinstance(value, str))
        return GrammarMatcher(self._matcher.deep_copy(), self._words, is_large=size > _LARGE)

    def may_begin_with(self, text: str) -> bool:
        """Return True if an answer may begin with a text, which a control token may end."""
        words, given = self._words, text.encode()
        ends = [token for token in words.special_token_ids if given.endswith(words.tokens[token])]
        spelled = [[*words(given.removesuffix(words.tokens[token])), token] for token in ends]
        whole = [ids for ids in (words(given), *spelled) if words.text(ids) == given]
        return any(self._matcher.deep_copy().validate_tokens(ids) == len(ids) for ids in whole)


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
    the engine is not told of it. is_large: look for forced tokens only where the mask shows that
    there may be some, for llguidance keeps the interpreter's lock meanwhile.
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, words: Words, *, is_large: bool = False
    ) -> None:
        n = len(words.tokens)
        self._is_large = is_large
        self._matcher = matcher
        self._ahead: list[int] = []
        self._words = words
        self.ends = frozenset(words.ends)
        self.has_ended = False
        self._bits = np.zeros((n + 31) // 32, np.int32)
        self._all = np.ones(n, bool)

    def mask(self, ahead: Sequence[int] = ()) -> npt.NDArray[np.bool_]:
        """Return which tokens are allowed behind the text and `ahead`, [vocab_size]."""
        return self._mask() if self._go(ahead) else self._all

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        """Return whether a token is allowed behind the text and `ahead`."""
        if not self._go(ahead):
            return True
        if token in self.ends:
            return self._may_end(token)
        if self._n_valid([token]) == 0:
            return False
        forced = self._forced()  # masks have one of several ways to write them
        return not forced or token == forced[0]

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        """Return the tokens of the only text that is allowed next, or the end of the answer."""
        if self.has_ended or not self._go(ahead):
            return []
        if self._matcher.is_stopped():
            return [self._words.usual_end]
        return self._forced()

    def accept(self, tokens: Sequence[int]) -> None:
        """Add emitted tokens to the text. Raises DecodeError for one that is not allowed."""
        ends = len(tokens) > 0 and tokens[-1] in self.ends
        text = tokens[:-1] if ends else tokens
        if not self._go(text) or (ends and not self._may_end(tokens[-1])):
            raise DecodeError(
                f"the tokens {list(tokens)} do not follow the constraint of the request"
            )
        self._ahead, self.has_ended = [], ends
        if ends:
            self._words.usual_end = int(tokens[-1])

    def _may_end(self, token: int) -> bool:
        """Return whether a token may end the answer: where the text is complete, and where the
        grammar itself asks for that token.
        """
        return self._matcher.is_accepting() or bool(self._mask()[token])

    def _mask(self) -> npt.NDArray[np.bool_]:
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")
        return bits[: len(self._all)].view(bool)

    def _forced(self) -> list[int]:
        if self._is_large and not self._words.begin_alike(self._mask()):
            return []
        return self._matcher.compute_ff_tokens()

    def _go(self, ahead: Sequence[int]) -> bool:
        """Move to the state behind `ahead`; return False, without moving, if it is not allowed."""
        if self.has_ended:
            return not ahead
        n = common_prefix(self._ahead, ahead)
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


def _error_of(matcher: llguidance.LLMatcher, words: Words) -> str:
    """Return what is wrong with a form, "" if its first steps can be made."""
    for _ in range(_TRIED):
        if matcher.is_error() or matcher.is_stopped():
            break
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        if matcher.is_error() or not bits.any():
            break
        allowed = bits[: len(words.tokens)].view(bool)
        forced = matcher.compute_ff_tokens() if words.begin_alike(allowed) else []
        matcher.consume_tokens(forced[:_TRIED_TOKENS] or [int(bits.argmax())])
    return _plainly(matcher.get_error()) if matcher.is_error() else ""


def _plainly(error: str) -> str:
    """Return an error of llguidance on one line, without what it prints below for its makers, and
    without the expression, which it repeats with a mark on the next line.
    """
    if error.startswith("NoExtension"):  # its name for a place from which nothing goes on
        return "it allows no answer at all"
    if "ff_tokens" in error:
        return "it demands a text without end, or one of more than 50,000 characters"
    if error.startswith("Unable to determine if regex is empty"):
        return "its patterns for one text are too complex together"
    error = re.sub(r"regex parse error:.*?\n *error: ", "", error, flags=re.DOTALL)
    said = " ".join(re.split(r"\n<|\n *\d+ \|", error)[0].split())
    said = in_our_words(said)
    return said if len(said) <= _MOST_SAID else f"{said[:_MOST_SAID]}…"


def parsed(params: SamplingParams, text: str) -> Any:
    """Return the value of a complete answer: of the schema's type where it is one, else of JSON.
    Other constraints have none but their text, and so None.
    """
    return None if params.schema is None else schemas.value_of(params.schema, text)
