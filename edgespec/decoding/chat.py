"""Conversations: rendering, reuse of what is in the cache, contexts that overflow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config import SamplingParams, build
from ..errors import ConfigError, ContextFull
from ..types import Completion, Event
from .prompts import ConversationEncoder, check_size

if TYPE_CHECKING:
    from .engine import Engine

_ROLES = ("user", "assistant")
_RESERVE = 256  # tokens kept free for an answer without max_tokens, at most a quarter of n_ctx


class _Fitted(NamedTuple):
    """A turn as it goes to the engine.

    prompt: token ids of the text `rendered`. n_dropped: messages left out. earlier: their token
    ids, from which prompt lookup may draft.
    """

    prompt: list[int]
    rendered: str
    n_dropped: int
    earlier: list[int]


class Chat:
    """A conversation with one engine.

    The tokens of finished turns are kept as they were generated, so the next prompt extends
    the cache and only the new turn is prefilled. When the context is full, the oldest turns
    leave the prompt (the system prompt and `messages` stay) and a "notice" event says so. A
    cancelled answer stays in `messages` as far as it was shown; a turn whose answer had not begun
    does not. Control tokens written in messages are text, unless parse_special is True. owner:
    whose conversation it is; nothing of it is reused or drafted from for another owner.
    """

    def __init__(
        self,
        engine: Engine,
        system: str | None = None,
        *,
        parse_special: bool = False,
        owner: str = "",
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._encoder = ConversationEncoder(engine.tokenizer, parse_special=parse_special)
        self.system = system
        self.messages: list[dict[str, str]] = []
        self._n_dropped = 0
        self._text = ""  # the rendered conversation that `_tokens` stand for
        self._tokens: list[int] = []
        self._earlier: list[int] = []

    @property
    def system(self) -> str | None:
        """The system prompt; None is the template's own default."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        if text is not None and not isinstance(text, str):
            raise ConfigError(f"a system prompt is text or None, got {text!r:.80}")
        self._system = text

    @property
    def n_dropped(self) -> int:
        """The number of the oldest messages that no longer fit the context."""
        return self._n_dropped

    def send(self, text: str, **sampling: Any) -> Completion:
        """Say something and return the whole answer; arguments and errors as for `stream`."""
        for event in self.stream(text, **sampling):
            if event.completion:
                return event.completion
        raise AssertionError("a stream ends with its completion")

    def stream(self, text: str, **sampling: Any) -> Iterator[Event]:
        """Say something and yield the answer as it comes. sampling: fields of SamplingParams.

        Raises ContextFull if this turn alone is too long, ConfigError, TemplateError; the
        conversation is then as it was before.
        """
        params = build(SamplingParams, sampling)
        if not isinstance(text, str):
            raise ConfigError(f"a message is text, got {text!r:.80}")
        turn = {"role": "user", "content": text}
        messages = [*self.messages, turn]
        prompt, rendered, dropped = self._fit(messages, params)
        earlier = self._earlier
        if dropped != self._n_dropped:
            earlier = self._encoder.encode(self._conversation(messages[:dropped]))
        events = self._engine.run(prompt, params, earlier=earlier, owner=self._owner)
        return self._answer(turn, _Fitted(prompt, rendered, dropped, earlier), events)

    def reset(self) -> None:
        """Forget the conversation but keep the system prompt."""
        self.messages = []
        self._n_dropped = 0
        self._earlier = []

    def to_dict(self) -> dict[str, Any]:
        """Return the conversation, for JSON."""
        return {"system": self._system, "messages": [dict(m) for m in self.messages]}

    def load_dict(self, saved: dict[str, Any]) -> None:
        """Take over a conversation from `to_dict`.

        Raises ConfigError, and changes nothing, if it is not one.
        """
        if not isinstance(saved, dict):
            raise ConfigError(f"a saved chat is a JSON object, got {saved!r:.80}")
        system, messages = saved.get("system"), saved.get("messages")
        if not (system is None or isinstance(system, str)) or not isinstance(messages, list):
            raise ConfigError('a saved chat needs "system" (text or null) and a list "messages"')
        for i, message in enumerate(messages):
            fine = isinstance(message, dict) and message.get("role") == _ROLES[i % 2]
            if not fine or not isinstance(message.get("content"), str):
                raise ConfigError(
                    f"message {i} of a saved chat must be "
                    f'{{"role": "{_ROLES[i % 2]}", "content": text}}, got {message!r:.80}'
                )
        if len(messages) % 2:
            raise ConfigError("a saved chat must end with an answer of the assistant")
        self.reset()
        self._system = system
        self.messages = [{"role": m["role"], "content": m["content"]} for m in messages]

    def _answer(
        self, turn: dict[str, str], fitted: _Fitted, events: Iterator[Event]
    ) -> Iterator[Event]:
        shown, ids = "", []
        if fitted.n_dropped > self._n_dropped:
            yield Event("notice", text=self._dropped_notice(fitted.n_dropped))
        try:
            for event in events:
                shown += event.text
                if event.token is not None:
                    ids.append(event.token)
                if event.completion:
                    if ids:
                        self._remember(turn, fitted, shown, ids)
                    turn = {}
                yield event
        finally:
            if turn and ids:  # ended half-way: what was shown stays said
                self._remember(turn, fitted, shown, ids)

    def _remember(
        self, turn: dict[str, str], fitted: _Fitted, shown: str, ids: Sequence[int]
    ) -> None:
        self.messages += [turn, {"role": "assistant", "content": shown}]
        self._n_dropped, self._earlier = fitted.n_dropped, fitted.earlier
        tokenizer = self._engine.tokenizer
        answer = list(ids)
        if answer and tokenizer.is_eog(answer[-1]):
            del answer[-1]
        if b"".join(map(tokenizer.piece, answer)) == shown.encode():
            self._text = fitted.rendered + self._encoder.mark(shown)
            self._tokens = [*fitted.prompt, *answer]
        else:  # cut at a stop string or inside a character: its tokens say more than was shown
            self._text = ""

    def _fit(
        self, messages: list[dict[str, str]], params: SamplingParams
    ) -> tuple[list[int], str, int]:
        """Return token ids and text of the newest messages, and how many old ones are left out.

        They are as many messages as leave enough of the context for an answer.
        """
        n_ctx = self._engine.n_ctx
        reserve = min(params.max_tokens or _RESERVE, n_ctx // 4)
        dropped = self._n_dropped
        while True:
            last = dropped + 1 == len(messages)
            try:
                prompt, rendered = self._render(messages[dropped:])
            except ContextFull:
                if last:
                    raise
                dropped += 2
                continue
            if len(prompt) + reserve <= n_ctx:
                return prompt, rendered, dropped
            if last:
                system = "the system prompt and " if self._system is not None else ""
                raise ContextFull(
                    f"the prompt of {system}this message has {len(prompt)} tokens; the context of "
                    f"{n_ctx} holds {n_ctx - reserve} beside the answer: shorten it or load "
                    "the model with a larger n_ctx"
                )
            dropped += 2

    def _dropped_notice(self, n_dropped: int) -> str:
        turns = (n_dropped - self._n_dropped) // 2
        return (
            f"the context of {self._engine.n_ctx} tokens is full: the oldest "
            f"{'turn was' if turns == 1 else f'{turns} turns were'} left out"
        )

    def _render(self, messages: Sequence[dict[str, str]]) -> tuple[list[int], str]:
        """Return token ids and text of a conversation; the last ids are extended where possible.

        Raises ContextFull, before anything is tokenized, for more than the context can hold.
        """
        rendered = self._conversation(messages)
        continues = bool(self._text) and rendered.startswith(self._text)
        known, added = (self._tokens, rendered[len(self._text) :]) if continues else ([], rendered)
        check_size(self._engine.tokenizer, added, self._engine.n_ctx)
        return [*known, *self._encoder.encode(added, continues=continues)], rendered

    def _conversation(self, messages: Sequence[dict[str, str]]) -> str:
        if self._system is not None:
            messages = [{"role": "system", "content": self._system}, *messages]
        return self._encoder.render(messages)
