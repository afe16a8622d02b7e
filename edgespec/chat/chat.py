"""Conversations with a model: messages, tools and their results, and answers that were cut."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..backends.base import Tokenizer
from ..config import build
from ..decoding.stream import Stream
from ..errors import ConfigError
from ..types import Completion, Event, ToolCall
from . import messages as forms
from . import pictures
from .context import Context, Fitted
from .messages import Message
from .reading import Reading

if TYPE_CHECKING:
    from ..engine import Engine
    from .functions import Functions
    from .options import AnswerOptions

_REASONS = re.compile("think|reason", re.IGNORECASE)
_OF_ANSWERS = ("tool_choice", "parallel_tool_calls", "template_kwargs", "reasoning_budget")


class Chat:
    """A conversation with one engine.

    The tokens of finished turns are kept as they were generated, so the next prompt extends the
    cache and only the new turn is prefilled. When the context is full, the oldest turns leave the
    prompt (the system prompt and `messages` stay) and a "notice" event says so. A cancelled answer
    stays in `messages` as far as it was shown; a turn without any answer is removed. Control tokens
    and markers (`<tool_call>`) written in messages are text, unless parse_special is True. owner:
    the name of the person or program that the conversation belongs to; nothing of it is used for
    other owners, not even for drafts.

    tools: the tools that the model may call: functions with type hints, `Tool` objects, or mappings
    in the form of OpenAI's API. An answer with calls has them in `tool_calls`; `run_tool` runs one,
    and `send_results` sends the results to the model. answers: further fields of AnswerOptions,
    which apply to all answers. Reasoning that the model writes is in `reasoning`, separate from the
    text.
    """

    def __init__(
        self,
        engine: Engine,
        system: str | None = None,
        *,
        tools: Iterable[Any] = (),
        parse_special: bool = False,
        owner: str = "",
        **answers: Any,
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._context = Context(
            engine.tokenizer,
            engine.n_ctx,
            parse_special=parse_special,
            album=pictures.Album(functools.partial(engine.read, owner=owner))
            if engine.eyes
            else None,
        )
        self._functions: Functions | None = None
        self._answers = answers
        self.system = system
        self.tools = tools
        self.messages: list[Message] = []
        self._answered: tuple[Message, str] | None = None  # the last answer, and its whole text
        self._running: tuple[list[Message], Reading] | None = None  # sent messages, and the answer

    @property
    def system(self) -> str | None:
        """The system prompt; None means the template's own default."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        if text is not None and not isinstance(text, str):
            raise ConfigError(f"a system prompt is text or None, got {text!r:.80}")
        self._system = text

    @property
    def tools(self) -> tuple[Any, ...]:
        """The tools that the model may call, as objects of `Tool`."""
        return self._functions.tools if self._functions else ()

    @tools.setter
    def tools(self, tools: Iterable[Any]) -> None:
        before = self._functions
        self._functions = _functions_of(tools, before)
        try:
            self._options({})
        except ConfigError:
            self._functions = before
            raise

    @property
    def may_skip_reasoning(self) -> bool:
        """True if the model reasons before it answers and its template can turn that off.

        With a reasoning_budget of 0 such a model answers at once.
        """
        if not _may_reason(self._engine.tokenizer):
            return False
        reasoning = self._engine.answer_format.reasoning
        return bool(reasoning and reasoning.switch)

    @property
    def n_dropped(self) -> int:
        """The number of oldest messages that were left out because the context is full."""
        return self._context.n_dropped

    def send(self, content: Any, **settings: Any) -> Completion:
        """Send a message and return the whole answer. Arguments and errors are those of
        `stream`.
        """
        return _last(self.stream(content, **settings))

    def stream(self, content: Any, **settings: Any) -> Stream:
        """Send a message and yield the answer while it is generated.

        content: text, or a list of texts and pictures in the order in which the model reads them. A
        picture is made with `edgespec.picture`; arrays of NumPy, images of Pillow, paths
        (pathlib.Path), and parts in OpenAI's form with a data: URL are taken, too. settings: fields
        of SamplingParams, which replace the engine's own; fields of AnswerOptions, for this answer
        only; `prediction` and `on_busy` as in Engine.stream. Calls of the last answer that got no
        result get the text "no result". Raises ContextFull if this turn alone is too long,
        ConfigError, and TemplateError; the conversation then stays as it was before.
        """
        said = pictures.content_of(content)
        if pictures.has_pictures(said):
            self._engine.check_sees()
        calls = forms.open_calls(self.messages)
        none = forms.results(calls, dict.fromkeys(calls, forms.NO_RESULT)) if calls else []
        return self._stream([*none, {"role": "user", "content": said}], settings)

    def stream_continued(self, **settings: Any) -> Stream:
        """Continue the last answer where it was cut, and yield the added text as it is generated.

        The message becomes the whole answer; the completion has only the added text. No form and no
        limit on reasoning applies to the added text, and penalties count from here. Settings and
        errors are those of `stream`, and ConfigError is also raised if there is no answer, or none
        that can be continued.
        """
        return self._stream([], settings, begun=self._begun())

    def send_results(self, results: Any, **settings: Any) -> Completion:
        """Send the results of the calls in the last answer, and return the answer that follows.

        results: one value for each call, in their order, or a mapping from call ids to values. Text
        is sent unchanged, pictures (`edgespec.picture`) and lists with pictures are shown, other
        values are sent as JSON. For a model that reads text alone, and for a picture that cannot be
        shown, a sentence takes its place. Settings and errors are those of `stream`, and
        ConfigError is also raised for results of other calls.
        """
        return _last(self.stream_results(results, **settings))

    def stream_results(self, results: Any, **settings: Any) -> Stream:
        """Send results as `send_results` does, and yield the answer while it is generated."""
        return self._stream(self._results(results), settings)

    def add_results(self, results: Any) -> None:
        """Add results in the form of `send_results`; the model reads them with the next message."""
        self.messages += self._results(results)

    def _results(self, values: Any) -> list[Message]:
        sees = bool(self._engine.eyes)
        return [
            {**message, "content": pictures.as_result(message["content"], sees)}
            if pictures.has_pictures(message["content"])
            else message
            for message in forms.results(forms.open_calls(self.messages), values)
        ]

    def run_tool(self, call: ToolCall, allow: Callable[[ToolCall], bool] | None = None) -> Any:
        """Run the function that a call names and return its result, for `send_results`: text, or a
        list of parts if the function returned a picture (`edgespec.picture`) or a list with one.

        The arguments are checked against the function's type hints. Errors become a text for the
        model to read: an unknown tool, arguments that do not fit, an exception. A result with more
        tokens than a quarter of the context is cut, and its text says so. allow: called with a call
        that can be run; returns True if it should be run.
        """
        from .functions import Functions

        result = (self._functions or Functions(())).run(call, allow)
        return self._context.shortened(result) if isinstance(result, str) else result

    def reset(self) -> None:
        """Forget the conversation but keep the system prompt and the tools."""
        self.messages = []
        self._context.reset()

    def to_dict(self) -> dict[str, Any]:
        """Return the conversation for JSON. A running answer is included as far as it was shown.
        Pictures are saved by the paths of their files and the hashes of their pixels.
        """
        return {"system": self._system, "messages": [pictures.saved(m) for m in self._said()]}

    def load_dict(self, saved: dict[str, Any]) -> None:
        """Replace the conversation with one that `to_dict` returned. A picture whose file is gone
        or has changed becomes a text that says so. For a model that reads text alone, the names of
        pictures take their place.

        Raises ConfigError, and changes nothing, if `saved` is not such a conversation.
        """
        if not isinstance(saved, dict):
            raise ConfigError(f"a saved chat is a JSON object, got {saved!r:.80}")
        system = saved.get("system")
        if not (system is None or isinstance(system, str)):
            raise ConfigError('a saved chat needs "system" (text or null) and a list "messages"')
        messages = forms.checked(saved.get("messages"))
        if not self._engine.eyes:
            for message in messages:
                message["content"] = pictures.text_of(message["content"])
        self.reset()
        self._system = system
        self.messages = messages

    def _said(self) -> list[Message]:
        """Return the messages, with a running answer as far as it was shown."""
        if self._running is None or not self._running[1].ids:
            return self.messages
        added, reading = self._running
        before = self.messages if reading.begun is None else self.messages[:-1]
        return [*before, *added, reading.so_far()]

    def _options(self, given: Mapping[str, Any]) -> AnswerOptions | None:
        """Return the chat's options, updated by `given`; None if the whole answer is plain text.

        Raises ConfigError for options that the model cannot follow.
        """
        asked = {**self._answers, **given}
        if not asked and not self._functions and not _may_reason(self._engine.tokenizer):
            return None
        from .options import AnswerOptions

        options = build(AnswerOptions, asked | {"tools": self.tools})
        self._engine.answer_format.check(options)
        return options

    def _begun(self) -> str:
        """Return the text of the last answer. Raises ConfigError if it cannot be continued."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or last.get("tool_calls"):
            raise ConfigError("there is no cut answer to go on with; send a message")
        if self._answered and self._answered[0] is last:
            text = self._answered[1]
        elif last.get("reasoning_content"):
            raise ConfigError("an answer with reasoning that was loaded cannot go on; ask again")
        else:
            text = last["content"]
        return text.rstrip("\ufffd")  # the model writes a cut character again

    def _stream(
        self, added: list[Message], settings: Mapping[str, Any], begun: str | None = None
    ) -> Stream:
        """Answer the added messages, or continue the last answer.

        begun: the text of the last answer, if it is continued.
        """
        if "tools" in settings:
            raise ConfigError("tools are those of the whole chat; set chat.tools before you send")
        of_answer = {key: value for key, value in settings.items() if key in _OF_ANSWERS}
        named = {k: v for k, v in settings.items() if k not in of_answer}
        of_request = {key: named.pop(key) for key in ("prediction", "on_busy") if key in named}
        params = self._engine.sampling.params(named)
        interrupt = self._engine.begin(params)
        if begun is not None and params.is_constrained:
            raise ConfigError("an answer with a form cannot go on; ask again with more max_tokens")
        options = self._options(of_answer)
        fitted = self._context.fit(
            [*self.messages, *added] if begun is None else self.messages[:-1],
            system=self._system,
            max_tokens=params.max_tokens,
            options=options,
            begun=begun or "",
        )
        events = self._engine.run(
            fitted.prompt,
            params,
            earlier=fitted.earlier,
            interrupt=interrupt,
            owner=self._owner,
            constraint=None
            if begun is not None
            else self._engine.constraint(params, options, fitted.rendered, self._owner, interrupt),
            **of_request,
        )
        reader = None
        if options:
            reader = self._engine.reader(params, options, fitted.opened, self._owner)
        answer = self._answer(added, fitted, Reading(reader, params, begun), events)
        return Stream(answer, interrupt)

    def _answer(
        self, added: list[Message], fitted: Fitted, reading: Reading, events: Iterator[Event]
    ) -> Generator[Event, None, None]:
        if fitted.n_dropped > self.n_dropped:
            yield Event("notice", text=self._dropped_notice(fitted.n_dropped))
        self._running = (added, reading)
        try:
            for event in events:
                shown = reading.take(event)
                if event.completion:
                    self._remember(added, fitted, reading)
                yield shown
        finally:
            if not reading.has_ended:  # closed half-way: keep what was shown
                self._remember(added, fitted, reading)

    def _remember(self, added: list[Message], fitted: Fitted, reading: Reading) -> None:
        self._running = None
        if not reading.ids:
            return
        message, said = reading.message(), (reading.begun or "") + reading.said
        if reading.begun is None:
            self.messages += [*added, message]
        else:
            self.messages[-1] = message
        self._answered = (message, said)
        self._context.take(fitted)
        if message == forms.answer(said):
            self._context.keep(fitted, reading.said, reading.ids)
        elif reading.is_whole and reading.begun is None:
            number = len(self.messages) - 1
            self._context.keep(fitted, reading.said, reading.ids, number)

    def _dropped_notice(self, n_dropped: int) -> str:
        turns = len(forms.begin_of_turns(self.messages[self.n_dropped : n_dropped]))
        return (
            f"the context of {self._engine.n_ctx} tokens is full: the oldest "
            f"{'turn was' if turns == 1 else f'{turns} turns were'} left out"
        )


def _functions_of(tools: Iterable[Any], before: Functions | None) -> Functions | None:
    """Return tools with their functions, or None if there are no tools. Raises ConfigError."""
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Iterable):
        raise ConfigError(f"tools are a list of functions, got {tools!r:.80}")
    if not (given := tuple(tools)):
        return None
    from .functions import Functions

    return Functions(given, before)


def _may_reason(tokenizer: Tokenizer) -> bool:
    """Return False if a model's template never mentions reasoning, so it need not be analysed."""
    return bool(_REASONS.search(tokenizer.chat_template or ""))


def _last(events: Iterator[Event]) -> Completion:
    for event in events:
        if event.completion:
            return event.completion
    raise AssertionError("a stream ends with its completion")
