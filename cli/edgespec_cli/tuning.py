"""The commands `edgespec tune` and `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import cloup

from .arguments import advised, model_arguments, refuse_typed
from .errors import FAILURE, told_in_json
from .loading import cannot_keep_costs, fetch_all, model_reference, verifier_arguments
from .measuring import tell_load
from .options import json_option, model_options, option, pass_params, verifier_options
from .render import counted, name, say, say_json, show, status, table

if TYPE_CHECKING:
    import edgespec

_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}
_LEVEL_WIDTH, _SUBJECT_WIDTH = len("problem"), len("remote speed")  # the longest texts
_SHOWN = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)  # widths that the table of times shows


@cloup.command()
@model_options
@cloup.option_group(
    "Tuning",
    option(
        "--budget",
        type=click.FloatRange(1, 86_400),
        default=25,
        metavar="SECONDS",
        help="Time for tuning, loading included. What does not fit is left out and listed.",
    ),
    option(
        "--busy",
        is_flag=True,
        help="Measure even while other programs use the cores, and keep only settings that are "
        "clearly faster. This is for devices on which such programs always run.",
    ),
    option(
        "--reset",
        is_flag=True,
        help="Measure nothing, but delete the tuned settings and the measured times of this model.",
    ),
)
@json_option
@pass_params
def tune(ctx: click.Context) -> int:
    """Find and keep the fastest settings for a model.

    The settings and the measured times are used whenever the model is loaded again. Options that
    you give, here or later, are never changed. Run this command while no other programs are busy.
    """
    import edgespec

    params = ctx.params
    if refusal := cannot_keep_costs():
        raise click.ClickException(f"nothing could be kept: {refusal}")
    arguments, model = model_arguments(params), model_reference(params)
    if params["reset"]:
        n = edgespec.forget(model)
        say(f"forgotten: {counted(n, 'file')} of what was tuned and measured of {model}")
        return 0
    fetch_all(params, model, arguments["draft"])
    if params["busy"]:
        tell_load()
    with told_in_json(params["as_json"]), status() as line:
        tuning = edgespec.tune(
            model, budget_s=params["budget"], keep_busy=params["busy"], progress=line.show,
            **arguments,
        )  # fmt: skip
    if params["as_json"]:
        say_json(tuning.to_dict())
    else:
        _show(tuning)
    return FAILURE if tuning.path is None else 0


def _show(tuning: edgespec.Tuning) -> None:
    if tuning.busy and tuning.profile is None:
        say(
            f"nothing was measured: other programs use {tuning.others:.1f} cores; stop them and "
            f"run it again, or {advised('tune', '--busy')} if they never stop",
            err=True,
        )
        return
    if tuning.verdict:
        say(tuning.verdict)
        say()
    say(f"{tuning.model}, {tuning.seconds:.0f} s")
    say()
    rows = [(c.setting, c.measured, _tried(c), c.why) for c in tuning.choices]
    titles = ("setting", "measured with", "tried: chosen", "why")
    table(titles, rows, drop=("measured with",), wrap=titles[1:])
    say()
    _show_costs(tuning)
    say(f"later loads:   {_later(tuning)}")
    if tuning.refused:
        say(f"not kept:      the measured times of {tuning.refused}")
    if tuning.left_out:
        say(
            f"left out:      {', '.join(tuning.left_out)}; a longer --budget may have time for more"
        )
    _show_formats(tuning)
    if tuning.busy:
        say(
            f"other programs used {tuning.others:.1f} cores meanwhile: run it again while nothing "
            f"else is running, or {advised('tune', '--busy')} if they never stop",
            err=True,
        )
    elif tuning.disturbed:
        say("the measured times varied a lot: run it again while nothing else is running", err=True)


def _show_costs(tuning: edgespec.Tuning) -> None:
    """Show the times of evaluations, and the largest speedup that drafts can give."""
    report = tuning.to_dict()
    if tuning.profile is None:
        return
    _show_widths(report["target"])
    say()
    depth = report["lookup"]["depth"]
    say(
        f"lookup drafts: at most {report['lookup']['speedup']:.1f} times as fast as without "
        f"(drafts of {counted(depth, 'token')}, all accepted)" if depth else
        "lookup drafts: slower than without even if all are accepted"
    )  # fmt: skip
    say(f"draft model:   {_draft(tuning, report)}")


def _show_formats(tuning: edgespec.Tuning) -> None:
    """Show a comparison of the model's files on disk, which differ in their number format."""
    if not tuning.formats:
        return
    say()
    rows = [
        (
            one.quantisation, f"{one.size / 1e9:.2f} GB", f"{one.ms:.1f}", f"{one.ms_wide:.1f}",
            f"{one.perplexity:.2f}",
            "–" if one.agreement is None else f"{one.agreement:.0%}",
        )
        for one in tuning.formats
    ]  # fmt: skip
    titles = ("file", "size", "ms a token", "ms for 4", "perplexity", "agrees with 16 bits")
    table(titles, rows, drop=("ms for 4", "size"), wrap=titles[-1:])
    say()
    say(f"recommended:   {tuning.recommendation}")


def _tried(choice: edgespec.Choice) -> str:
    """Return the values tried and the one chosen: `2 threads 33 ms, 1 thread 61 ms: 2 threads`."""
    tried = [f"{c.label} {c.ms:.3g} ms" if c.ms < 100 else f"{c.label} {c.ms:.0f} ms"
             for c in choice.candidates if c.n_repetitions]  # fmt: skip
    return f"{', '.join(tried)}: {choice.label}" if tried else choice.label


def _show_widths(target: dict[str, Any]) -> None:
    """Show the times of the target: for each cache length t(1) in ms, and t(n) of other widths n as
    multiples of t(1).
    """
    shown = [(i, n) for i, n in enumerate(target["widths"]) if n in _SHOWN]
    columns = (target[key] for key in ("lengths", "ms", "ratio", "guessed"))
    rows = [
        (
            str(length), f"{'~' * guessed[0]}{ms[0]:.1f}",
            *(f"{'~' * guessed[i]}{ratio[i]:.2f}" for i, _ in shown[1:]),
        )
        for length, ms, ratio, guessed in zip(*columns, strict=True)
    ]  # fmt: skip  # fmt: skip
    ratios = [f"t({n})/t(1)" for _, n in shown[1:]]
    drop = [title for n in (24, 12, 6, 5, 3, 16, 2) if (title := f"t({n})/t(1)") in ratios]
    table(("cached", "t(1) ms", *ratios), rows, drop=drop)
    if any(map(any, target["guessed"])):
        say("~: a guess, no measured time: more tokens, or more before them, took less then")


def _draft(tuning: edgespec.Tuning, report: dict[str, Any]) -> str:
    best = report["draft_speedup"]
    if best is None:
        return "none"
    each = report["draft_model"]["ms"][0][0]
    cost = f"{tuning.draft or ''} takes {each:.1f} ms a token"
    if not best["depth"]:
        return f"{cost}; slower than without even if all are accepted"
    return (
        f"{cost}; at most {best['speedup']:.2f} times as fast as without "
        f"(drafts of {counted(best['depth'], 'token')}, all accepted)"
    )


def _later(tuning: edgespec.Tuning) -> str:
    now = ", ".join(f"{name} {value}" for name, value in tuning.passing.items())
    kept = _kept(tuning)
    return f"{kept}; while other programs run as now, {now} automatically" if now else kept


def _kept(tuning: edgespec.Tuning) -> str:
    if tuning.busy:
        return "as before: nothing was kept, because other programs were running"
    chosen = ", ".join(f"{name} {value}" for name, value in tuning.options.items())
    used = chosen or "the defaults"
    if tuning.path and tuning.passing and not chosen:
        return f"{used}, measured anew when no other program runs"
    if tuning.path:
        return f"{used}; kept in {tuning.path.parent}"
    return f"as before: {used} could not be kept. {cannot_keep_costs()}".rstrip()


@cloup.command()
@model_options
@verifier_options
@cloup.option_group(
    "Sampling", option("--temp", type=float, default=0.0, help="Temperature of the answers.")
)
@cloup.option_group(
    "Measuring",
    option(
        "--budget",
        type=click.FloatRange(min=1),
        default=30,
        metavar="SECONDS",
        help="Time for checking a model, loading included. Checks that do not fit are left out.",
    ),
)
@json_option
@pass_params
def doctor(ctx: click.Context) -> int:
    """Say what slows edgespec down on this device, and what would help.

    Checks the machine and how the engines were built. With -m, also checks a model, its measured
    times, and whether speculation makes it faster; this takes at most --budget seconds. With
    --verifier, also checks a target on another machine. Changes nothing, and downloads only models
    that are named together with --verifier.
    """
    import edgespec

    params = ctx.params
    if params["draft_model"] and not (params["model"] or params["verifier"]):
        raise click.UsageError("-md names a draft model, but no target was given; add -m")
    with told_in_json(params["as_json"]), status("checking") as line:

        def show(finding: edgespec.Finding) -> None:
            line.hide()
            if not params["as_json"]:
                _show_finding(finding)

        if params["verifier"]:
            refuse_typed(ctx, ["temp", "budget"], "has no effect with --verifier; leave it out")
            arguments = verifier_arguments(params, model_arguments(params))
            findings = edgespec.diagnose_verifier(**arguments)
            for finding in findings:
                show(finding)
        else:
            findings = edgespec.diagnose(
                params["model"],
                temperature=params["temp"],
                budget_s=params["budget"],
                progress=line.show,
                report=show,
                **model_arguments(params),
            )
    if params["as_json"]:
        say_json([finding.to_dict() for finding in findings])
    return FAILURE if any(finding.broken for finding in findings) else 0


def _show_finding(finding: edgespec.Finding) -> None:
    """Print a finding as a row. For the verdict, print only its text."""
    from rich.table import Table
    from rich.text import Text

    text = Text(name(finding.text))
    if finding.remedy:
        text.append(f"\n→ {name(finding.remedy)}", "bold")
    grid = Table.grid(padding=(0, 2))
    if finding.subject == "verdict":
        text.stylize(_STYLES[finding.level])
        grid.add_row(text)
        grid.add_row()
    else:
        grid.add_column(width=_LEVEL_WIDTH)
        grid.add_column(width=_SUBJECT_WIDTH)
        grid.add_column(overflow="fold")
        grid.add_row(Text(finding.level, _STYLES[finding.level]), name(finding.subject), text)
    show(grid)
