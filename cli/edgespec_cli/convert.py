"""`edgespec convert`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .loading import fetched
from .options import Command, ModelType, Option
from .render import Status, neutral, size

if TYPE_CHECKING:
    import edgespec


class KeyValue(click.ParamType):  # type: ignore[type-arg]
    """KEY=VALUE."""

    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Both halves."""
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not KEY=VALUE, for example block_size=64", param, ctx)
        return key, text


@click.command(cls=Command)
@click.argument("source", type=ModelType())
@click.argument("out", required=False, type=click.Path(path_type=Path))
@click.option(
    "--precision", type=click.Choice(["int4", "int8", "fp16", "fp32"]), default="int4",
    cls=Option, section="Conversion", help="Of the weights.  [default: int4]",
)  # fmt: skip
@click.option(
    "--accuracy-level",
    type=click.IntRange(1, 4),
    cls=Option,
    section="Conversion",
    help="Of int4 and int8 products: 1 computes in float32, 4 in int8, which is faster and the "
    "builder's default on CPUs.",
)
@click.option(
    "--hidden-states", is_flag=True, cls=Option, section="Conversion",
    help="The graph gives those of its last layer as well.",
)  # fmt: skip
@click.option(
    "--builder-option", "builder_options", type=KeyValue(), multiple=True, metavar="KEY=VALUE",
    cls=Option, section="Conversion", help="More of the builder's own options; repeatable.",
)  # fmt: skip
@click.option(
    "--python", type=click.Path(exists=True, dir_okay=False, path_type=Path), cls=Option,
    section="Conversion", help="An interpreter that has the tools; none is installed then.",
)  # fmt: skip
@click.option("--offline", is_flag=True, cls=Option, help="Download no model.")
@click.option(
    "--json", "as_json", is_flag=True, cls=Option, section="Output", help="JSON for machines."
)
def convert(
    source: str, out: Path | None, offline: bool, as_json: bool, builder_options: tuple[Any, ...],
    **options: Any,
) -> None:  # fmt: skip
    """Make an ONNX folder of a model and check it against its source.

    SOURCE is a GGUF, by path or catalogue name, or a folder in Hugging Face's layout. OUT is a
    folder that is not there yet; without it the result lies beside pulled models.

    The tools (torch, transformers, onnxruntime-genai) are installed once, in an environment of
    their own.
    """
    import edgespec

    if not Path(source).is_dir():
        fetched(source, offline=offline)
    line = Status()
    try:
        made = edgespec.convert(
            source, out, builder_options=dict(builder_options), progress=line.show, **options
        )
    finally:
        line.hide()
    if as_json:
        click.echo(json.dumps(made.to_dict(), indent=2))
    else:
        _show(made)


def _show(made: edgespec.Conversion) -> None:
    for label, value in (
        ("made", f"{neutral(str(made.path))}, {made.precision}, {size(made.size)}"),
        ("greedy", f"{made.agreement:.0%} of the source's {made.n_greedy} tokens agree; on its "
         f"own it writes the first {made.greedy_equal} of them"),
        ("logits", f"{made.divergence:.2g} nats a token, at most {made.max_difference:.2g} apart"),
        ("took", ", ".join(f"{step} {seconds:.0f} s" for step, seconds in made.seconds.items()
                           if seconds >= 1)),
    ):  # fmt: skip
        click.echo(f"{label:<8}{value}")
    for warning in made.warnings:
        click.echo(f"{'note':<8}{neutral(warning)}")
