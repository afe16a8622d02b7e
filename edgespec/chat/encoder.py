"""Turns conversations into token ids, so that text written by users is not read as markers."""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..backends.base import Tokenizer
from ..backends.special_tokens import Borders, frame, matcher
from ..errors import ConfigError, TemplateError
from . import history, templates
from .accepted import Accepted
from .pictures import Album, marks_of, names_pictures
from .template_budget import JsonText

if TYPE_CHECKING:
    from .call_forms.base import CallForm
    from .format import AnswerFormat
    from .options import AnswerOptions

_MARK = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_CUT = "\ufdd0"  # where a message that is continued is cut: a character that no text may contain


class ConversationEncoder:
    """Renders conversations with the model's own template and turns them into token ids.

    Contents of messages, tools and calls are text: control tokens (`<|im_end|>`) and markers
    (`<tool_call>`, `</think>`) written in them are encoded as ordinary characters, unless
    parse_special is True. A conversation without any of them is encoded as usual, in one call.

    Markers are tokens that engines read even in plain text (user-defined ones in a GGUF, added ones
    that are not special in a tokenizer.json). Such a token is a marker if it looks like a tag, and
    the template contains it or the tag that it closes. Other such tokens, for example runs of
    blanks or HTML tags, mean nothing to the template and stay tokens.

    An assistant's message has its calls in tool_calls and its reasoning in reasoning_content; the
    template writes the markers around them. In the message's content, markers are text as
    everywhere, except for two around reasoning at the beginning of the content: clients send back
    answers with `<think>…</think>`, which many templates remove.

    Method: before the template sees a content, the text of each such token in it is replaced by a
    mark, a pair of surrogates, which valid text cannot contain. So every token in the rendering is
    the template's own, however contents were trimmed, joined or escaped. The first or last
    character of a content is also replaced by a mark if it could form a token with the text next to
    it. If the text between two control tokens (a stretch) contains marks, it is encoded by itself,
    without reading control tokens. That is exact, because engines encode the text between special
    tokens separately. Where a marker in the stretch contains marked characters, the stretch is cut
    inside the marker.

    parse_special: True reads control tokens and markers in contents as tokens.
    """

    _album: Album | None = None

    def __init__(self, tokenizer: Tokenizer, *, parse_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._template = tokenizer.chat_template or templates.CHATML
        self._tool_template = tokenizer.tool_template or self._template
        self._parse_special = parse_special

    def with_album(self, album: Album) -> ConversationEncoder:
        """Return an encoder like this one that also takes pictures, and puts them into `album`."""
        encoder = copy.copy(self)
        encoder._album = album
        return encoder

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        options: AnswerOptions | None = None,
        explain: bool = True,
    ) -> str:
        """Return a conversation as text for `encode`.

        messages: in OpenAI's form, as clients send them; `history.regular` brings them into the
        form that the template accepts. Answers may have tool_calls and reasoning_content. options:
        tools and variables for the template. Raises ConfigError for options that the model cannot
        follow, and TemplateError. explain: True to name the message in it that the template
        refuses, which renders the conversation some ten times more.
        """
        form = self._form(messages, options)
        variables: Mapping[str, Any] = {}
        if form and options:
            form.check(options)
            told = form.variables(options)
            variables = {name: self.mark(value) for name, value in told.items()}
        given = options.tools if options else ()
        tools = [self.mark(tool.to_dict()) for tool in given]
        rendered = functools.partial(self._rendered, form, variables, tools)
        try:
            return rendered(messages, add_generation_prompt)
        except templates.Refused as error:
            number = _refused(messages, rendered) if explain else None
            if number is None:
                raise
            raise error.about(number, messages[number]["role"]) from error.__cause__

    def _rendered(
        self,
        form: AnswerFormat | None,
        variables: Mapping[str, Any],
        tools: Sequence[Any],
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
    ) -> str:
        """Return a conversation as text. variables, tools: with marks."""
        template = self._tool_template if tools else self._template
        special, calls = self._tokenizer.special(), form.tools if form else None
        accepted = Accepted.by(template, special, has_tools=bool(tools))
        key = form.reasoning.key if form and form.reasoning else ""
        regular = history.regular(map(self._flat, messages), accepted, key)
        if calls:
            regular = [calls.message(message) for message in regular]
        marked = [self._marked(message, calls) for message in regular]
        if calls and tools:
            marked = calls.instructed(marked, tools)

        text = templates.render(
            template,
            marked,
            special,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )
        if self._album and not _has_all_marks(text, marked):
            raise TemplateError("the model's chat template leaves pictures out")
        return text

    def _flat(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a message with marks in place of pictures. Raises ConfigError if pictures cannot
        be shown here.
        """
        if self._album:
            return self._album.flat(message)
        if names_pictures(message.get("content")):
            raise ConfigError("pictures cannot be shown here; send text")
        return message

    def render_begun(
        self, messages: Sequence[Mapping[str, Any]], *, options: AnswerOptions | None = None
    ) -> str | None:
        """Return a conversation as `render` does, up to the end of the last message's content,
        which the answer continues. Return None if the template cannot be cut there.

        An empty last message is left out, so that its answer is a new one. Raises the errors of
        `render`.
        """
        *before, last = messages
        content = history.text_of(last.get("content"))
        if not content and not last.get("reasoning_content"):
            return self.render(before, options=options)
        begun = {**last, "content": content + _CUT}
        text = self.render([*before, begun], add_generation_prompt=False, options=options)
        kept, _, rest = text.partition(_CUT)
        return None if kept == text or _CUT in rest else kept

    def _form(
        self, messages: Sequence[Mapping[str, Any]], options: AnswerOptions | None
    ) -> AnswerFormat | None:
        """Return the form of the model's answers, or None if nothing depends on it."""
        fields = ("tool_calls", "reasoning_content")
        if options or any(message.get(name) for message in messages for name in fields):
            return self._learned
        return None

    @functools.cached_property
    def _learned(self) -> AnswerFormat:
        from .format import AnswerFormat

        return AnswerFormat.of_tokenizer(self._tokenizer)

    def _marked(self, message: Mapping[str, Any], tools: CallForm | None) -> dict[str, Any]:
        marked = {
            key: value if key == "role" else self.mark(value) for key, value in message.items()
        }
        content = message.get("content")
        if message.get("role") == "assistant" and isinstance(content, str):
            marked["content"] = self.mark_answer(content)
        calls = message.get("tool_calls")
        if calls and tools and not tools.is_in_template:
            del marked["tool_calls"]
            written = tools.write([self._marked_call(call) for call in calls])
            said = marked.get("content") or ""
            part = {"type": "text", "text": written}
            marked["content"] = said + written if isinstance(said, str) else [*said, part]
        return marked

    def _marked_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call whose name and arguments have marks, for a form to write."""
        function = {key: self.mark(call["function"][key]) for key in ("name", "arguments")}
        return {"id": call["id"], "function": function}

    def mark_answer(self, text: str) -> str:
        """Return an assistant's content with marks, except for the markers around its reasoning."""
        has_marker = not self._parse_special and self._markers.search(text)
        match = self._reasoning.match(text) if has_marker else None
        if not match:
            return self._mark_text(text)
        begin, thought, end, said = match.groups("")
        return begin + self._mark_text(thought) + end + self._mark_text(said)

    def mark(self, value: Any) -> Any:
        """Return a content with marks in place of tokens, also inside lists and objects."""
        if isinstance(value, list):
            return [self.mark(item) for item in value]
        if isinstance(value, Mapping):
            return {
                self._mark_key(str(key)): item if _is_kind(key, item) else self.mark(item)
                for key, item in value.items()
            }
        if isinstance(value, str):
            marked = self._mark_text(value)
            return JsonText(marked) if isinstance(value, JsonText) else marked
        return value

    def _mark_key(self, key: str) -> str:
        known = map(templates.keys_of, {self._template, self._tool_template})
        is_known = any(key in keys for keys in known)
        return self._mark_tokens(key) if is_known else self._mark_text(key)

    def _mark_text(self, text: str) -> str:
        if self._album:
            parts = self._album.split(text)
            parts[::2] = map(self._mark_plain, parts[::2])
            return "".join(parts)
        return self._mark_plain(text)

    def _mark_plain(self, text: str) -> str:
        text = self._mark_tokens(text)
        return text if self._parse_special else self._mark_borders(text)

    def _mark_tokens(self, text: str) -> str:
        text = text.encode("utf-8", "replace").decode()  # only marks may be surrogates
        if self._parse_special:
            return text
        if not self._tokenizer.has_control(text) and not self._markers.search(text):
            return text
        return self._tokens.sub(self._mark_of, text)

    def _mark_borders(self, text: str) -> str:
        """Mark the first and last non-blank character if a token could form across them."""
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
        """Return the token ids of a rendered conversation.

        continues: True if `rendered` is only the end of one.
        """
        return list(itertools.chain.from_iterable(self.pieces(rendered, continues=continues)))

    def pieces(self, rendered: str, *, continues: bool = False) -> Iterator[list[int]]:
        """Yield the ids of `encode` in pieces, so that a caller can stop between them.

        Most templates write the BOS token themselves; it is never added twice.
        """
        bos = self._tokenizer.special()["bos_token"]
        add_special = not continues and not (bos and rendered.startswith(bos))
        if self._album and marks_of(rendered):
            yield from self._with_pictures(self._album, rendered, add_special)
            return
        yield from self._text_pieces(rendered, add_special)

    def _with_pictures(self, album: Album, rendered: str, add_special: bool) -> Iterator[list[int]]:
        """Yield the ids of texts and the tokens of the pictures between them."""
        before, after = frame(self._tokenizer) if add_special else ([], [])
        yield before
        for i, part in enumerate(album.split(rendered)):
            if i % 2:
                yield album.tokens(part)
            elif part:
                yield from self._text_pieces(part, False)
        yield after

    def _text_pieces(self, rendered: str, add_special: bool) -> Iterator[list[int]]:
        """Yield the ids of a text without pictures."""
        if not _MARK.search(rendered):
            yield from self._tokenizer.encode_pieces(rendered, add_special=add_special)
            return
        before, after = frame(self._tokenizer) if add_special else ([], [])
        yield before
        for text, is_marked in self._stretches(rendered):
            if is_marked:
                yield from self._as_text(text)
            else:
                yield from self._tokenizer.encode_pieces(text, add_special=False)
        yield after

    def _stretches(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """Yield the parts of a rendering, each with True if it has marks and no control tokens."""
        begin = 0  # the beginning of the text that is not yielded yet
        previous = ""
        for start, end, following in self._between(rendered):
            text = rendered[start:end]
            if _MARK.search(text):
                if start > begin:
                    yield rendered[begin:start], False
                text = text.lstrip() if self._swallows(previous, previous + "\n") else text
                text = text.rstrip() if self._swallows(following, "\n" + following) else text
                yield text, True
                begin = end
            previous = following
        if begin < len(rendered):
            yield rendered[begin:], False

    def _as_text(self, marked: str) -> Iterator[list[int]]:
        """Yield the ids of a stretch with marks.

        No marker token among them contains a marked character.
        """
        text, spans = self._unmarked(marked)
        parts = self._cut(text, spans)
        first = next(parts)
        yield from self._tokenizer.encode_pieces(first, add_special=False, parse_special=False)
        for part in parts:
            yield from self._inner(part)

    def _unmarked(self, marked: str) -> tuple[str, list[tuple[int, int]]]:
        """Return a stretch with each mark replaced by its text, and the spans of these texts."""
        parts: list[str] = []
        spans: list[tuple[int, int]] = []
        size = begin = 0
        for mark in _MARK.finditer(marked):
            parts += marked[begin : mark.start()], self._text_of(mark)
            size += mark.start() - begin + len(parts[-1])
            spans.append((size - len(parts[-1]), size))
            begin = mark.end()
        return "".join([*parts, marked[begin:]]), spans

    def _cut(self, text: str, spans: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Yield a text in parts. Every marker that overlaps a span is cut in two."""
        begin = at = n = 0
        while match := self._markers.search(text, at):
            at = match.start() + 1  # another marker may begin inside this one
            while n < len(spans) and spans[n][1] < at:
                n += 1
            if n < len(spans) and spans[n][0] < match.end():
                yield text[begin:at]
                begin = at
        yield text[begin:]

    def _inner(self, text: str) -> Iterator[list[int]]:
        """Yield the ids of a text that follows another, without the blank that some engines add."""
        encode = functools.partial(self._tokenizer.encode, add_special=False, parse_special=False)
        for before in "\n0" if self._adds_blank else "":
            begun, whole = encode(before), encode(before + text)
            if whole[: len(begun)] == begun:
                yield whole[len(begun) :]
                return
        yield from self._tokenizer.encode_pieces(text, add_special=False, parse_special=False)

    @functools.cached_property
    def _adds_blank(self) -> bool:
        """True if the engine puts a blank before each text, as SentencePiece does."""
        ids = self._tokenizer.encode("<", add_special=False, parse_special=False)
        return b"".join(map(self._tokenizer.piece, ids)) == b" <"

    def _between(self, rendered: str) -> Iterator[tuple[int, int, str]]:
        """Yield the span before each control token, with the token, and the last span with ""."""
        begin = 0
        for match in self._control.finditer(rendered):
            yield begin, match.start(), match[0]
            begin = match.end()
        yield begin, len(rendered), ""

    def _swallows(self, control: str, with_blank: str) -> bool:
        """Return True if a control token removes a blank next to it, as some tokens are set to."""
        encode = functools.partial(self._tokenizer.encode, add_special=False)
        return bool(control) and encode(control) == encode(with_blank)

    @functools.cached_property
    def _marker_texts(self) -> list[str]:
        """The texts of markers: tokens that engines always read and that the template uses."""
        source = (self._template + self._tool_template).replace("/", "")
        texts = self._tokenizer.user_defined_texts()
        return [
            text
            for text in texts
            if templates.TAG.fullmatch(text) and text.replace("/", "") in source
        ]

    @functools.cached_property
    def _token_texts(self) -> list[str]:
        return [*self._tokenizer.control_texts(), *self._marker_texts]

    @functools.cached_property
    def _texts(self) -> list[str]:
        """The texts that marks can replace: tokens, and the characters in tokens."""
        return [*self._token_texts, *sorted(set("".join(self._token_texts)))]

    @functools.cached_property
    def _borders(self) -> Borders:
        return Borders(self._token_texts)

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self._texts)}

    @functools.cached_property
    def _tokens(self) -> re.Pattern[str]:
        return matcher(self._token_texts)

    @functools.cached_property
    def _control(self) -> re.Pattern[str]:
        return matcher(self._tokenizer.control_texts())

    @functools.cached_property
    def _markers(self) -> re.Pattern[str]:
        return matcher(self._marker_texts)

    @functools.cached_property
    def _reasoning(self) -> re.Pattern[str]:
        """A pattern for reasoning at the beginning of an answer, with its parts as groups."""
        known = self._learned.reasoning
        if not known or not {known.begin, known.end}.isdisjoint(self._tokenizer.control_texts()):
            return matcher(())
        begin = rf"(\s*{re.escape(known.begin)}){'?' if known.is_opened else ''}"
        return re.compile(rf"{begin}(.*?)({re.escape(known.end)})(.*)", re.DOTALL)

    def _mark_of(self, match: re.Match[str]) -> str:
        return self._mark_for(match[0])

    def _mark_for(self, text: str) -> str:
        high, low = divmod(self._numbers[text], 1024)
        return chr(0xD800 + high) + chr(0xDC00 + low)

    def _text_of(self, mark: re.Match[str]) -> str:
        high, low = map(ord, mark[0])
        return self._texts[(high - 0xD800) * 1024 + low - 0xDC00]


def _has_all_marks(text: str, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if a rendering has all marks of pictures that are in the messages."""
    contents = [each.get("content") for each in messages]
    marks = {mark for each in contents if isinstance(each, str) for mark in marks_of(each)}
    return all(mark in text for mark in marks)


def _is_kind(key: str, value: Any) -> bool:
    """Return True for a word that templates compare with, such as the type of a tool."""
    return key == "type" and isinstance(value, str) and value.isidentifier()


def _refused(
    messages: Sequence[Mapping[str, Any]],
    rendered: Callable[[Sequence[Mapping[str, Any]], bool], str],
) -> int | None:
    """Return the number of the message with which a template begins to refuse messages.

    Returns None if it refuses even a question of the user. rendered: renders some messages, with or
    without the generation prompt. Raises TemplateError.
    """
    accepted, refused = 0, len(messages)
    try:
        rendered([{"role": "user", "content": "?"}], True)
    except TemplateError:
        return None
    while refused - accepted > 1:
        middle = (accepted + refused) // 2
        try:
            rendered(messages[:middle], False)
            accepted = middle
        except TemplateError:
            refused = middle
    return accepted if messages else None
