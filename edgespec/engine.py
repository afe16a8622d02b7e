"""A loaded model that answers: the public face of the runtime."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .backends.base import Model, Tokenizer
from .chat.chat import Chat
from .config import SamplingParams, build
from .constraints.compiler import Constraints
from .constraints.schemas import parsed
from .constraints.stack import in_thread
from .decoding.idle_work import IdleWork, Work
from .decoding.kept import Kept
from .decoding.output import Output
from .decoding.prompts import Prompt, prediction_ids, prompt_ids
from .decoding.request_lock import Interrupt, RequestLock
from .decoding.session import Session
from .decoding.stream import Stream
from .errors import Aborted
from .sampling.base import Constraint, Request
from .sampling.defaults import GREEDY, SamplingDefaults, in_words
from .sampling.randomness import SeededRandomness
from .types import Abort, Completion, Event, Logprob, Stats

if TYPE_CHECKING:
    from .chat.constraints import AnswerConstraints
    from .chat.format import AnswerFormat
    from .chat.options import AnswerOptions
    from .chat.reader import Reader
    from .decoding.async_stream import AsyncStream


class Engine:
    """A target with its drafters, made by `edgespec.load`; a context manager.

    Thread safety: every method may be called from any thread. One request runs at a time;
    with on_busy="wait" a second caller waits for the first to end, with "error" it gets
    EngineBusy. A thread that would wait for itself always gets EngineBusy. A stream holds
    the engine until it is exhausted or closed.

    target: the model itself, None where it is on another machine. n_ctx: the context in tokens.
    constraints: compiles what answers have to follow. sampling: the settings of requests that do
    not name them; in words as text.
    idle_work: what is done between requests, on a thread of its own, for later ones: costs are
    measured, a draft model is copied in a faster format. A request that comes does not wait for it.
    kept: keeps what was learned, between requests now and then, and at the end.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        *,
        on_busy: Literal["wait", "error"] = "wait",
        speculation: str = "off",
        description: dict[str, Any] | None = None,
        target: Model | None = None,
        works: Sequence[Work] = (),
        kept: Kept | None = None,
        sampling: SamplingDefaults = GREEDY,
    ) -> None:
        self.target = target
        self.sampling = sampling
        self.tokenizer = tokenizer
        self.n_ctx = session.n_ctx
        self._session = session
        self.constraints = Constraints(tokenizer)
        self._speculation = speculation
        self._description = description or {}
        self._lock = RequestLock(on_busy, functools.partial(_free, session, kept))
        self.idle_work = IdleWork(self._lock, works, kept)
        if kept:
            weakref.finalize(self, kept.save)
        weakref.finalize(self, self.idle_work.close)  # at the latest when the program ends

    def generate(self, prompt: Prompt, **sampling: Any) -> Completion:
        """Return the whole answer to a prompt.

        prompt: text, in which special tokens count, or token ids. sampling: fields of
        SamplingParams, in place of the engine's own; `owner` and `prediction` as for `stream`.
        Raises ConfigError, ContextFull, EngineBusy.
        """
        for event in self.stream(prompt, **sampling):
            if event.completion:
                return event.completion
        raise AssertionError("a stream ends with its completion")

    def stream(
        self,
        prompt: Prompt,
        *,
        owner: str = "",
        constraint: Constraint | None = None,
        prediction: Prompt = "",
        **sampling: Any,
    ) -> Stream:
        """Yield the answer as it comes: "prefill", "token" and one last "done" event.

        owner: whose request it is; nothing of it is reused or drafted from for another owner.
        constraint: what the answer has to follow, from `constraint`. prediction: text or token ids
        that much of the answer may be, such as a file that it edits. They are drafts for this
        request alone and change no text, whatever they are.
        Arguments are checked and time counts at once, the engine is taken with the first `next`.
        Closing the stream, or leaving its `with` block, ends the request.
        """
        params = self.sampling.params(sampling)
        interrupt = self.begin(params)  # reading the prompt counts
        return self.run(
            self.encode(prompt), params, interrupt=interrupt, owner=owner, constraint=constraint,
            prediction=prediction,
        )  # fmt: skip

    def chat(
        self,
        system: str | None = None,
        *,
        tools: Iterable[Any] = (),
        parse_special: bool = False,
        owner: str = "",
        **answers: Any,
    ) -> Chat:
        """Return a new conversation, rendered with the model's own template.

        tools: functions, or descriptions of such, that the model may call. parse_special: read
        control tokens that are written in messages as such, not as text. owner: whose conversation
        it is, as for `stream`. answers: further fields of AnswerOptions. Raises ConfigError for
        tools that the model's template does not know.
        """
        return Chat(self, system, tools=tools, parse_special=parse_special, owner=owner, **answers)

    def check(self, **sampling: Any) -> None:
        """Raise ConfigError for settings of a request that cannot be, forms of answers included.

        The first form reads the vocabulary, which takes a second or two; a server does it here.
        """
        self.constraint(build(SamplingParams, sampling))

    def measure(self, time_limit_s: float | None = None) -> bool:
        """Measure now what decoding costs on this device, if that is not known, and wait for it.

        It happens by itself after the first answer, which is decoded plainly; benchmarks call this
        before theirs. Return False if the time was too short; the rest is measured later.
        """
        return self.idle_work.finish(self._lock.begin(time_limit_s))

    def cancel(self) -> None:
        """Cancel the running request, or if none runs, those that have begun: `generate` or
        `stream` was called. May be called from any thread; without a request it does nothing.

        The request ends with finish reason "cancelled" and what has been generated so far.
        """
        self._lock.cancel()

    def begin(self, params: SamplingParams) -> Interrupt:
        """Return what ends a request with these settings, whose time counts from now."""
        return self._lock.begin(params.time_limit_s)

    async def agenerate(self, prompt: Prompt, **sampling: Any) -> Completion:
        """Return the whole answer, for asyncio; cancelling the task cancels the request."""
        async for event in self.astream(prompt, **sampling):
            if event.completion:
                return event.completion
        raise AssertionError("a stream ends with its completion")

    def astream(
        self,
        prompt: Prompt,
        *,
        owner: str = "",
        constraint: Constraint | None = None,
        prediction: Prompt = "",
        **sampling: Any,
    ) -> AsyncStream:
        """Return what yields the answer as `stream` does, for asyncio.

        It runs in a thread of its own, which also reads the prompt and compiles the form, so
        errors of these come with the first event. Cancelling the task that waits for an event
        cancels the request; who then goes on reading gets the rest of it, its completion included.
        """
        return self.arun(
            prompt, self.sampling.params(sampling), owner=owner, constraint=constraint,
            prediction=prediction,
        )  # fmt: skip

    def arun(self, prompt: Prompt, params: SamplingParams, **given: Any) -> AsyncStream:
        """Run one request with these settings as they are, for asyncio; given: as for `run`."""
        from .decoding.async_stream import AsyncStream  # asyncio: only programs that use it pay

        interrupt = self.begin(params)

        def events() -> Iterator[Event]:
            yield from self.run(self.encode(prompt), params, interrupt=interrupt, **given)

        return AsyncStream(events(), interrupt)

    def run(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        earlier: Sequence[int] = (),
        interrupt: Interrupt | None = None,
        owner: str = "",
        constraint: Constraint | None = None,
        prediction: Prompt = "",
    ) -> Stream:
        """Run one request on token ids, as `stream` does, with these settings as they are.

        earlier: tokens that are not in the prompt any more; prompt lookup may draft from them.
        constraint: what the answer has to follow instead of what `params` say of its form.
        prediction: as for `stream`.
        """
        interrupt = interrupt or self.begin(params)
        randomness = SeededRandomness(params.seed)
        constraint = constraint or self.constraint(params, owner=owner, abort=interrupt)
        predicted = prediction_ids(self.tokenizer, prediction, self.n_ctx)
        request = Request(
            prompt, params, randomness, earlier, interrupt, owner, constraint, interrupt.left_s,
            predicted,
        )  # fmt: skip
        return Stream(self._run(request, interrupt))

    def constraint(
        self,
        params: SamplingParams,
        options: AnswerOptions | None = None,
        rendered: str = "",
        owner: str = "",
        abort: Abort | None = None,
    ) -> Constraint | None:
        """Return what an answer has to follow, None for no limits; may be called from any thread.

        options: tools and reasoning; a schema or another form then holds after the reasoning.
        rendered: the prompt's text, which says whether reasoning has begun. owner: for whom it is
        kept. abort: does not wait any longer where it gives a reason, and returns None; a request
        with that reason ends before its first token. Raises ConfigError where something cannot be
        followed.
        """
        if options is None and not params.is_constrained:
            return None

        def compiled() -> Constraint | None:
            if options is None:
                return self.constraints.of(params, owner)
            return self._answer_constraints.of(params, options, rendered, owner)

        try:
            return in_thread(compiled, abort=abort) if abort else compiled()
        except Aborted:
            return None

    def reader(
        self, params: SamplingParams, options: AnswerOptions, rendered: str, owner: str = ""
    ) -> Reader | None:
        """Return what finds reasoning and calls in an answer, None where there can be none;
        arguments as for `constraint`.
        """
        options, form = self.followed(options, owner), self.answer_format
        if not options.tools and not form.reasoning:
            return None
        return form.reader(options, rendered, has_form=params.is_constrained)

    def followed(self, options: AnswerOptions, owner: str = "") -> AnswerOptions:
        """Return options in which tools that are not strict have schemas that can be followed.

        The reader of an answer needs them too; templates are given the tools as they are.
        """
        return self._answer_constraints.followed(options, owner)

    @functools.cached_property
    def _answer_constraints(self) -> AnswerConstraints:
        from .chat.constraints import AnswerConstraints

        return AnswerConstraints(self.constraints, self.answer_format)

    @functools.cached_property
    def answer_format(self) -> AnswerFormat:
        """The form in which the model reasons and calls tools, learned from its chat template."""
        from .chat.format import AnswerFormat

        return AnswerFormat.of(self.tokenizer.chat_template, self.tokenizer.special())

    def _run(self, request: Request, interrupt: Interrupt) -> Generator[Event, None, None]:
        try:
            completion, rest = yield from self._held(request, interrupt)
        finally:
            self.idle_work.start(answered=True)
        yield Event("done", text=rest, completion=completion)

    def _held(
        self, request: Request, interrupt: Interrupt
    ) -> Generator[Event, None, tuple[Completion, str]]:
        """Yield the events of a request but the last; return its completion and the last text."""
        params = request.params
        with self._lock.held(interrupt) as held:
            constraint = request.constraint
            output = Output(self.tokenizer, params, constraint.shown if constraint else None)
            stats = Stats(speculation=self._speculation_of(params), sampling=in_words(params))
            logprobs: list[Logprob] = []
            for event in self._session.generate(request, output, stats) if held else ():
                if event.logprob:
                    logprobs.append(event.logprob)
                yield event
            stats.num_repeated_tokens = output.n_repeated
            rest = output.flush()
            completion = Completion(
                output.text,
                tuple(output.token_ids),
                output.finish_reason or ("stop" if held else interrupt() or "cancelled"),
                output.stop_reason,
                stats,
                None if params.logprobs is None else tuple(logprobs),
                parsed(params, output.text) if output.finish_reason == "stop" else None,
            )
            return completion, rest

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt.

        Raises ConfigError for none, or an unknown one, ContextFull for a text that cannot fit.
        """
        self._lock.check_open()
        return prompt_ids(self.tokenizer, prompt, self.n_ctx)

    def describe(self) -> dict[str, Any]:
        """Return what is loaded, where it is, how it speculates and samples, for JSON."""
        return dict(self._description) | {
            "n_ctx": self.n_ctx,
            "speculation": self._speculation,
            "sampling": str(self.sampling),
        }

    def close(self) -> None:
        """Free the models; calling it twice is harmless.

        A running request is cancelled, and the models are freed as soon as it has ended.
        """
        self._lock.close()  # first: Ctrl-C may end the wait for the thread
        self.idle_work.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _speculation_of(self, params: SamplingParams) -> str:
        return self._speculation if params.may_draft else "off: disabled by request"


def _free(session: Session, kept: Kept | None) -> None:
    """Free the models, once what was learned with them is kept."""
    if kept:
        kept.save()
    session.close()
