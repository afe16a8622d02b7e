"""The command `edgespec chat`, which reads messages from a terminal or a pipe."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click
import cloup

from . import errors, kept_chats, options, tools
from .answer import TextSink, play
from .arguments import endless_repetition, is_typed, reasoning_arguments, sampling_arguments
from .commands import COMMANDS, Leave, perform
from .conversation import Conversation, load, show_last
from .loading import (
    fetch_all,
    measure_afterwards,
    model_reference,
    opened,
    others_of,
    suggestion,
)
from .parameters import ExistingPathType
from .prompt import decoded, line_reader, no_echo, pictures, piped_lines
from .render import Screen, advice, counted, figures, is_terminal, say, table

if TYPE_CHECKING:
    import edgespec

HINT = "Ctrl-D or /exit leaves, /help lists the commands"
_RETRY = "/retry sends your message again"
_KEPT = "the model reads the results with your next message"


@cloup.command()
@cloup.option_group(
    "Prompt",
    options.image_option,
    options.system_option,
    options.reasoning_option,
    options.option(
        "--load", metavar="FILE",
        type=ExistingPathType(dir_okay=False),
        help="Continue a chat that was saved with /save, with its system prompt and sampling.",
    ),
)  # fmt: skip
@cloup.option_group(
    "Conversations on this disk",
    options.option(
        "--continue",
        "continued",
        metavar="[NAME]",
        is_flag=False,
        flag_value="last",
        help="Continue the last conversation, or the one with this name, with its own model.",
    ),
    options.option("--list", "listed", is_flag=True, help="List the conversations, and exit."),
    options.option(
        "--delete",
        "deleted",
        metavar="NAME|all",
        help="Delete the conversation with this name, or all of them, and exit. What models have "
        "read for them is deleted as well.",
    ),
    options.option(
        "--save/--no-save",
        default=None,
        show_default="yes, on a terminal",
        help="Keep the conversation on this disk, where only you can read it.",
    ),
)
@options.generation_options
@cloup.option_group("Output", *options.display_options)
@options.pass_params
def chat(ctx: click.Context) -> int:
    """Talk with a model.

    Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D leaves, and /help lists
    the commands of the chat. Without a terminal, each line of stdin is a message, and only the
    answers go to stdout.
    """
    if ctx.params["listed"]:
        return _list()
    if ctx.params["deleted"]:
        n = kept_chats.delete(ctx.params["deleted"])
        say(f"deleted {counted(n, 'conversation')}")
        return 0
    if ctx.params["continued"] and ctx.params["load"]:
        raise click.UsageError("--continue and --load each name a conversation; leave one out")
    return converse(ctx)


def _list() -> int:
    if rows := kept_chats.rows():
        titles = ("name", "model", "messages", "begins with")
        table(titles, rows, drop=("messages", "model"), wrap=("begins with",))
    else:
        say("no conversation is kept yet; `edgespec chat` begins one", err=True)
    return 0


def converse(ctx: click.Context) -> int:
    """Chat with the model that the options of `chat` or `run` ask for; return the exit code."""
    params = ctx.params
    sampling, shown = sampling_arguments(params), pictures(params)
    interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    saved, continued = params.get("load"), params.get("continued")
    if continued:
        saved, data = kept_chats.named(continued)
        if not is_typed(ctx, "model") and not params["verifier"]:
            params["model"] = kept_chats.model_of(data)
    save = params.get("save")  # `run` has no such option
    keeps = bool(save or (save is None and (interactive or continued)))
    if keeps and not params["prompt_cache"]:
        params["prompt_cache"] = "disk"  # so that a chat that goes on begins at once
    with _Loaded(params) as loaded:
        engine = loaded.engine
        if shown:
            engine.check_sees()
        chat = engine.chat(params["system"])
        talk = Conversation(
            engine=engine,
            chat=chat,
            reasoning=reasoning_arguments(params, chat),
            model=_model_name(params, engine),
            sampling=sampling,
            screen=Screen(show_drafts=params["show_drafts"], clean=True),
            quiet=params["quiet"],
            repetition=endless_repetition(ctx),
            suggestion=functools.partial(suggestion, engine, params),
            pictures=shown,
        )
        talk.change_model = functools.partial(_change_model, talk, loaded)
        remarks = load(talk, saved) if saved else []
        if saved:
            talk.sampling |= sampling  # options given now replace saved ones
            talk.chat.system = params["system"] or talk.chat.system
        if keeps:
            talk.keeper = kept_chats.Keeper(saved if continued else None)
        if interactive:
            talk.screen.remark(f"{talk.model} · {talk.summary()} · {HINT}")
            _say_if_not_kept(talk)
            show_last(talk)
        for remark in remarks:
            talk.screen.remark(remark)
        return _on_terminal(talk) if interactive else _piped(talk)


class _Loaded:
    """A context manager that loads the engine of a chat, and can replace it by another one."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.params = dict(params)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> _Loaded:
        self.engine = self._stack.enter_context(opened(self.params))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def replace(self, model: str) -> None:
        """Load another model in place of this one. If that fails, load this one again."""
        if self.params.get("verifier"):
            raise click.UsageError("the model is on another machine; leave, and name another one")
        fetch_all(self.params, model)
        before = self.params
        draft = before["draft_model"] if before["draft_model"] == "none" else None
        self._stack.close()  # first: memory may not hold two models
        try:
            self.params = before | {"model": model, "draft_model": draft}
            self.__enter__()
        except BaseException:
            self.params = before
            self.__enter__()
            raise


def _change_model(talk: Conversation, loaded: _Loaded, model: str) -> None:
    """Continue the chat with another model, or with the present one if that cannot be loaded."""
    import edgespec

    saved = talk.chat.to_dict()
    try:
        loaded.replace(model)
    finally:
        params, talk.engine = loaded.params, loaded.engine
        if talk.model != (name := _model_name(params, talk.engine)):
            talk.model, talk.last, talk.said_why = name, None, ""
            if talk.sampling.pop("logit_bias", None):
                talk.screen.remark("logit-bias is off: other models have other token ids")
        talk.suggestion = functools.partial(suggestion, talk.engine, params)
        talk.chat = talk.engine.chat(saved["system"])
        talk.reasoning = reasoning_arguments(params, talk.chat)
        talk.chat.load_dict(saved)
        try:
            talk.chat.tools = talk.functions
        except edgespec.ConfigError as error:
            talk.screen.remark(f"tools are off: {error}")


def _model_name(params: dict[str, Any], engine: edgespec.Engine) -> str:
    if remote := engine.describe().get("verifier"):
        return f"{remote['model'] or 'not connected yet'} at {remote['url']}"
    return model_reference(params)


def _say_if_not_kept(talk: Conversation) -> None:
    if talk.keeper is None:
        talk.screen.remark("this conversation is not kept: --no-save says so")
    elif refusal := talk.keeper.refusal():
        talk.screen.remark(refusal)


def _on_terminal(talk: Conversation) -> int:
    read, is_interrupted = line_reader(COMMANDS)
    for line in _typed(read, talk):
        if line.strip().lower() in ("exit", "quit"):
            break
        try:
            with no_echo():
                if is_interrupted():
                    talk.unanswered = _message(line) or talk.unanswered
                    raise KeyboardInterrupt
                take(talk, line)
        except Leave:
            break
        except KeyboardInterrupt:  # pressed before the answer began, or twice
            again = f": {_RETRY}" if talk.unanswered else ""
            talk.screen.remark(f"interrupted{again}")
    if talk.keeper and talk.keeper.has_kept:
        talk.screen.remark("`edgespec chat --continue` goes on with this conversation")
    return 0


def _typed(read: Callable[[], str], talk: Conversation) -> Iterator[str]:
    """Yield the lines that the user types, until Ctrl-D."""
    while True:
        try:
            yield read()
        except KeyboardInterrupt:
            talk.screen.remark(HINT)
        except EOFError:
            return


def _piped(talk: Conversation) -> int:
    """Run each line of stdin as a message or a command; return the exit code. Ctrl-C ends the
    answer and the program.
    """
    code = 0
    for name, line in piped_lines():
        try:
            failed, interrupted = take(talk, decoded(line, name))
        except Leave:
            break
        except click.UsageError as error:  # the line is not UTF-8; the next one may be
            errors.line(error.format_message())
            failed, interrupted = errors.USAGE, False
        if interrupted:
            return errors.INTERRUPTED
        code = max(code, failed)
    measure_afterwards(talk.engine)
    return code


def take(talk: Conversation, line: str) -> tuple[int, bool]:
    """Run one line, which is a command or a message; return its exit code, and True if Ctrl-C ended
    it.

    Errors are shown, and the conversation goes on.
    """
    try:
        if message := _message(line):
            return 0, answer(talk, message)
        if line.strip():
            return 0, perform(talk, line.strip())
    except (BrokenPipeError, Leave):
        raise
    except Exception as error:
        code = errors.known(error)
        if code is None:  # a bug; the conversation goes on after it
            return errors.report(error, debug=errors.wants_debug()), False
        errors.line(errors.describe(error))
        return code, False
    return 0, False


def _message(line: str) -> str:
    """Return the message in a line, "" if the line is a command or empty."""
    text = line.strip()
    if text.startswith("//"):
        return text[1:]
    return line.strip("\n") if text and not text.startswith("/") else ""


def answer(talk: Conversation, text: str) -> bool:
    """Send a message and show the answer; return True if Ctrl-C ended the answer.

    The message is saved before it is answered, so that it is not lost if the program is killed.
    """
    talk.unanswered = text
    _keep(talk)
    events = talk.chat.stream([*talk.pictures, text], **talk.settings())
    return _turn(
        talk, events, _RETRY if talk.screen.terminal else "your message is not part of the chat"
    )


def retry(talk: Conversation) -> bool:
    """Send the unanswered message again; return True if Ctrl-C ended the answer."""
    if not talk.unanswered:
        raise click.UsageError("there is no message without an answer; type one")
    return answer(talk, talk.unanswered)


def go_on(talk: Conversation) -> bool:
    """Continue the last answer, which was cut; return True if Ctrl-C ended it."""
    if talk.last and talk.last.finish_reason == "stop":
        raise click.UsageError("the last answer was not cut, the model ended it; send a message")
    events = talk.chat.stream_continued(**talk.settings())
    return _turn(talk, events, "it stays as it was")


def _turn(talk: Conversation, events: Iterator[edgespec.Event], lost: str) -> bool:
    """Show an answer, and save the conversation however the answer ends. Return True if Ctrl-C
    ended the answer.

    lost: says what happens to the message if the answer ends before its first token.
    """
    try:
        return _answered(talk, events, lost)
    finally:
        _keep(talk)


def _keep(talk: Conversation, *, is_answering: bool = False) -> None:
    if talk.keeper:
        talk.keeper.keep(talk, is_answering=is_answering)


def _kept(talk: Conversation, events: Iterator[edgespec.Event]) -> Iterator[edgespec.Event]:
    """Yield the events of an answer, and save the conversation every few seconds, so that little is
    lost if the program is killed.
    """
    with contextlib.closing(events):  # type: ignore[type-var]
        kept_at = time.monotonic()
        for event in events:
            if event.type == "token":
                talk.unanswered = ""  # from now on the message is part of the chat
                talk.pictures = []
            yield event
            if event.type == "token" and time.monotonic() - kept_at >= kept_chats.EVERY_S:
                _keep(talk, is_answering=True)
                kept_at = time.monotonic()


def _answered(talk: Conversation, events: Iterator[edgespec.Event], lost: str) -> bool:
    """Show an answer, run the tool calls in it that the user allows, and let the model answer their
    results. Return True if Ctrl-C ended an answer.
    """
    params = talk.settings()
    completion, interrupted = _shown(talk, events, lost)
    most = tools.MOST_ROUNDS if tools.can_ask(talk.screen) else 1
    for _ in range(most):
        if interrupted or completion is None or not completion.tool_calls:
            return interrupted
        results, interrupted = tools.results(talk, completion.tool_calls)
        n_messages = len(talk.chat.messages)
        try:
            if not interrupted:
                events = talk.chat.stream_results(results, **params)
                completion, interrupted = _shown(talk, events, _KEPT)
        finally:
            if len(talk.chat.messages) == n_messages:  # no answer: keep the results all the same
                talk.chat.add_results(results)
    if completion and completion.tool_calls and not interrupted:
        why = f"{most} answers in a row made calls" if most > 1 else "there is no terminal to ask"
        talk.screen.remark(f"{why}: the calls of the last answer were not run")
    return interrupted


def _shown(
    talk: Conversation, events: Iterator[edgespec.Event], otherwise: str
) -> tuple[edgespec.Completion | None, bool]:
    """Show an answer and its figures; return it, and True if Ctrl-C ended it.

    otherwise: says what happens to the message if the answer ends before its first token.
    """
    from edgespec.device import LoadMeter

    meter = LoadMeter()
    with TextSink(talk.screen) as sink:
        completion, interrupted = play(talk.engine, _kept(talk, events), sink)
    has_begun = completion and (completion.token_ids or completion.finish_reason != "cancelled")
    if completion and has_begun:
        talk.count(completion)
        if sink.n_calls > len(completion.tool_calls):
            talk.screen.remark("a call of a tool was begun and cut; -n allows longer answers")
        if not talk.quiet:
            reason = completion.stats.speculation
            line = figures(completion, others_of(meter), why=reason != talk.said_why)
            is_cut = completion.finish_reason in ("length", "time_limit", "cancelled")
            talk.screen.remark(line + (" · /continue goes on" if is_cut else ""))
            if completion.token_ids and not completion.stats.num_draft_tokens:
                talk.said_why = reason
            if talk.totals["answers"] == 1:
                talk.screen.remark(f"sampling: {talk.sampled()}")
            if said := advice(completion):
                talk.screen.remark(said)
            if told := talk.suggestion():
                talk.screen.remark(told)
    if completion and not completion.token_ids:
        talk.screen.remark(f"the answer had not begun: {otherwise}")
    return completion, interrupted
