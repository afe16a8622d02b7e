"""`edgespec chat`: turns on a terminal, or lines of a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from . import errors, options
from .answer import TextSink, play
from .commands import COMMANDS, Leave, perform
from .conversation import Conversation
from .loading import opened
from .prompt import decoded, line_reader, piped_lines
from .render import Screen, figures, is_terminal

if TYPE_CHECKING:
    import edgespec

HINT = "Ctrl-D or /exit leaves, /help says what there is"


@click.command(cls=options.Command)
@options.generation_options
@options.pass_params
def chat(ctx: click.Context) -> int:
    """Talk with a model; /help lists the commands there.

    Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D leaves. Without
    a terminal each line of stdin is a turn and the answers alone go to stdout.
    """
    sampling = options.sampling_arguments(ctx.params)
    interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    with opened(ctx.params) as engine:
        talk = Conversation(
            engine=engine,
            chat=engine.chat(ctx.params["system"]),
            model=_model_name(ctx.params, engine),
            sampling=sampling,
            screen=Screen(show_drafts=ctx.params["show_drafts"], clean=True),
            quiet=ctx.params["quiet"],
        )
        return _on_terminal(talk) if interactive else _piped(talk)


def _model_name(params: dict[str, Any], engine: edgespec.Engine) -> str:
    from edgespec.hub import catalogue

    if far := engine.describe().get("verifier"):
        return f"{far['model'] or 'nobody yet'} at {far['url']}"
    return params["model"] or catalogue.default_model


def _on_terminal(talk: Conversation) -> int:
    talk.screen.remark(f"{talk.model} · {talk.summary()} · {HINT}")
    for line in _typed(line_reader(COMMANDS), talk.screen):
        try:
            take(talk, line)
        except Leave:
            break
        except KeyboardInterrupt:  # the second one: the answer did not end by itself
            talk.screen.remark("interrupted")
    return 0


def _typed(read: Callable[[], str], screen: Screen) -> Iterator[str]:
    """What the user types until Ctrl-D."""
    while True:
        try:
            yield read()
        except KeyboardInterrupt:
            screen.remark(HINT)
        except EOFError:
            return


def _piped(talk: Conversation) -> int:
    """0 if every line went well. Ctrl-C ends an answer, and then the program."""
    code = 0
    for name, line in piped_lines():
        try:
            failed, interrupted = take(talk, decoded(line, name))
        except Leave:
            break
        except click.UsageError as error:  # not text: the next line may be
            errors.line(error.format_message())
            failed, interrupted = errors.USAGE, False
        if interrupted:
            return errors.INTERRUPTED
        code = max(code, failed)
    return code


def take(talk: Conversation, line: str) -> tuple[int, bool]:
    """One line: a command or a turn. An exit code, and whether Ctrl-C ended it.

    Errors that can happen to users are shown, and the conversation goes on.
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
        if code is None:  # a bug: what was said is still there
            debug = click.get_current_context().find_root().params.get("debug")
            return errors.report(error, debug=bool(debug)), False
        errors.line(errors.describe(error))
        return code, False
    return 0, False


def answer(talk: Conversation, text: str) -> bool:
    """One turn; whether Ctrl-C ended it."""
    params = talk.sampling | ({} if talk.speculate else {"disable_spec_decode": True})
    with TextSink(talk.screen) as sink:
        completion, interrupted = play(talk.engine, talk.chat.stream(text, **params), sink)
    if completion:
        talk.count(completion)
        if not talk.quiet:
            talk.screen.remark(figures(completion))
        if not completion.token_ids:
            talk.screen.remark("the answer had not begun: your message is not part of the chat")
    return interrupted
