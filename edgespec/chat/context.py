"""Prepares conversations for the engine: rendering, reuse of tokens, contexts that overflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..backends.base import Tokenizer
from ..decoding.prompts import check_size
from ..errors import ContextFull, TemplateError
from .encoder import ConversationEncoder
from .messages import Message, begin_of_turns

if TYPE_CHECKING:
    from .options import AnswerOptions

_RESERVE = 256  # tokens kept free for an answer without max_tokens, at most a quarter of n_ctx


class Fitted(NamedTuple):
    """A conversation as it goes to the engine.

    prompt: token ids of the text `rendered`. n_dropped: messages left out. earlier: their token
    ids, of at most n_ctx messages, from which prompt lookup may draft. said: the answers that stand
    in `rendered` as they were generated, and not as the template writes their messages, by the
    number of the message.
    opened: `rendered` without the answer that it ends with, if one is to go on.
    """

    prompt: list[int]
    rendered: str
    n_dropped: int
    earlier: list[int]
    said: dict[int, str]
    opened: str


class Context:
    """Renders a conversation, as much of it as the context holds.

    The tokens of answers are kept as they were generated, so that the next prompt extends the
    cache. Templates write calls and reasoning differently from how models do, or leave reasoning
    out; so an answer with them is first given to the template as the text that it was, and only
    if what comes out does not continue the kept tokens as the message that it is.

    n_dropped: how many of the oldest messages are left out, always whole turns.
    """

    def __init__(self, tokenizer: Tokenizer, n_ctx: int, *, parse_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._n_ctx = n_ctx
        self._encoder = ConversationEncoder(tokenizer, parse_special=parse_special)
        self._text = ""  # the rendered conversation that `_tokens` stand for
        self._tokens: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Forget what was left out; tokens that the next conversation begins with are reused."""
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
        """Return the newest turns, as many as leave enough of the context for an answer.

        begun: the text of their answer, if it is to go on. Where turns have to be left out, a
        quarter of the context is left for the next ones too: each time, the model reads everything
        again. Raises ContextFull if the last turn alone is too long; nothing changes in any case.
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
            while high - low > 1:  # from the end, as each attempt renders all from there on
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
        return fitted._replace(earlier=self._encoder.encode(earlier))

    def _from(
        self,
        head: list[Message],
        messages: Sequence[Message],
        dropped: int,
        options: AnswerOptions | None,
        most: int,
        begun: str,
    ) -> Fitted:
        """Return a conversation without its oldest messages. Raises ContextFull for one of more
        than `most` tokens.
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
        """Leave out what was left out of a conversation that was answered; keep no tokens."""
        self.n_dropped, self._earlier = fitted.n_dropped, fitted.earlier
        self._text, self._said = "", {}

    def keep(
        self, fitted: Fitted, said: str, ids: Sequence[int], number: int | None = None
    ) -> None:
        """Keep the tokens of an answer that was given to `fitted`.

        said: its whole text. number: of its message, if that holds more than `said` as content.
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
        """Return token ids and text of a conversation that ends with the beginning of an answer,
        and which answers are in it as said.

        The kept ids are extended where possible. Raises ContextFull, before anything is tokenized,
        for more than the context can hold.
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
        """Return the text with answers as they were generated, "" if the template refuses that."""
        shown = [
            {"role": "assistant", "content": self._said[i]} if i in self._said else messages[i]
            for i in range(dropped, len(messages))
        ]
        try:
            return self._encoder.render([*head, *shown], options=options)
        except TemplateError:  # such as one that wants the call before each result
            return ""
