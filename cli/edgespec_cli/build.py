"""The command `edgespec build`."""

from __future__ import annotations

import click
import cloup

from .arguments import refuse_typed
from .options import json_option, option, pass_params
from .parameters import ModelType
from .render import counted, say, say_json, table, told


@cloup.command()
@cloup.option_group(
    "Build",
    option(
        "-m",
        "--model",
        type=ModelType(),
        metavar="MODEL",
        show_default="the smallest on this disk",
        help="GGUF on this disk that both libraries evaluate for the comparison.",
    ),
    option("--undo", is_flag=True, help="Delete the compiled library; the installed one is used."),
)
@json_option
@pass_params
def build(ctx: click.Context) -> None:
    """Compile llama.cpp for all instructions of this processor, and use it from now on.

    Takes about 12 minutes on two cores, and needs a C++ compiler. The result is compared with the
    library in use: it is used only if both compute the same, and you see how long evaluations take
    with each.
    """
    import edgespec

    params = ctx.params
    if params["undo"]:
        refuse_typed(ctx, ["model", "as_json"], "has no effect with --undo; leave it out")
        there = edgespec.remove_build()
        say("the compiled library is deleted" if there else "nothing was compiled here")
        return
    model = params["model"] or _smallest()
    with told() as progress:
        built = edgespec.build(model, progress)
    if params["as_json"]:
        say_json(built.to_dict())
        return
    difference = built.comparison.difference
    say(f"both compute the same: logits of {built.model} differ by at most {difference:.0%}")
    rows = [
        (counted(width, "token"), f"{old:.1f}", f"{new:.1f}", f"{old / new:.2f}")
        for width, (old, new) in built.comparison.times.items()
    ]
    table(("evaluation of", "ms before", "ms now", "times as fast"), rows)
    if built.is_used:
        say(f"the compiled library is used in place of {built.before} from now on")
        say("`edgespec build --undo` deletes it")
    else:
        say(f"the compiled library is not faster, so {built.before} stays in use")


def _smallest() -> str:
    """Return the smallest GGUF on this disk."""
    from edgespec import hub
    from edgespec.loading.models import is_head

    models = [m for m in hub.stored() if m.path.suffix == ".gguf" and not is_head(m.path)]
    if not models:
        raise click.UsageError(
            "no GGUF is on this disk to compare the libraries with; fetch one with "
            "`edgespec pull smollm2-135m`, or name a file with -m"
        )
    return str(min(models, key=lambda model: model.size).path)
