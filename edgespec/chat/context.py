"""Prepares conversations for the engine: rendering, reuse of tokens, and contexts that overflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..backends.base import Tokenizer
from ..backends.tiles import without_pictures
from ..decoding.prompts import check_size
from ..errors import ContextFull, TemplateError
from .encoder import ConversationEncoder
from .messages import Message, begin_of_turns, open_calls
from .pictures import Album

if TYPE_CHECKING:
    from .options import AnswerOptions

_RESERVE = 256  # tokens kept free for an answer without max_tokens, at most a quarter of n_ctx


class Fitted(NamedTuple):
    """A conversation in the form that goes to the engine.

    prompt: the token ids of the text `rendered`. n_dropped: the number of messages that are left
    out. earlier: the token ids of at most the last n_ctx of these messages; prompt lookup may draft
    from them. said: by message number, the answers that `rendered` contains as they were generated,
    not as the template writes messages. opened: `rendered` without the answer at its end, if one is
    continued.
    """

    prompt: list[int]
    rendered: str
    n_dropped: int
    earlier: list[int]
    said: dict[int, str]
    opened: str


class Context:
    """Renders as much of a conversation as the context can hold.

    The tokens of answers are kept as they were generated, so that the next prompt extends the
    cache. Templates write calls and reasoning differently from models, or leave reasoning out. So
    an answer with calls or reasoning is first given to the template as the text that was generated.
    If the result does not continue the kept tokens, the answer is given as a message with calls and
    reasoning instead.

    album: the pictures of the conversation, None if it can have none. n_dropped: the number of
    oldest messages that are left out, always whole turns.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        n_ctx: int,
        *,
        parse_special: bool = False,
        album: Album | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._n_ctx = n_ctx
        self._encoder = ConversationEncoder(tokenizer, parse_special=parse_special)
        if album:
            self._encoder = self._encoder.with_album(album)
        self._text = ""  # the rendered conversation whose ids are `_tokens`
        self._tokens: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Forget which messages were left out.

        The kept tokens are reused if the next conversation begins with them.
        """
        self.n_dropped = 0
        self._earlier: list[int] = []
        self._said: dict[int, str] = {}

    def fit(
        self,
        messages: Sequence[Message],
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        options: AnswerOptions | None = None,
        begun: str = "",
    ) -> Fitted:
        """Return as many of the newest turns as fit, with room for an answer.

        begun: the text of the last answer, if it is continued. Each time that turns are left out,
        the model must read the rest again. So a quarter of the context is then kept free for the
        next turns. Raises ContextFull if the last turn alone is too long. The state of this object
        does not change.
        """
        head = [] if system is None else [{"role": "system", "content": system}]
        reserve = min(max_tokens or _RESERVE, self._n_ctx // 4)
        most = self._n_ctx - reserve
        turns = [i for i in begin_of_turns(messages) if i >= self.n_dropped]

        def from_turn(i: int, most: int) -> Fitted:
            return self._from(head, messages, turns[i], options, most, begun)

        try:
            fitted = from_turn(0, most)
        except ContextFull:
            low, high, step = 0, len(turns) - 1, 1
            if not high:
                raise
            fitted = from_turn(high, most)
            while high - low > 1:  # begin near the end: an attempt renders all turns after it
                middle = max(high - step, (low + high) // 2)
                try:
                    fitted, high = from_turn(middle, most - self._n_ctx // 4), middle
                    step *= 2
                except ContextFull:
                    low = middle
        if fitted.n_dropped == self.n_dropped:
            return fitted
        first = max(0, fitted.n_dropped - self._n_ctx)
        earlier = self._encoder.render([*head, *messages[first : fitted.n_dropped]])
        return fitted._replace(earlier=without_pictures(self._encoder.encode(earlier)))

    def _from(
        self,
        head: list[Message],
        messages: Sequence[Message],
        dropped: int,
        options: AnswerOptions | None,
        most: int,
        begun: str,
    ) -> Fitted:
        """Return a conversation without its oldest messages.

        dropped: the number of messages to leave out. Raises ContextFull if more than `most` tokens
        are left.
        """
        answer = self._encoder.mark_answer(begun)
        prompt, rendered, said = self._render(head, messages, dropped, options, answer)
        if len(prompt) > most:
            raise ContextFull(
                f"the prompt of {'the system prompt and ' if head else ''}this message has "
                f"{len(prompt)} tokens; the context of {self._n_ctx} holds {most} "
                "beside the answer: shorten it or load the model with a larger n_ctx"
            )
        opened = rendered.removesuffix(answer)
        return Fitted(prompt, rendered, dropped, self._earlier, said, opened)

    def take(self, fitted: Fitted) -> None:
        """Leave out the messages that `fitted` leaves out, and forget the kept tokens."""
        self.n_dropped, self._earlier = fitted.n_dropped, fitted.earlier
        self._text, self._said = "", {}

    def keep(
        self, fitted: Fitted, said: str, ids: Sequence[int], number: int | None = None
    ) -> None:
        """Keep the tokens of an answer to the prompt `fitted`.

        said: the whole text of the answer. number: the index of the answer's message, if the
        message is not just `said` as content.
        """
        answer = list(ids)
        if answer and self._tokenizer.is_eog(answer[-1]):
            del answer[-1]
        if b"".join(map(self._tokenizer.piece, answer)) != said.encode():
            return  # cut at a stop string or inside a character: its tokens say more than was shown
        self._text = fitted.rendered + self._encoder.mark_answer(said)
        self._tokens = [*fitted.prompt, *answer]
        self._said = fitted.said | ({} if number is None else {number: said})

    def shortened(self, text: str) -> str:
        """Return a text, cut if it has more tokens than a quarter of the context."""
        most = self._n_ctx // 4
        head = text.encode("utf-8", "replace").decode()[: 8 * most]
        n = len(self._tokenizer.encode(head, add_special=False, parse_special=False))
        kept = len(head) if n <= most else len(head) * most // n
        if kept == len(text):
            return text
        return f"{head[:kept]}\n[cut: the first {kept} of {len(text)} characters]"

    def _render(
        self,
        head: list[Message],
        messages: Sequence[Message],
        dropped: int,
        options: AnswerOptions | None,
        answer: str,
    ) -> tuple[list[int], str, dict[int, str]]:
        """Return the token ids and the text of a conversation, and the answers that it contains as
        they were generated.

        answer: the beginning of an answer, which is added at the end. The kept ids are extended if
        possible. Raises ContextFull, before anything is tokenized, for more text than the context
        can hold.
        """
        said = {i: text for i, text in self._said.items() if i >= dropped}
        rendered = self._as_said(head, messages, dropped, options) + answer if said else ""
        if not said or not rendered.startswith(self._text):
            said = {}
            rendered = self._encoder.render([*head, *messages[dropped:]], options=options) + answer
        continues = bool(self._text) and rendered.startswith(self._text)
        known, added = (self._tokens, rendered[len(self._text) :]) if continues else ([], rendered)
        check_size(self._tokenizer, added, self._n_ctx)
        return [*known, *self._encoder.encode(added, continues=continues)], rendered, said

    def _as_said(
        self,
        head: list[Message],
        messages: Sequence[Message],
        dropped: int,
        options: AnswerOptions | None,
    ) -> str:
        """Return the text of a conversation with answers as they were generated.

        Returns "" if the template refuses that.
        """
        shown = [
            self._as_text(i, messages[i]) if i in self._said else messages[i]
            for i in range(dropped, len(messages))
        ]
        try:
            return self._encoder.render([*head, *shown], options=options, explain=False)
        except TemplateError:  # for example, it wants a call before each result
            return ""

    def _as_text(self, number: int, message: Message) -> Message:
        """Return an answer as its text, with the names of the tools that it calls."""
        text = {"role": "assistant", "content": self._said[number]}
        return text | {"called": open_calls([message])}
