"""The command `edgespec bench peers`: compare other runtimes with this one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup

from .arguments import engine_arguments, forget_by_default, read_anew_by_default
from .loading import model_reference, opened
from .measuring import (
    Progress,
    beside_others,
    chosen_questions,
    header,
    n_predict_option,
    output_form,
    output_options,
    question_options,
    results,
    tell_missing,
    uninterrupted,
    until_stopped,
    whole_report,
)
from .options import model_options, option, pass_params
from .render import say, say_lines, status

if TYPE_CHECKING:
    import edgespec
    from edgespec.bench.peers import Mode, Peer, Weights


@cloup.command()
@cloup.option_group("Questions", *question_options, n_predict_option(256))
@cloup.option_group("Output", *output_options)
@cloup.option_group(
    "Other runtimes",
    option(
        "--peer-python",
        default=sys.executable,
        show_default="this one",
        metavar="PATH",
        help="A Python interpreter that has xllamacpp or onnxruntime-genai installed.",
    ),
)
@model_options
@pass_params
def peers(ctx: click.Context) -> int:
    """Measure edgespec and other runtimes in the same run.

    All get the same prompts and weights. For a GGUF file, the others are llama.cpp's server with
    each of its methods of speculation (Python package xllamacpp) and llama-cpp-python's prompt
    lookup. For an ONNX model, the other is onnxruntime-genai without drafts, with its own lookup,
    and with a draft model. Runtimes that cannot run here are named and left out.
    """
    from edgespec.bench import peers as others
    from edgespec.bench import reports, runner, summary
    from edgespec.bench.answers import whole

    params, form = ctx.params, output_form(ctx)
    tell_missing()
    questions = chosen_questions(params)
    forget_by_default(params)
    read_anew_by_default(params)
    with whole_report(form), beside_others() as cores, opened(params, measured=True) as engine:
        model, draft = _paths(params, engine)
        modes = list(others.modes(model, draft))
        threads = engine.describe()["model"]["n_threads"]
        weights = others.Weights(model, draft, engine.n_ctx, threads)
        with _running(modes, weights, params["peer_python"]) as started, status() as line:
            versions = ", ".join(sorted({peer.version for peer in started}))
            progress = Progress(line, "questions")
            running = runner.run(
                engine,
                questions,
                runner.RunOptions(max_tokens=params["n_predict"]),
                progress=progress,
                peers=started,
            )
            answers, code = until_stopped(running, line, progress)
            answers = whole(answers)
            about = (
                header(engine)
                | {"peers": versions}
                | results(engine, answers, progress, line)
                | cores()
            )
    settings = {mode.name: dict(mode.settings) for mode in modes}
    with uninterrupted():
        rows = [row | {"settings": settings.get(row["mode"])} for row in summary.summary(answers)]
        say_lines(reports.report(about, rows, form))
    return code


def _paths(params: dict[str, Any], engine: edgespec.Engine) -> tuple[Path, Path | None]:
    """Return the files of the engine's target and draft model.

    The second is None if there is no draft model, or a trained head, which other runtimes cannot
    use.
    """
    import edgespec
    from edgespec import hub
    from edgespec.loading.drafts import draft_path
    from edgespec.loading.models import is_head

    reference = model_reference(params)
    model = hub.resolve(reference)
    assert model is not None
    if not engine.describe()["draft"]:
        return model, None
    asked = engine_arguments(params)["draft"]
    draft = draft_path(reference, asked, edgespec.EngineConfig())
    return model, None if draft and (draft == model or is_head(draft)) else draft


@contextlib.contextmanager
def _running(modes: list[Mode], weights: Weights, peer_python: str) -> Iterator[list[Peer]]:
    """Yield the other runtimes that could be started here; end them when the block ends. A message
    on stderr names each one that could not be started.
    """
    import edgespec
    from edgespec.bench.peers import Peer

    with contextlib.ExitStack() as stack:
        started = []
        for mode in modes:
            ours = mode.runtime == "llama-cpp-python"
            python = sys.executable if ours else peer_python
            try:
                peer = Peer(mode, weights, python)
            except edgespec.EngineMissing as error:
                say(f"left out: {error}", err=True)
            else:
                started.append(stack.enter_context(contextlib.closing(peer)))
        yield started
