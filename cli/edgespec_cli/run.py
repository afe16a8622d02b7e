"""`edgespec run`: one prompt, one answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from . import errors, options
from .answer import JsonSink, TextSink, play
from .loading import opened
from .prompt import decoded, piped_text
from .render import Screen, figures

if TYPE_CHECKING:
    import edgespec


@click.command(cls=options.Command)
@click.argument("prompt", required=False)
@click.option(
    "-f", "--file", type=click.File("rb"), cls=options.Option, section="Prompt",
    help="Read the prompt from a file, - for stdin.",
)  # fmt: skip
@click.option(
    "--raw", is_flag=True, cls=options.Option, section="Prompt",
    help="Give the prompt to the model as it is, without the chat template.",
)  # fmt: skip
@click.option(
    "--prompt-ids", type=options.IdsType(), cls=options.Option, section="Prompt",
    help="Token ids such as 1,2,3 instead of a text.",
)  # fmt: skip
@options.generation_options
@click.option(
    "--json", is_flag=True, cls=options.Option, section="Output",
    help="One JSON object a line: prefill, notice, token; the last is done, or error.",
)  # fmt: skip
@click.option(
    "--logprobs", type=int, cls=options.Option, section="Output", metavar="N",
    help="With --json: log-probability of each token and of the N likeliest.",
)  # fmt: skip
@options.pass_params
def run(ctx: click.Context) -> int:
    """Answer one PROMPT and leave.

    The prompt is the argument, a file (-f) or what is piped in; with an argument and one of
    the others: the argument, an empty line, the text. The answer goes to stdout as it comes,
    figures to stderr.
    """
    screen = Screen(show_drafts=ctx.params["show_drafts"])
    if not ctx.params["json"]:
        return _text(ctx, screen)
    sink = JsonSink(screen)
    try:
        return _json(ctx, sink)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        sink.emit("error", error="KeyboardInterrupt", message="interrupted")
        raise
    except Exception as error:
        sink.emit("error", error=type(error).__name__, message=errors.describe(error))
        raise


def _text(ctx: click.Context, screen: Screen) -> int:
    if ctx.params["logprobs"] is not None and not _from_environment(ctx, "logprobs"):
        raise click.UsageError("--logprobs needs --json to be shown")
    prompt, sampling = _prompt(ctx), options.sampling_arguments(ctx.params)
    with opened(ctx.params) as engine:
        events = _events(engine, prompt, ctx.params, sampling)
        with TextSink(screen) as sink:
            completion, interrupted = play(engine, events, sink)
    if completion and not ctx.params["quiet"]:
        screen.remark(figures(completion), stderr=True)
    return errors.INTERRUPTED if interrupted else 0


def _json(ctx: click.Context, sink: JsonSink) -> int:
    prompt, sampling = _prompt(ctx), options.sampling_arguments(ctx.params)
    with opened(ctx.params) as engine:
        events = _events(engine, prompt, ctx.params, sampling)
        _, interrupted = play(engine, events, sink)
    return errors.INTERRUPTED if interrupted else 0


def _events(
    engine: edgespec.Engine,
    prompt: str | list[int],
    params: dict[str, Any],
    sampling: dict[str, Any],
) -> Iterator[edgespec.Event]:
    if isinstance(prompt, list) or params["raw"]:
        return engine.stream(prompt, **sampling)
    return engine.chat(params["system"]).stream(str(prompt), **sampling)


def _prompt(ctx: click.Context) -> str | list[int]:
    """The prompt that the options ask for; reads stdin only if nothing else was named."""
    for first, second in (
        ("raw", "system"), ("prompt_ids", "system"), ("prompt_ids", "prompt"),
        ("prompt_ids", "file"),
    ):  # fmt: skip
        options.exclusive(ctx, first, second)
    params = ctx.params
    if params["prompt_ids"]:
        return list(params["prompt_ids"])
    parts = [_checked(params["prompt"] or "")]
    if params["file"]:
        parts.append(decoded(params["file"].read(), getattr(params["file"], "name", "the file")))
    else:
        parts.append(piped_text())
    text = "\n\n".join(part for part in parts if part.strip())
    if not text:
        raise click.UsageError(
            "there is no prompt: give one as an argument, with -f FILE, or pipe it in"
        )
    return text


def _checked(argument: str) -> str:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise click.UsageError(
            "the prompt is not valid UTF-8; check the terminal's locale"
        ) from None
    return argument


def _from_environment(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT
