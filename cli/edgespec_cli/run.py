"""The command `edgespec run`: answer one prompt, or chat if there is no prompt."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import cloup

from . import errors, options
from .answer import JsonSink, TextSink, play
from .arguments import (
    FORMS,
    endless_repetition,
    exclusive,
    from_environment,
    is_typed,
    reasoning_arguments,
    refuse_typed,
    sampling_arguments,
)
from .chat import converse
from .habits import refuse_bare
from .loading import measure_afterwards, opened, others_of, suggestion
from .options import option
from .parameters import ModelType, NumbersType
from .prompt import pictures, piped_text, read
from .render import Screen, advice, figures, is_terminal

if TYPE_CHECKING:
    import edgespec

_MOST_TOKENS = 2048  # most tokens of an answer if -n is not given


@cloup.command()
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]", type=ModelType())
@cloup.option_group(
    "Prompt",
    option("-p", "--prompt", metavar="TEXT", help="The prompt, instead of the argument PROMPT."),
    option("-f", "--file", type=click.File("rb"), help="Read the prompt from a file, - for stdin."),
    option(
        "--raw",
        is_flag=True,
        help="Give the prompt to the model as it is, without the chat template.",
    ),
    option(
        "--prompt-ids",
        type=NumbersType(int, "token ids such as 1,2,3"),
        metavar="IDS",
        help="The prompt as token ids, such as 1,2,3.",
    ),
    option(
        "--prediction",
        type=click.File("rb"),
        metavar="FILE",
        help="Draft from this file, because the answer may repeat much of it, as when a file is "
        "edited. The answer stays the same.",
    ),
    options.image_option,
    options.system_option,
    options.reasoning_option,
)
@options.generation_options
@options.answer_options
@cloup.option_group(
    "Output",
    *options.display_options,
    option(
        "--json",
        is_flag=True,
        help="Print a JSON object on each line. Its type is prefill, notice or token while the "
        "answer comes, and done or error at the end.",
    ),
    option(
        "--logprobs",
        type=int,
        metavar="N",
        help="With --json: add the log-probability of each token and of the N most likely ones.",
    ),
)
@options.pass_params
def run(ctx: click.Context) -> int:
    """Answer one prompt and exit; without a prompt, start a chat.

    PROMPT can also come from -p, a file (-f) or a pipe. If a file or a pipe is given as well as a
    prompt, the model reads the prompt, an empty line, and then the text of the file or the pipe.
    The answer goes to stdout as it comes, figures go to stderr. MODEL means the same as -m MODEL.
    """
    read_words(ctx)
    if _is_chat(ctx.params):
        return converse(ctx)
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


def read_words(ctx: click.Context) -> None:
    """Split the arguments into the model, unless -m was typed, and the prompt.

    Raises UsageError if the first word looks like a model, but there is no such model.
    """
    params, words = ctx.params, list(ctx.params.pop("words"))
    if words and not is_typed(ctx, "model") and _is_model(words):
        params["model"] = words.pop(0)
    if words and is_typed(ctx, "prompt"):
        raise click.UsageError("there are two prompts: an argument and -p; leave one out")
    params["prompt"] = " ".join(words) or params["prompt"]


def _is_model(words: list[str]) -> bool:
    """Return True if the first argument is a model, False if it begins the prompt.

    The first of several arguments must be a model. A single argument is taken for a model if it
    looks like the name of one: a letter first, a digit later, no blanks. Raises UsageError if there
    is no such model.
    """
    from edgespec import ModelNotFound, hub

    first = words[0]
    if hub.names_model(first):
        return True
    if len(words) == 1 and not re.fullmatch(r"[A-Za-z](?=\S*\d)[\w.:/-]*", first):
        return False
    try:
        return hub.resolve(first) is not None
    except ModelNotFound as error:
        raise click.UsageError(
            f"{str(error).rstrip('.')}. If it belongs to the prompt, put the whole prompt in "
            "quotes after -p"
        ) from None


def _is_chat(params: dict[str, Any]) -> bool:
    """Return True if no prompt is given, no option asks for a single answer, and stdin and stdout
    are a terminal.
    """
    given = ("prompt", "file", "prompt_ids", "raw", "json", "logprobs", "prediction", *FORMS)
    return (
        not any(params[name] for name in given)
        and is_terminal(sys.stdin)
        and is_terminal(sys.stdout)
    )


def _text(ctx: click.Context, screen: Screen) -> int:
    from edgespec.device import LoadMeter

    if ctx.params["logprobs"] is not None and not from_environment(ctx, "logprobs"):
        raise click.UsageError("--logprobs needs --json, because only JSON shows them")
    prompt, sampling = _message(ctx), _bounded(ctx)
    with opened(ctx.params) as engine:
        events, meter = _events(engine, prompt, ctx.params, sampling), LoadMeter()
        with TextSink(screen) as sink:
            completion, interrupted = play(engine, events, sink)
        if told := _cut_by_default(completion, ctx.params):
            screen.remark(f"note: {told}", stderr=True)
        if completion and not ctx.params["quiet"]:
            screen.remark(figures(completion, others_of(meter)), stderr=True)
            if completion.token_ids:
                told = engine.sampling.describe(sampling)
                screen.remark(f"sampling: {told}", stderr=True)
            if said := advice(completion):
                screen.remark(said, stderr=True)
            if told := suggestion(engine, ctx.params):
                screen.remark(told, stderr=True)
        if not interrupted:
            measure_afterwards(engine)
    return _exit_code(completion, interrupted, sampling)


def _json(ctx: click.Context, sink: JsonSink) -> int:
    prompt, sampling = _message(ctx), _bounded(ctx)
    with opened(ctx.params) as engine:
        events = _noticed(_events(engine, prompt, ctx.params, sampling), ctx.params)
        completion, interrupted = play(engine, events, sink)
        if not interrupted:
            measure_afterwards(engine)
    return _exit_code(completion, interrupted, sampling)


def _bounded(ctx: click.Context) -> dict[str, Any]:
    """Return the sampling of an answer, with max_tokens set to _MOST_TOKENS if -n is not given.

    `ctx.params` does not change: its max_tokens stays None if the user gave no bound.
    """
    default = {} if ctx.params["max_tokens"] is not None else {"max_tokens": _MOST_TOKENS}
    return default | sampling_arguments(ctx.params) | endless_repetition(ctx)


def _cut_by_default(completion: edgespec.Completion | None, params: dict[str, Any]) -> str:
    """Return a note on how to get a longer answer if the default bound cut this one, else ""."""
    is_default = params["max_tokens"] is None
    if not is_default or completion is None or completion.finish_reason != "length":
        return ""
    return (
        f"the answer was cut at {_MOST_TOKENS} tokens, the bound of `edgespec run` without -n: "
        f"-n {2 * _MOST_TOKENS} allows more, -n -1 as many as the context holds"
    )


def _noticed(events: Iterator[edgespec.Event], params: dict[str, Any]) -> Iterator[edgespec.Event]:
    """Yield the events of an answer. If the default bound cut the answer, yield a notice before the
    last event.
    """
    import edgespec

    for event in events:
        if told := _cut_by_default(event.completion, params):
            yield edgespec.Event("notice", text=told)
        yield event


def _exit_code(
    completion: edgespec.Completion | None, interrupted: bool, sampling: dict[str, Any]
) -> int:
    """Return the exit code of an answer. Raises EdgeSpecError if the answer was cut although it had
    to follow a form, such as a JSON schema.
    """
    import edgespec

    if interrupted:
        return errors.INTERRUPTED
    reason = completion.finish_reason if completion else "cancelled"
    if edgespec.SamplingParams(**sampling).is_constrained and reason != "stop":
        assert completion
        raise edgespec.EdgeSpecError(
            f"the answer was cut after {len(completion.token_ids)} tokens ({reason}) and is not "
            "complete; allow more tokens with -n"
        )
    return 0


def _events(
    engine: edgespec.Engine,
    prompt: str | list[Any],
    params: dict[str, Any],
    sampling: dict[str, Any],
) -> Iterator[edgespec.Event]:
    import edgespec

    prediction = ""
    if file := params["prediction"]:
        prediction = read(file, getattr(file, "name", "the prediction"))
    if params["prompt_ids"] or params["raw"]:
        return engine.stream(prompt, prediction=prediction, **sampling)
    chat = engine.chat(params["system"])
    sampling = sampling | reasoning_arguments(params, chat)
    try:
        return chat.stream(prompt, prediction=prediction, **sampling)
    except edgespec.ContextFull:
        if params["max_tokens"] is not None:
            raise
        # the prompt leaves less of the context than the default bound, so the bound is dropped
        return chat.stream(prompt, prediction=prediction, **sampling | {"max_tokens": None})


def _message(ctx: click.Context) -> str | list[Any]:
    """Return the prompt as text or as token ids; with pictures, as a list of them and the text.
    Raises UsageError and ConfigError, before a model is loaded.
    """
    prompt = _prompt(ctx)
    if not ctx.params["images"]:
        return prompt
    return [*pictures(ctx.params), str(prompt)]


def _prompt(ctx: click.Context) -> str | list[int]:
    """Return the prompt as text or as token ids. Piped text is added to an argument; stdin is not
    read if --prompt-ids or a file is given.
    """
    for first, second in (
        ("raw", "system"), ("prompt_ids", "system"), ("prompt_ids", "prompt"),
        ("prompt_ids", "file"), ("raw", "images"), ("prompt_ids", "images"),
    ):  # fmt: skip
        exclusive(ctx, first, second)
    params = ctx.params
    if params["raw"] or params["prompt_ids"]:
        refuse_typed(ctx, ["reasoning_budget"], "needs the chat template; leave it out")
    if params["prompt_ids"]:
        return list(params["prompt_ids"])
    parts = [_checked(params["prompt"] or "")]
    if params["file"]:
        parts.append(read(params["file"], getattr(params["file"], "name", "the file")))
    else:
        parts.append(piped_text())
    parts = [part for part in parts if part.strip()]
    if len(parts) == 1:
        refuse_bare(ctx, parts[0])
    text = "\n\n".join(parts)
    if not text:
        raise click.UsageError(
            "there is no prompt: give one as an argument, with -p TEXT or -f FILE, or pipe it in"
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
