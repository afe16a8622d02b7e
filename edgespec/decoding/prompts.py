"""Conversations and texts become token ids: what users wrote stays text, and sizes are bounded."""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..backends.base import Tokenizer
from ..backends.special_tokens import Borders, frame, matcher
from ..errors import ConfigError, ContextFull
from . import templates

if TYPE_CHECKING:
    from .answers.format import AnswerFormat
    from .answers.options import AnswerOptions

Prompt = str | Sequence[int]

_MARK = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class ConversationEncoder:
    """Renders conversations with the model's own template and turns them into token ids.

    Contents of messages are text: control tokens written in them (`<|im_end|>`) are encoded as the
    characters that they are, unless parse_special is True. Everything else is encoded as it always
    was, in one call. Method: a control token's text in a content becomes a mark before the template
    sees it, a pair of surrogates, which valid text cannot hold; so every control token in the
    rendering is the template's own, however contents were trimmed, joined or escaped. So does the
    outermost character of a content that could be part of one with what is beside it. The stretch
    between two of these that holds marks is encoded by itself, without reading control tokens.
    That is exact, because engines encode what lies between special tokens on its own. Tokens that
    are special without being control tokens (`<think>`, `<tool_call>`) are read everywhere, as
    engines do: answers that are sent back hold them.

    parse_special: read control tokens in contents as such.
    """

    def __init__(self, tokenizer: Tokenizer, *, parse_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._template = tokenizer.chat_template or templates.CHATML
        self._parse_special = parse_special

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        options: AnswerOptions | None = None,
    ) -> str:
        """Return a conversation as text for `encode`.

        Messages are OpenAI's; answers may have tool_calls and reasoning_content. options: tools and
        variables for the template. Raises TemplateError, and ConfigError for options that the
        model cannot follow.
        """
        form = self._form(messages, options)
        variables: Mapping[str, Any] = {}
        if form:
            messages = form.messages(messages)
        if form and options:
            form.check(options)
            variables = self.mark(form.variables(options))
        return templates.render(
            self._template,
            [self._marked(message) for message in messages],
            self._tokenizer.special(),
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )

    def _form(
        self, messages: Sequence[Mapping[str, Any]], options: AnswerOptions | None
    ) -> AnswerFormat | None:
        """Return the form of the model's answers where something depends on it."""
        fields = ("tool_calls", "reasoning_content")
        if options or any(message.get(name) for message in messages for name in fields):
            from .answers.format import AnswerFormat  # only conversations with these pay for it

            return AnswerFormat.of(self._tokenizer.chat_template, self._tokenizer.special())
        return None

    def _marked(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value if key == "role" else self.mark(value) for key, value in message.items()}

    def mark(self, value: Any) -> Any:
        """Return a content with marks instead of control tokens; lists and objects are walked."""
        if isinstance(value, list):
            return [self.mark(item) for item in value]
        if isinstance(value, Mapping):
            return {
                self._mark_control(str(key)): item if _is_kind(key, item) else self.mark(item)
                for key, item in value.items()
            }
        if not isinstance(value, str):
            return value
        text = self._mark_control(value)
        return text if self._parse_special else self._mark_borders(text)

    def _mark_control(self, text: str) -> str:
        text = text.encode("utf-8", "replace").decode()  # no surrogates but marks
        if self._parse_special or not self._tokenizer.has_control(text):
            return text
        return self._control.sub(self._mark_of, text)

    def _mark_borders(self, text: str) -> str:
        """Mark the outermost characters, blanks aside, with which a control token may be formed."""
        inner = text.strip()
        if not inner:
            return text
        begin, end = text[: -len(text.lstrip())], text[len(text.rstrip()) :]
        opened, closed = self._borders.at_begin(inner), self._borders.at_end(inner)
        if closed and len(inner) > 1:
            inner = inner[:-1] + self._mark_for(inner[-1])
        if opened or (closed and len(inner) == 1):
            inner = self._mark_for(inner[0]) + inner[1:]
        return begin + inner + end

    def encode(self, rendered: str, *, continues: bool = False) -> list[int]:
        """Return the token ids of a rendered conversation, or of its end if it `continues`."""
        return list(itertools.chain.from_iterable(self.pieces(rendered, continues=continues)))

    def pieces(self, rendered: str, *, continues: bool = False) -> Iterator[list[int]]:
        """Yield the ids of `encode` a piece at a time, so that a caller may stop between them.

        Most templates write the BOS token themselves; it is never added twice.
        """
        bos = self._tokenizer.special()["bos_token"]
        add_special = not continues and not (bos and rendered.startswith(bos))
        if not _MARK.search(rendered):
            yield from self._tokenizer.encode_pieces(rendered, add_special=add_special)
            return
        before, after = frame(self._tokenizer) if add_special else ([], [])
        yield before
        for text, parse_special in self._stretches(rendered):
            yield from self._tokenizer.encode_pieces(
                text, add_special=False, parse_special=parse_special
            )
        yield after

    def _stretches(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """Yield the parts of a rendering, each with whether control tokens are read in it."""
        begin = 0  # of what is not yielded yet
        previous = ""
        for start, end, following in self._between(rendered):
            text = rendered[start:end]
            if _MARK.search(text):
                if start > begin:
                    yield rendered[begin:start], True
                text = text.lstrip() if self._swallows(previous, previous + "\n") else text
                text = text.rstrip() if self._swallows(following, "\n" + following) else text
                yield _MARK.sub(self._text_of, text), False
                begin = end
            previous = following
        if begin < len(rendered):
            yield rendered[begin:], True

    def _between(self, rendered: str) -> Iterator[tuple[int, int, str]]:
        """Yield what lies before each control token, as a span, with the token, and the end."""
        begin = 0
        for match in self._control.finditer(rendered):
            yield begin, match.start(), match[0]
            begin = match.end()
        yield begin, len(rendered), ""

    def _swallows(self, control: str, with_blank: str) -> bool:
        """Return True if a control token takes the blank beside it away, as some are told to."""
        encode = functools.partial(self._tokenizer.encode, add_special=False)
        return bool(control) and encode(control) == encode(with_blank)

    @functools.cached_property
    def _texts(self) -> list[str]:
        """The texts that marks stand for: control tokens, and their characters."""
        control = self._tokenizer.control_texts()
        return [*control, *sorted(set("".join(control)))]

    @functools.cached_property
    def _borders(self) -> Borders:
        return Borders(self._tokenizer.control_texts())

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self._texts)}

    @functools.cached_property
    def _control(self) -> re.Pattern[str]:
        return matcher(self._tokenizer.control_texts())

    def _mark_of(self, match: re.Match[str]) -> str:
        return self._mark_for(match[0])

    def _mark_for(self, text: str) -> str:
        high, low = divmod(self._numbers[text], 1024)
        return chr(0xD800 + high) + chr(0xDC00 + low)

    def _text_of(self, mark: re.Match[str]) -> str:
        high, low = map(ord, mark[0])
        return self._texts[(high - 0xD800) * 1024 + low - 0xDC00]


def _is_kind(key: str, value: Any) -> bool:
    """Return True for a word that templates compare, such as the type of a tool."""
    return key == "type" and isinstance(value, str) and value.isidentifier()


def prompt_ids(tokenizer: Tokenizer, prompt: Prompt, limit: int) -> list[int]:
    """Return the token ids of a prompt: of a text, in which special tokens count, or given as such.

    Raises ConfigError for none, or an unknown one, ContextFull for a text that cannot fit.
    """
    if isinstance(prompt, str):
        check_size(tokenizer, prompt, limit)
        ids = tokenizer.encode(prompt)
    else:
        ids = _token_ids(prompt)
    n = tokenizer.vocab_size
    wrong = next((token for token in ids if not 0 <= token < n), None)
    if wrong is not None:
        raise ConfigError(f"token id {wrong} is not in the vocabulary (0 … {n - 1})")
    if not ids:
        raise ConfigError("the prompt is empty; give text or at least one token id")
    return ids


def _token_ids(prompt: Any) -> list[int]:
    """Return token ids as ints. Raises ConfigError for anything else."""
    if isinstance(prompt, (bytes, bytearray)):
        raise ConfigError("a prompt is text or token ids, got bytes; decode them first")
    if not isinstance(prompt, Iterable):
        raise ConfigError(f"a prompt is text or token ids, got {prompt!r:.80}")
    ids = []
    for token in prompt:
        try:
            ids.append(operator.index(token))
        except TypeError:
            raise ConfigError(f"a prompt's token ids are ints, got {token!r:.80}") from None
    return ids


def check_size(tokenizer: Tokenizer, text: str, limit: int) -> None:
    """Raise ContextFull if `text` has more than `limit` tokens by its bytes alone."""
    if len(text) <= limit:
        return
    size = len(text.encode("utf-8", "replace"))
    least = -(-size // tokenizer.longest_token)
    if least > limit:
        raise ContextFull(
            f"prompt is too long: {least} tokens > {limit} maximum (it has {size} bytes, which are "
            "at least so many tokens): shorten it or load the model with a larger n_ctx"
        )


def collect(
    pieces: Iterator[list[int]], limit: int, stopped: Callable[[], bool] = lambda: False
) -> list[int]:
    """Return the ids of `pieces`; no more of them are made beyond `limit`, or once `stopped`."""
    ids: list[int] = []
    for piece in pieces:
        ids += piece
        if len(ids) > limit or stopped():
            break
    return ids
