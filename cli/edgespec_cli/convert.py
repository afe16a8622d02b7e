"""The command `edgespec convert`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup

from .arguments import is_typed, refuse_typed
from .loading import fetched
from .options import FILE, json_option, offline_option, option, tools_option
from .parameters import KeyValueType, LayersType, ModelType
from .render import say, say_json, size, told

if TYPE_CHECKING:
    import edgespec


@cloup.command()
@click.argument("source", type=ModelType())
@click.argument("out", required=False, type=FILE)
@cloup.option_group(
    "Conversion",
    option(
        "--precision",
        type=click.Choice(["int4", "int8", "fp16", "fp32"]),
        default="int4",
        help="Number format of the weights. With --head the default is int8, and fp16 is not "
        "possible.",
    ),
    option(
        "--accuracy-level",
        type=click.IntRange(1, 4),
        show_default="that of the model builder",
        help="Arithmetic for products with int4 and int8 weights: 1 is float32; 4 is int8, which "
        "is faster.",
    ),
    option(
        "--hidden-states",
        type=LayersType(),
        metavar="LAYERS",
        help="Let the graph also output the hidden states of these layers, which trained heads "
        "read: layer numbers or final, separated by commas; 0 is the input of the first layer. If "
        "SOURCE is an ONNX graph, it is changed in place.",
    ),
    option(
        "--builder-option",
        "builder_options",
        type=KeyValueType(),
        multiple=True,
        metavar="KEY=VALUE",
        help="Another option of onnxruntime-genai's model builder; can be given several times.",
    ),
    option(
        "--trees",
        is_flag=True,
        help="Convert nothing, but change the ONNX graph SOURCE in place so that it verifies token "
        "trees, as converted graphs do.",
    ),
    option(
        "--head",
        is_flag=True,
        help="SOURCE is the checkpoint of a trained head for --target, such as EAGLE, Medusa or "
        "DFlash, or the target's own checkpoint with a layer for multi-token prediction (MTP).",
    ),
    option(
        "--target",
        type=ModelType(),
        metavar="MODEL",
        help="With --head: the model that the head drafts for.",
    ),
    tools_option,
    offline_option,
)
@json_option
def convert(
    source: str, out: Path | None, offline: bool, as_json: bool, builder_options: tuple[Any, ...],
    trees: bool, hidden_states: tuple[int, ...] | None, head: bool, target: str | None,
    **options: Any,
) -> None:  # fmt: skip
    """Convert a model to ONNX and compare it with its source.

    SOURCE is a GGUF file, by path or catalogue name, or a folder in Hugging Face's layout. OUT is a
    new folder; without it, the result is kept next to the downloaded models.

    The conversion uses the tools torch, transformers and onnxruntime-genai.
    """
    import edgespec
    from edgespec.convert.conversion import is_graph

    if head or target:
        if not (head and target):
            raise click.UsageError("--head and --target MODEL go together.")
        _convert_head(source, target, out, as_json, offline=offline, **options)
        return
    if not Path(source).is_dir():
        fetched(source, offline=offline)
    if hidden_states and not out and not Path(source).is_dir() and not is_graph(source):
        raise click.UsageError(
            f"{source} is a GGUF, which gives hidden states as it is: it needs no conversion to be "
            "a head's target. To make an ONNX graph of it that gives them as well, name the folder "
            "OUT"
        )
    if trees or (hidden_states and is_graph(source)):
        _refuse_building(out, "--trees" if trees else "--hidden-states")
        _add(source, trees, hidden_states, as_json, python=options["python"], offline=offline)
        return
    with told() as show:
        made = edgespec.convert(
            source, out, builder_options=dict(builder_options), progress=show,
            offline=offline, hidden_states=hidden_states or (), **options,
        )  # fmt: skip
    if as_json:
        say_json(made.to_dict())
    else:
        _show(made)


def _refuse_building(out: Path | None, flag: str) -> None:
    """Raise UsageError for arguments and options that only conversions take.

    flag: the option that changes a graph in place instead.
    """
    if out:
        raise click.UsageError(f"{flag} changes SOURCE in place; leave OUT out.")
    refuse_typed(
        click.get_current_context(), ("precision", "accuracy_level", "builder_options"),
        f"has no effect with {flag}, which changes a graph that is there; leave it out",
    )  # fmt: skip


def _add(
    source: str, trees: bool, layers: tuple[int, ...] | None, as_json: bool, **options: Any
) -> None:
    """Change a graph in place so that it outputs hidden states, verifies token trees, or both."""
    import edgespec

    added, path = [], Path(source)
    with told() as show:
        if layers:
            path = edgespec.add_hidden_states(source, layers, progress=show, **options)
            numbers = ", ".join("final" if layer < 0 else str(layer) for layer in layers)
            added.append(f"gives the hidden states {numbers}")
        if trees:
            path = edgespec.add_tree_inputs(source, progress=show, **options)
            added.append("evaluates token trees")
    if as_json:
        say_json({"path": str(path)})
    else:
        say(f"{path} {' and '.join(added)}")


def _convert_head(
    source: str, target: str, out: Path | None, as_json: bool, precision: str, python: Path | None,
    offline: bool, **_: Any,
) -> None:  # fmt: skip
    import edgespec

    context = click.get_current_context()
    refuse_typed(
        context, ("accuracy_level", "hidden_states", "builder_options", "trees"),
        "has no effect with --head; leave it out",
    )  # fmt: skip
    chosen: Any = precision if is_typed(context, "precision") else "int8"
    fetched(target, offline=offline)
    with told() as show:
        made = edgespec.convert_head(
            source, target, out, precision=chosen, python=python, progress=show,
            offline=offline,
        )  # fmt: skip
    if as_json:
        say_json(made.to_dict())
        return
    read = ", ".join("the last state" if i < 0 else str(i) for i in made.layers)
    lines = {
        "made": f"{made.path}, {made.kind}, {made.precision}, {size(made.size)}",
        "layers": read or "keys and values of all",
        "license": made.license,
    }
    for label, value in [*lines.items(), *(("note", w) for w in made.warnings)]:
        say(f"{label:<8}{value}")


def _show(made: edgespec.Conversion) -> None:
    slow = [f"{step} {seconds:.0f} s" for step, seconds in made.seconds.items() if seconds >= 1]
    lines = {
        "made": f"{made.path}, {made.precision}, {size(made.size)}",
        "greedy": f"{made.agreement:.0%} of the source's {made.n_greedy} tokens agree; on its "
        f"own it writes the first {made.greedy_equal} of them",
        "logits": f"{made.divergence:.2g} nats a token, at most {made.max_difference:.2g} apart",
        "took": ", ".join(slow),
    }
    for label, value in [*lines.items(), *(("note", w) for w in made.warnings)]:
        say(f"{label:<8}{value}")
