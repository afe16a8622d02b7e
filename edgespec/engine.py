"""The engine: a loaded model that answers requests. This is the main public class."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from .backends.base import Eyes, Model, Tokenizer
from .cache.prefixes import EVERYBODY, PrefixStore
from .chat.chat import Chat
from .config import OnBusy, SamplingParams, build
from .constraints.compiler import Constraints
from .constraints.schemas import parsed
from .constraints.stack import in_thread
from .decoding.idle_work import IdleWork, Work
from .decoding.interrupt import Interrupt
from .decoding.kept import Kept
from .decoding.output import Output
from .decoding.prompts import Prompt, prediction_ids, prompt_ids
from .decoding.session import Session
from .decoding.slots import Slots
from .decoding.stream import Stream
from .errors import Aborted, ConfigError
from .pictures import Picture
from .sampling.base import Constraint, Request
from .sampling.defaults import GREEDY, SamplingDefaults, in_words
from .sampling.randomness import SeededRandomness
from .types import Abort, Completion, EngineStatus, Event, Logprob, Stats

if TYPE_CHECKING:
    from .chat.constraints import AnswerConstraints
    from .chat.format import AnswerFormat
    from .chat.options import AnswerOptions
    from .chat.reader import Reader
    from .decoding.async_stream import AsyncStream
    from .scheduling.company import Company


class Engine:
    """A target with its drafters, made by `edgespec.load`; a context manager.

    Thread safety: every method may be called from any thread. As many requests run at once as
    there are sessions, which are the engine's slots. If all are taken, a further request waits with
    on_busy="wait" until a slot is free, in the order of arrival; with "error" it gets EngineBusy;
    with "replace" the running request of the same owner that began first is cancelled, and its slot
    taken. A thread that would wait for itself always gets EngineBusy. A stream holds its slot until
    it is exhausted or closed.

    sessions: one for each slot, each with a verifier, drafters and a policy of its own. target: the
    target model, None if it is on another machine. n_ctx: the context length of a slot in tokens.
    constraints: compiles schemas and other forms that answers have to follow. sampling: the default
    settings of requests; str() describes them. idle_work: work between requests, in a thread of its
    own. It makes later requests faster: it measures costs and copies a draft model to a faster
    format. A new request does not wait for it. kept: writes what was learned to disk, sometimes
    between requests and once at the end. prefixes: keeps what the models have read; None if that is
    off.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        tokenizer: Tokenizer,
        *,
        on_busy: OnBusy = "wait",
        speculation: str = "off",
        description: dict[str, Any] | None = None,
        target: Model | None = None,
        works: Sequence[Work] = (),
        kept: Kept | None = None,
        sampling: SamplingDefaults = GREEDY,
        company: Company | None = None,
        prefixes: PrefixStore | None = None,
    ) -> None:
        self.target = target
        self.company = company
        self.prefixes = prefixes
        self.sampling = sampling
        self.tokenizer = tokenizer
        self.sessions = list(sessions)
        self.n_ctx = min(session.n_ctx for session in sessions)
        self.constraints = Constraints(tokenizer)
        self._speculation = speculation
        self._description = description or {}
        free = functools.partial(_free, self.sessions, kept, prefixes)
        self._slots = Slots(self.sessions, on_busy, free)
        self.idle_work = IdleWork(self._slots, works, kept)
        if kept:
            weakref.finalize(self, kept.save)
        weakref.finalize(self, self.idle_work.close)  # at the latest when the program ends

    def generate(self, prompt: Prompt, **sampling: Any) -> Completion:
        """Return the whole answer to a prompt.

        prompt: text, in which special tokens are recognised, or token ids. sampling: fields of
        SamplingParams, which replace the engine's defaults; `owner`, `prediction` and `on_busy` as
        for `stream`. Raises ConfigError, ContextFull, EngineBusy.
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
        on_busy: OnBusy | None = None,
        **sampling: Any,
    ) -> Stream:
        """Yield the answer as it is generated: "prefill", "token" and one last "done" event.

        owner: the user that the request belongs to; the request's text is not used for other
        owners, not even for drafts. constraint: a constraint that the answer follows, made by the
        method `constraint`. prediction: text or token ids that the answer may largely repeat, such
        as a file that it edits. Only this request drafts from it, and it never changes the text.
        on_busy: "wait", "error" or "replace" if all slots are taken, in place of the engine's own
        setting. The arguments are checked and the time limit starts at once; a slot is taken at the
        first `next`. Closing the stream, or leaving its `with` block, ends the request; its method
        `cancel` does so from any thread.
        """
        params = self.sampling.params(sampling)
        interrupt = self.begin(params)  # reading the prompt counts
        return self.run(
            self.encode(prompt), params, interrupt=interrupt, owner=owner, constraint=constraint,
            prediction=prediction, on_busy=on_busy,
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

        tools: functions, or descriptions of functions, that the model may call. parse_special:
        treat the names of control tokens in messages as control tokens, not as text. owner: as for
        `stream`. answers: further fields of AnswerOptions. Raises ConfigError for tools if the
        model's template does not support them.
        """
        return Chat(self, system, tools=tools, parse_special=parse_special, owner=owner, **answers)

    def check(self, **sampling: Any) -> None:
        """Raise ConfigError for settings that a request cannot have, including a schema, regex,
        grammar or choices that cannot be followed.

        The first such form makes this method read the vocabulary, which takes one or two seconds.
        So a server calls it early.
        """
        self.constraint(build(SamplingParams, sampling))

    def measure(self, time_limit_s: float | None = None) -> bool:
        """Measure now what decoding costs on this device, if that is not known yet.

        Without this call, costs are measured after the first answer, which is decoded plainly.
        Benchmarks call this before their first request. Return False if the time limit was too
        short to measure everything; the rest is measured later.
        """
        return self.idle_work.finish(self._slots.begin(time_limit_s))

    @property
    def n_slots(self) -> int:
        """The number of requests that are answered at once."""
        return self._slots.n

    def status(self, owner: str | None = None) -> EngineStatus:
        """Return which requests run and how many wait. May be called from any thread.

        owner: list only the requests of this owner; None for all.
        """
        return self._slots.status(owner)

    def warm(
        self,
        prompt: Prompt | Sequence[Mapping[str, Any]],
        *,
        tools: Iterable[Any] = (),
        time_limit_s: float | None = None,
    ) -> int:
        """Read what later prompts begin with, and keep it for the requests of all owners, also on
        disk. Return the number of its tokens.

        prompt: text or token ids, or messages in OpenAI's form: a system prompt, or the beginning
        of a conversation. tools: as for `chat`. It waits for its turn like a request. Raises
        ConfigError if the prompt cache is off, Aborted after `time_limit_s` seconds, and the errors
        of `generate`.
        """
        if self.prefixes is None:
            raise ConfigError(
                "the prompt cache is off, so nothing can be kept in it; take memory or disk"
            )
        tokens = self._beginning(prompt, tools)
        interrupt = self._slots.begin(time_limit_s)
        request = Request(
            tokens, SamplingParams(), SeededRandomness(0), (), interrupt, EVERYBODY,
            left_s=interrupt.left_s,
        )  # fmt: skip
        with self._slots.held(interrupt, EVERYBODY, tokens) as session:
            if session:
                session.warm(request)
        return len(tokens)

    def _beginning(
        self, prompt: Prompt | Sequence[Mapping[str, Any]], tools: Iterable[Any]
    ) -> list[int]:
        """Return the tokens of a prompt; for messages, of what all prompts begin with that have
        them.
        """
        if not isinstance(prompt, str) and all(isinstance(each, Mapping) for each in prompt):
            from .chat.beginnings import beginning

            return beginning(self, prompt, tools)  # type: ignore[arg-type]
        return self.encode(prompt)  # type: ignore[arg-type]

    def cancel(self) -> None:
        """Cancel all running requests or, if none runs, all requests that wait for their turn,
        including streams that are not read yet. May be called from any thread.

        A cancelled request ends with the finish reason "cancelled" and the text generated so far.
        `Stream.cancel` cancels one request only.
        """
        self._slots.cancel()

    def begin(self, params: SamplingParams) -> Interrupt:
        """Return the Interrupt that can end a request with these settings; its time limit starts
        now.
        """
        return self._slots.begin(params.time_limit_s)

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
        on_busy: OnBusy | None = None,
        **sampling: Any,
    ) -> AsyncStream:
        """Return an async iterator over the events of an answer, as `stream` yields them.

        The request runs in a thread of its own. This thread also encodes the prompt and compiles
        the constraint, so their errors are raised at the first event. Cancelling the task that
        waits for an event cancels the request; reading on afterwards gives the remaining events,
        including the completion.
        """
        return self.arun(
            prompt, self.sampling.params(sampling), owner=owner, constraint=constraint,
            prediction=prediction, on_busy=on_busy,
        )  # fmt: skip

    def arun(self, prompt: Prompt, params: SamplingParams, **given: Any) -> AsyncStream:
        """Run one request for asyncio, without adding defaults to `params`. given: as in `run`."""
        from .decoding.async_stream import AsyncStream  # only programs that need it import asyncio

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
        on_busy: OnBusy | None = None,
    ) -> Stream:
        """Run one request on token ids, as `stream` does, without adding defaults to `params`.

        earlier: tokens of the conversation that are no longer in the prompt; prompt lookup may
        draft from them. interrupt: from `begin`. constraint: the constraint that the answer
        follows, in place of the one that `params` ask for. prediction, on_busy: as for `stream`.
        """
        if on_busy not in (None, *get_args(OnBusy)):
            raise ConfigError(f"on_busy is wait, error or replace, got {on_busy!r:.80}")
        interrupt = interrupt or self.begin(params)
        randomness = SeededRandomness(params.seed)
        constraint = constraint or self.constraint(params, owner=owner, abort=interrupt)
        predicted = prediction_ids(self.tokenizer, prediction, self.n_ctx)
        request = Request(
            prompt, params, randomness, earlier, interrupt, owner, constraint, interrupt.left_s,
            predicted,
        )  # fmt: skip
        return Stream(self._run(request, interrupt, on_busy), interrupt)

    def constraint(
        self,
        params: SamplingParams,
        options: AnswerOptions | None = None,
        rendered: str = "",
        owner: str = "",
        abort: Abort | None = None,
    ) -> Constraint | None:
        """Return the constraint that an answer has to follow, None if there is none; may be called
        from any thread.

        options: the tools and the reasoning of a chat; a schema or another form then applies after
        the reasoning. rendered: the prompt's text, which shows whether reasoning has begun. owner:
        the user that the compiled constraint is kept for. abort: as soon as it returns a reason,
        the compilation is not waited for and None is returned. A request with the same `abort` then
        ends before its first token. Raises ConfigError if something cannot be followed.
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
        """Return a reader that finds reasoning and tool calls in an answer, None if there can be
        none; arguments as for `constraint`.
        """
        options, form = self.followed(options, owner), self.answer_format
        if not options.tools and not form.reasoning:
            return None
        return form.reader(options, rendered, has_form=params.is_constrained)

    def followed(self, options: AnswerOptions, owner: str = "") -> AnswerOptions:
        """Return the options, with schemas that can be followed for all tools that are not strict.

        The constraint and the reader of an answer use these tools; templates get the original ones.
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

        return AnswerFormat.of_tokenizer(self.tokenizer)

    def _run(
        self, request: Request, interrupt: Interrupt, on_busy: OnBusy | None
    ) -> Generator[Event, None, None]:
        try:
            completion, rest = yield from self._held(request, interrupt, on_busy)
        finally:
            self.idle_work.start(answered=True)
        yield Event("done", text=rest, completion=completion)

    def _held(
        self, request: Request, interrupt: Interrupt, on_busy: OnBusy | None
    ) -> Generator[Event, None, tuple[Completion, str]]:
        """Yield all events of a request except "done"; return its completion and the last text."""
        params = request.params
        constraint = request.constraint
        notes = tuple(constraint.notes) if constraint else ()
        stats = Stats(speculation=self._speculation_of(params), sampling=in_words(params))
        held = self._slots.held(interrupt, request.owner, request.prompt, on_busy, stats)
        with held as session:
            for note in notes if session else ():
                yield Event("notice", text=note)
            output = Output(
                self.tokenizer,
                params,
                constraint.shown if constraint else None,
                constraint.thought if constraint else None,
            )
            logprobs: list[Logprob] = []
            for event in session.generate(request, output, stats) if session else ():
                if event.logprob:
                    logprobs.append(event.logprob)
                yield event
            stats.num_repeated_tokens = output.n_repeated
            rest = output.flush()
            completion = Completion(
                output.text,
                tuple(output.token_ids),
                output.finish_reason or ("stop" if session else interrupt() or "cancelled"),
                output.stop_reason,
                stats,
                None if params.logprobs is None else tuple(logprobs),
                parsed(params, output.text) if output.is_whole else None,
                notes=notes,
            )
            return completion, rest

    @property
    def eyes(self) -> Eyes | None:
        """The part of the target that sees pictures, None if it reads text alone."""
        return self.target.eyes if self.target else None

    def check_sees(self) -> None:
        """Raise ConfigError, which says why, if pictures cannot be shown to the target."""
        if self.eyes:
            return
        elsewhere = "the target is on another machine, which is sent token ids alone"
        why = self.target.why_blind if self.target else elsewhere
        raise ConfigError(f"pictures cannot be shown: {why}")

    def read(self, picture: Picture, owner: str = "") -> list[int]:
        """Return the tokens of a picture, which stand in a prompt like token ids. Nothing is
        encoded yet. owner: the user whose picture it is. Raises ConfigError as `check_sees` does.
        """
        self._slots.check_open()
        self.check_sees()
        assert self.eyes
        return self.eyes.read(picture, owner)

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt.

        Raises ConfigError for no ids or an unknown one, ContextFull if the text cannot fit.
        """
        self._slots.check_open()
        return prompt_ids(self.tokenizer, prompt, self.n_ctx)

    def describe(self) -> dict[str, Any]:
        """Return a description for JSON: the models, where they run, speculation, sampling, and the
        bytes of prompts that are kept.
        """
        return dict(self._description) | {
            "n_ctx": self.n_ctx,
            "n_slots": self.n_slots,
            "speculation": self._speculation,
            "sampling": str(self.sampling),
            "prompt_cache": self.prefixes.describe() if self.prefixes else "off",
        }

    def close(self) -> None:
        """Free the models. Calling this twice is harmless.

        Running requests are cancelled, and the models are freed as soon as all have ended.
        """
        self._slots.close()  # first: Ctrl-C may end the wait for the thread
        self.idle_work.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _speculation_of(self, params: SamplingParams) -> str:
        return self._speculation if params.may_draft else "off: disabled by request"


def _free(sessions: Sequence[Session], kept: Kept | None, prefixes: PrefixStore | None) -> None:
    """Store what was learned with the models and what they have read, then free them."""
    if kept:
        kept.save()
    for session in reversed(sessions):  # the first one's models own what the others use
        if prefixes and prefixes.keeps_all:
            session.save()
        session.close()
    if prefixes:
        prefixes.close()
