"""The command `edgespec chat`: it reads a terminal, or the lines of a pipe."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup

from . import errors, options, tools
from .answer import TextSink, play
from .arguments import chat_arguments, sampling_arguments
from .commands import COMMANDS, Leave, perform
from .conversation import Conversation, load
from .loading import measure_afterwards, model_reference, opened, others_of, suggestion
from .prompt import decoded, line_reader, no_echo, piped_lines
from .render import Screen, figures, is_terminal

if TYPE_CHECKING:
    import edgespec

HINT = "Ctrl-D or /exit leaves, /help lists the commands"
_KEPT = "the model reads the results with your next message"


@cloup.command()
@cloup.option_group(
    "Prompt",
    options.system_option,
    options.reasoning_option,
    options.option(
        "--load", metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Continue a chat that /save wrote, with its system message and sampling.",
    ),
)  # fmt: skip
@options.generation_options
@cloup.option_group("Output", *options.display_options)
@options.pass_params
def chat(ctx: click.Context) -> int:
    """Talk with a model.

    Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D leaves, and /help
    lists the commands of the chat. Without a terminal each line of stdin is a message, and
    stdout holds the answers alone.
    """
    return converse(ctx)


def converse(ctx: click.Context) -> int:
    """Chat with the model that the options of `chat` or `run` ask for; return the exit code."""
    sampling = sampling_arguments(ctx.params)
    interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    with opened(ctx.params) as engine:
        talk = Conversation(
            engine=engine,
            chat=engine.chat(ctx.params["system"], **chat_arguments(ctx.params)),
            model=_model_name(ctx.params, engine),
            sampling=sampling,
            screen=Screen(show_drafts=ctx.params["show_drafts"], clean=True),
            quiet=ctx.params["quiet"],
            suggestion=functools.partial(suggestion, engine, ctx.params),
        )
        if saved := ctx.params.get("load"):
            for remark in load(talk, saved):
                talk.screen.remark(remark)
        return _on_terminal(talk) if interactive else _piped(talk)


def _model_name(params: dict[str, Any], engine: edgespec.Engine) -> str:
    if remote := engine.describe().get("verifier"):
        return f"{remote['model'] or 'not connected yet'} at {remote['url']}"
    return model_reference(params)


def _on_terminal(talk: Conversation) -> int:
    talk.screen.remark(f"{talk.model} · {talk.summary()} · {HINT}")
    for line in _typed(line_reader(COMMANDS), talk.screen):
        try:
            with no_echo():
                take(talk, line)
        except Leave:
            break
        except KeyboardInterrupt:  # the second one: the answer did not end by itself
            talk.screen.remark("interrupted")
    return 0


def _typed(read: Callable[[], str], screen: Screen) -> Iterator[str]:
    """Yield what the user types, until Ctrl-D."""
    while True:
        try:
            yield read()
        except KeyboardInterrupt:
            screen.remark(HINT)
        except EOFError:
            return


def _piped(talk: Conversation) -> int:
    """Take each line of stdin; return the exit code. Ctrl-C ends the answer and the program."""
    code = 0
    for name, line in piped_lines():
        try:
            failed, interrupted = take(talk, decoded(line, name))
        except Leave:
            break
        except click.UsageError as error:  # not UTF-8: the next line may be
            errors.line(error.format_message())
            failed, interrupted = errors.USAGE, False
        if interrupted:
            return errors.INTERRUPTED
        code = max(code, failed)
    measure_afterwards(talk.engine)
    return code


def take(talk: Conversation, line: str) -> tuple[int, bool]:
    """Run one line, a command or a message; return an exit code and whether Ctrl-C ended it.

    Errors are shown, and the conversation goes on.
    """
    text = line.strip()
    try:
        if text.startswith("/") and not text.startswith("//"):
            perform(talk, text)
        elif text:
            return 0, answer(talk, text[1:] if text.startswith("//") else line.strip("\n"))
    except (BrokenPipeError, Leave):
        raise
    except Exception as error:
        code = errors.known(error)
        if code is None:  # a bug: the conversation until then is kept
            return errors.report(error, debug=errors.wants_debug()), False
        errors.line(errors.describe(error))
        return code, False
    return 0, False


def answer(talk: Conversation, text: str) -> bool:
    """Send a message and show the answer; return whether Ctrl-C ended it.

    Calls in it are shown and, where the user allows it, run; then the model goes on.
    """
    params = talk.sampling | ({} if talk.speculate else {"disable_spec_decode": True})
    lost = "your message is not part of the chat"
    completion, interrupted = _shown(talk, talk.chat.stream(text, **params), lost)
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
            if len(talk.chat.messages) == n_messages:  # what was run was run
                talk.chat.add_results(results)
    if completion and completion.tool_calls and not interrupted:
        why = f"{most} answers in a row made calls" if most > 1 else "there is no terminal to ask"
        talk.screen.remark(f"{why}: the calls of the last answer were not run")
    return interrupted


def _shown(
    talk: Conversation, events: Iterator[edgespec.Event], otherwise: str
) -> tuple[edgespec.Completion | None, bool]:
    """Show an answer and its figures; return it, and whether Ctrl-C ended it.

    otherwise: what becomes of that which was sent, if the answer did not begin.
    """
    from edgespec.device import LoadMeter

    meter = LoadMeter()
    with TextSink(talk.screen) as sink:
        completion, interrupted = play(talk.engine, events, sink)
    if completion:
        talk.count(completion)
        if sink.n_calls > len(completion.tool_calls):
            talk.screen.remark("a call of a tool was begun and cut; -n allows longer answers")
        if not talk.quiet:
            talk.screen.remark(figures(completion, others_of(meter)))
            if talk.totals["answers"] == 1:
                talk.screen.remark(f"sampling: {talk.sampled()}")
            if told := talk.suggestion():
                talk.screen.remark(told)
        if not completion.token_ids:
            talk.screen.remark(f"the answer had not begun: {otherwise}")
    return completion, interrupted
