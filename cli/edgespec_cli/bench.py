"""The command `edgespec bench`: what speculation gains on this device."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from .arguments import forget_by_default, read_anew_by_default, refuse_typed
from .loading import opened
from .measuring import (
    Progress,
    beside_others,
    check_writable,
    chosen_questions,
    header,
    n_predict_option,
    need_matplotlib,
    output_form,
    output_options,
    question_options,
    results,
    tell_missing,
    uninterrupted,
    until_stopped,
    whole_report,
    write_whole,
)
from .options import model_options, option, pass_params, speculation_options, verifier_options
from .parameters import NumbersType
from .peers import peers
from .render import say_lines, status
from .replay import record, replay


@cloup.group(invoke_without_command=True)
@cloup.option_group(
    "Questions",
    *question_options,
    option(
        "--temps",
        type=NumbersType(float, "temperatures such as 0,0.8"),
        default="0",
        metavar="T,T",
        help="Temperatures to measure; those above 0 use top-k 40 and top-p 0.95.",
    ),
    n_predict_option(256),
    option(
        "-r",
        "--repeats",
        type=click.IntRange(1),
        default=1,
        help="How many times to ask all questions.",
    ),
)
@cloup.option_group(
    "Output",
    *output_options,
    option(
        "--plot",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="PNG",
        help="Also draw the speedups into this file.",
    ),
)
@speculation_options
@verifier_options
@model_options
@pass_params
def bench(ctx: click.Context) -> int:
    """Measure how much faster answers are with speculation.

    Each question is answered with speculation and without, one after the other. The prompt is read
    once and is then in the cache for both answers, so only the answers are timed. What a draft
    model has to read counts as a cost of speculation. Each speedup has a 95% interval, from a
    bootstrap over at least three answers. The speedup over all categories is below the table. json,
    jsonl and csv have every column. With --spec-type none, only plain answers are measured.
    """
    if command := ctx.invoked_subcommand:
        why = f"must come after `{command}`, which does not see it there"
        refuse_typed(ctx, ctx.params, why)
        return 0
    from edgespec.bench import reports, runner, summary
    from edgespec.bench.answers import whole

    params, picture, form = ctx.params, ctx.params["plot"], output_form(ctx)
    if picture:
        if params["spec_type"] == "none":
            raise click.UsageError(
                "--plot draws speedups, and with --spec-type none there are none"
            )
        check_writable(picture)
        need_matplotlib()
        reports.check_picture(picture)
    tell_missing()
    forget_by_default(params)
    read_anew_by_default(params)
    questions = chosen_questions(params)
    modes = runner.MODES[:1] if params["spec_type"] == "none" else runner.MODES
    with (
        whole_report(form),
        beside_others() as others,
        opened(params, measured=True) as engine,
        status() as line,
    ):
        progress = Progress(line, "questions")
        running = runner.run(
            engine,
            questions,
            runner.RunOptions(params["temps"], params["n_predict"], params["repeats"], modes),
            progress=progress,
        )
        answers, code = until_stopped(running, line, progress)
        answers = whole(answers)
        about = header(engine) | results(engine, answers, progress, line) | others()
    with uninterrupted():
        rows = summary.summary(answers)
        say_lines(reports.report(about, rows, form))
        if picture:
            write_whole(picture, reports.plot(picture.suffix[1:].lower(), about, rows))
    return code


for command in (peers, record, replay):
    bench.add_command(command)
