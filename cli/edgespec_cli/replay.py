"""The commands `edgespec bench record` and `replay`: record answers, and try policies on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup

from . import errors
from .arguments import model_arguments
from .measuring import (
    Progress,
    check_writable,
    chosen_questions,
    n_predict_option,
    question_options,
    until_stopped,
    write_whole,
)
from .options import FILE, model_options, option, pass_params, policy_option
from .parameters import SpecType
from .render import say, say_json, status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgespec.bench.traces import Trace


@cloup.command()
@cloup.option_group(
    "Replay",
    option(
        "--traces",
        type=FILE,
        metavar="FILE",
        show_default="those that come with edgespec",
        help="A file of answers that `edgespec bench record` wrote.",
    ),
    option(
        "--spec-type",
        type=SpecType(),
        default="auto",
        help="The methods that draft tokens, as for `edgespec run`.",
    ),
    policy_option,
    option(
        "--profile", multiple=True, help="Compute only for this device; can be given several times."
    ),
    option(
        "--fixed/--no-fixed",
        default=True,
        help="Also find the fixed setting that would have been the best; this takes most of the "
        "time.",
    ),
)
@cloup.option_group(
    "Output",
    option("--json", "as_json", is_flag=True, help="Print a JSON object on each line."),
)
def replay(
    as_json: bool,
    traces: Path | None,
    spec_type: str,
    policy: str | None,
    profile: tuple[str, ...],
    fixed: bool,
) -> None:
    """Compute the gain of speculation on other devices.

    The gain is computed from recorded answers. No model runs: the time is computed from a profile
    of each device, so the result is exact. The devices are CPUs with measured profiles and GPUs
    with invented ones.
    """
    from edgespec.bench import replay as replays
    from edgespec.bench import traces as recorded
    from edgespec.bench.trace_model import dense
    from edgespec.config import did_you_mean

    known = replays.shipped_profiles() | replays.shipped_profiles(raw=True)
    for name in profile:
        if name not in known:
            raise click.UsageError(f"unknown profile {name!r}; {did_you_mean(name, list(known))}")
    chosen = {name: known[name] for name in profile or known}
    answers = dense(recorded.load(traces)) if traces else replays.shipped_traces()
    with errors.told_in_json(as_json), status() as line:
        progress = Progress(line, "settings")
        rows = replays.table(
            answers,
            chosen,
            method=spec_type,
            policy=policy or "auto",
            fixed=fixed,
            progress=progress,
        )
        table = list(rows)
    if not as_json:
        _matrix(table)
        return
    for row in table:
        say_json(row, indent=None)


def _matrix(rows: list[dict[str, Any]]) -> None:
    """Print the speedups: a row for each device and policy, a column for each category."""
    from statistics import geometric_mean

    categories = list(dict.fromkeys(row["category"] for row in rows))
    width = max(len(row["profile"]) + len(row["policy"]) for row in rows) + 2
    say("Times as fast as without speculation; mean is the geometric mean.")
    say(" " * width + " ".join([*categories, " mean"]))
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row["profile"], row["policy"]), []).append(row["speedup"])
    for (profile, policy), values in groups.items():
        if policy != "plain":
            cells = zip([*categories, " mean"], [*values, geometric_mean(values)], strict=True)
            figures = " ".join(f"{value:{len(title)}.2f}" for title, value in cells)
            say(f"{profile} {policy}".ljust(width) + figures)
    for policy in dict.fromkeys(policy for _, policy in groups if policy != "plain"):
        if all(
            value == 1 for (_, own), values in groups.items() if own == policy for value in values
        ):
            say(f"{policy} never drafted")


@cloup.command()
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@cloup.option_group("Questions", *question_options, n_predict_option(160))
@model_options
@pass_params
def record(ctx: click.Context) -> int:
    """Record answers and the likeliest tokens of both models.

    The likeliest tokens are recorded at every position of an answer. OUTPUT is the file to write,
    for `edgespec bench replay --traces`. -m and -md name the two models. The temperature of the
    answers is 0.
    """
    from edgespec.bench import traces
    from edgespec.loading.drafts import pair

    params = ctx.params
    arguments = model_arguments(params)
    if not params["model"] or arguments["draft"] in (None, "auto"):
        raise click.UsageError("recording needs two models: give -m and -md")
    check_writable(params["output"])
    questions = chosen_questions(params)
    with pair(params["model"], **arguments) as (target, draft), status() as line:
        progress = Progress(line, "questions")

        def recording() -> Iterator[Trace]:
            for done, question in enumerate(questions):
                progress(done, len(questions))
                yield from traces.record_question(target, draft, question, params["n_predict"])

        recorded, code = until_stopped(recording(), line, progress)
    write_whole(params["output"], traces.packed(recorded))
    say(f"{len(recorded)} answers in {params['output']}", err=True)
    return code
