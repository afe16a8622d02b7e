"""`edgespec tune` and `doctor`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from .errors import FAILURE
from .loading import fetched, verifier_arguments
from .models import table
from .options import (
    Command,
    Option,
    engine_arguments,
    model_options,
    pass_params,
    verifier_options,
)
from .render import Status, neutral, status

if TYPE_CHECKING:
    import edgespec

_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}
_SHOWN = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)

_json_option = click.option(
    "--json", "as_json", is_flag=True, cls=Option, section="Output", help="JSON for machines."
)


@click.command(cls=Command)
@model_options
@click.option(
    "--budget", type=click.FloatRange(min=1), default=25.0, metavar="SECONDS", cls=Option,
    section="Tuning", help="About how long it may take; a slow device needs more.  [default: 25]",
)  # fmt: skip
@_json_option
@pass_params
def tune(ctx: click.Context) -> None:
    """Find the fastest settings for a model on this device.

    Measures and keeps them, with what evaluations cost; later loads use both. Options that are
    given here are kept as they are, and so are those given later. Best while nothing else runs.
    """
    import edgespec

    params = ctx.params
    arguments = _arguments(params)
    model = params["model"] or edgespec.catalogue.default_model
    for reference in (model, arguments["draft"]):
        if reference not in (None, "auto"):
            fetched(reference, offline=params["offline"])
    line = Status()
    try:
        found = edgespec.tune(model, budget_s=params["budget"], progress=line.show, **arguments)
    finally:
        line.hide()
    if params["as_json"]:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        _show(found)


def _arguments(params: dict[str, Any]) -> dict[str, Any]:
    arguments = engine_arguments(params)
    del arguments["speculative_config"]
    return arguments


def _show(found: edgespec.Tuning) -> None:
    report = found.to_dict()
    click.echo(f"{neutral(found.model)}, {found.seconds:.0f} s")
    click.echo()
    rows = [(c.setting, c.measured, _tried(c), c.why) for c in found.choices]
    table(("setting", "measured with", "ms: chosen", "why"), rows)
    click.echo()
    _show_widths(report["target"])
    click.echo()
    depth = report["lookup"]["depth"]
    click.echo(
        f"lookup drafts: at most {report['lookup']['speedup']:.1f} times as fast as plain decoding "
        f"({_tokens(depth)}, all right)" if depth else
        "lookup drafts: even right ones lose, plain decoding is the fastest"
    )  # fmt: skip
    click.echo(f"draft model:   {_draft(found, report)}")
    click.echo(f"later loads:   {_later(found)}")
    _show_formats(found)
    if found.disturbed:
        click.echo("times varied much: run it again while nothing else is running", err=True)


def _show_formats(found: edgespec.Tuning) -> None:
    """Files of the model that are there in other formats, beside each other."""
    if not found.formats:
        return
    click.echo()
    rows = [
        (
            one.quantisation, f"{one.size / 1e9:.2f} GB", f"{one.ms:.1f}", f"{one.ms_wide:.1f}",
            f"{one.perplexity:.2f}",
            "–" if one.agreement is None else f"{one.agreement:.0%}",
        )
        for one in found.formats
    ]  # fmt: skip
    table(("file", "size", "ms a token", "ms for 4", "perplexity", "as 16 bits"), rows)
    click.echo(f"\nrecommended:   {found.recommendation}")


def _tried(choice: edgespec.Choice) -> str:
    """2 threads 33 ms, 1 thread 61 ms: 2 threads."""
    tried = [f"{c.label} {c.ms:.3g} ms" if c.ms < 100 else f"{c.label} {c.ms:.0f} ms"
             for c in choice.candidates if c.n_repetitions]  # fmt: skip
    return f"{', '.join(tried)}: {choice.label}" if tried else choice.label


def _show_widths(target: dict[str, Any]) -> None:
    """A row for every cache length: t(1) in ms and the other widths as multiples of it."""
    shown = [(i, n) for i, n in enumerate(target["widths"]) if n in _SHOWN]
    rows = [
        (str(length), f"{ms[0]:.1f}", *(f"{ratio[i]:.2f}" for i, _ in shown[1:]))
        for length, ms, ratio in zip(
            target["lengths"], target["ms"], target["ratio"], strict=True
        )
    ]  # fmt: skip
    table(("cached", "t(1) ms", *(f"t({n})/t(1)" for _, n in shown[1:])), rows)


def _draft(found: edgespec.Tuning, report: dict[str, Any]) -> str:
    best = report["draft_speedup"]
    if best is None:
        return "none"
    each = report["draft_model"]["ms"][0][0]
    cost = f"{neutral(found.draft or '')} takes {each:.1f} ms a token"
    if not best["depth"]:
        return f"{cost}; it loses even if every token were right"
    return (
        f"{cost}; if every token were right, at most {best['speedup']:.2f} times "
        f"({_tokens(best['depth'])})"
    )


def _later(found: edgespec.Tuning) -> str:
    chosen = ", ".join(f"{name} {value}" for name, value in found.options.items())
    used = chosen or "the defaults"
    return (
        f"{used}; kept in {found.path.parent}" if found.path else f"{used}; nothing could be kept"
    )


def _tokens(n: int) -> str:
    return f"{n} token{'' if n == 1 else 's'}"


@click.command(cls=Command)
@model_options
@verifier_options
@click.option(
    "--temp", type=float, default=0.0, cls=Option, section="Sampling",
    help="The temperature that answers are drawn at.  [default: 0]",
)  # fmt: skip
@_json_option
@pass_params
def doctor(ctx: click.Context) -> int:
    """Say what stands in the way of speed here, and what would help.

    Looks at the machine and the build; with -m also at a model, what was measured of it, and
    whether drafting pays; with --verifier at a target on another machine. Writes nothing, and
    downloads nothing but models that are named with --verifier.
    """
    import edgespec

    params = ctx.params
    if params["draft_model"] and not (params["model"] or params["verifier"]):
        raise click.UsageError("-md names a draft model, but for which target? give -m")
    with status("looking"):
        if params["verifier"]:
            found = verifier_arguments(params, _arguments(params))
            findings = edgespec.diagnose_verifier(params["verifier"], **found)
        else:
            findings = edgespec.diagnose(
                params["model"], temperature=params["temp"], **_arguments(params)
            )
    if params["as_json"]:
        click.echo(json.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        _show_findings(findings)
    return FAILURE if any(finding.broken for finding in findings) else 0


def _show_findings(findings: list[edgespec.Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=250)
    grid = Table.grid(padding=(0, 2))
    for finding in findings:
        text = Text(neutral(finding.text))
        if finding.remedy:
            text.append(f"\n→ {neutral(finding.remedy)}", "bold")
        grid.add_row(Text(finding.level, _STYLES[finding.level]), neutral(finding.subject), text)
    console.print(grid)
