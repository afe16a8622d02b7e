"""The command `edgespec train`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup

from .loading import fetched
from .options import FILE, json_option, offline_option, option, tools_option
from .parameters import ExistingPathType, ModelType, NameType, kinds
from .render import say, say_json, size, told

if TYPE_CHECKING:
    import edgespec


@cloup.command()
@click.argument("target", type=ModelType(), required=False)
@cloup.option_group(
    "Training",
    option(
        "--prompts",
        type=ExistingPathType(),
        multiple=True,
        metavar="PATH",
        help="A file of prompts: one on each line, or JSON lines with messages, turns, prompt, "
        "instruction, question or text; or a folder with .txt, .json and .jsonl files. Can be "
        "given several times.",
    ),
    option(
        "--from-corpus",
        is_flag=True,
        help="Use your own texts as prompts: the chats that are kept, the documents of `edgespec "
        "corpus add` and the answers of --draft-memory disk. The draft is private: only you can "
        "read it, and `edgespec serve` uses it only by name.",
    ),
    option(
        "--without",
        type=ExistingPathType(dir_okay=False),
        multiple=True,
        metavar="FILE",
        help="A file of prompts that are never trained with, such as those of an evaluation; its "
        "forms are those of --prompts. Can be given several times.",
    ),
    option(
        "-o",
        "--out",
        type=FILE,
        metavar="DIR",
        help="The folder of the training. If one was begun there with the same target and "
        "prompts, it goes on.",
    ),
    option(
        "--kind",
        type=NameType("kind", kinds),
        default="auto",
        help="Kind of the trained draft; auto takes eagle3 if the model gives hidden states, else "
        "distill.",
    ),
    option(
        "--from",
        "start",
        type=ModelType(),
        metavar="DRAFT",
        help="What is trained further: for a head, the folder `head` of an earlier training for "
        "the same target, instead of a new one; for distill, a GGUF with the target's tokenizer, "
        "or the folder of a checkpoint; for trim, an ONNX folder.",
    ),
    option(
        "--tokens",
        "n_tokens",
        type=click.IntRange(1),
        default=100_000,
        help="Number of tokens of answers to train with; the target writes them itself.",
    ),
    option(
        "--minutes",
        type=click.FloatRange(0),
        default=0.0,
        show_default="eight passes over the answers",
        help="Time of the training itself, after the answers and their hidden states.",
    ),
    option(
        "--vocabulary",
        type=click.IntRange(1),
        default=8192,
        help="Most different tokens that the draft may guess: the most frequent ones.",
    ),
    option(
        "--plan",
        is_flag=True,
        help="Only measure what it takes on this device, and which acceptance it needs to pay.",
    ),
    option(
        "--check",
        type=ModelType(),
        metavar="HEAD",
        help="Train nothing, but measure a trained head that exists, on the prompts.",
    ),
    option(
        "--gently",
        is_flag=True,
        help="Pause while this machine runs on battery, and while other programs use its cores.",
    ),
    option("--force", is_flag=True, help="Train even if no draft is expected to pay here."),
    option(
        "--forget",
        type=ExistingPathType(file_okay=False),
        metavar="DIR",
        help="Delete the answers recorded in DIR and what was computed from them. The drafts "
        "remain. TARGET is not needed.",
    ),
    tools_option,
    offline_option,
)
@json_option
def train(
    target: str | None, prompts: tuple[Path, ...], out: Path | None, plan: bool, check: str | None,
    forget: Path | None, as_json: bool, offline: bool, force: bool, gently: bool,
    python: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Train a draft for a model on this device, from the model's own answers to prompts.

    TARGET is the model as it will be used: a GGUF, by path or catalogue name, or an ONNX folder.
    The model answers the prompts, half of them greedily and half with its own sampling. Then a
    small head is trained to guess these answers from the model's hidden states; or a draft model
    is trained with the model's probabilities (distill), or gets an output layer of fewer tokens
    (trim). A model that is loaded later drafts with it where that pays.

    Every stage goes on where it was stopped if the same command is given again. What is recorded
    stays in DIR, and only you can read it.
    """
    import edgespec

    if forget:
        n_bytes = edgespec.forget_training(forget)
        say_json({"deleted": n_bytes}) if as_json else say(
            f"deleted {size(n_bytes)}; finished drafts stay"
        )
        return
    if not target or not (prompts or options["from_corpus"]):
        lacking = "prompts (--prompts PATH, --from-corpus)" if target else "the model to draft for"
        raise click.UsageError(f"Name {lacking}.")
    if check and (plan or out or options["from_corpus"]):
        raise click.UsageError("--check HEAD takes --prompts; leave --plan, -o, --from-corpus out.")
    if not check and not out:
        raise click.UsageError("Name the folder of the training: -o DIR.")
    fetched(target, offline=offline)
    with told() as show:
        made, lines = _done(
            target, prompts, out, plan, check, show,
            {"python": python, "offline": offline, "force": force, "gently": gently}, options,
        )  # fmt: skip
    if as_json:
        say_json(made.to_dict())
        return
    for label, value in lines.items():
        say(f"{label:<14}{value}")


def _done(
    target: str, prompts: tuple[Path, ...], out: Path | None, plan: bool, check: str | None,
    show: Callable[[str], None], training: dict[str, Any], options: dict[str, Any],
) -> tuple[Any, dict[str, str]]:  # fmt: skip
    """Do what was asked for; return the result, and what to say of it by label."""
    import edgespec

    if check:
        served = edgespec.check_head(target, prompts, check, progress=show)
        return served, _served(served)
    assert out is not None
    if plan:
        planned = edgespec.plan_training(target, prompts, out, progress=show, **options)
        said = {"plan": planned.sentence} | _planned(planned)
        return planned, said | _warned(planned)
    made = edgespec.train_head(target, prompts, out, progress=show, **training, **options)
    return made, {
        "made": f"{made.path}",
        "checkpoint": f"{made.checkpoint}, with a card",
        "registered": f"{made.registered}: loads of {target} find it"
        if made.registered
        else f"no: {made.not_registered}",
        "data": f"{made.n_tokens} tokens in {made.n_answers} answers to {made.n_done} prompts; "
        f"{made.n_skipped} prompts skipped, {made.n_failed} failed",
    } | _simulated(made) | _served(made.served) | _compared(made)


def _simulated(made: edgespec.TrainedHead) -> dict[str, str]:
    """Return what to say of the simulation in training, if there was one."""
    if not made.simulated:
        return {}
    return {"simulated": f"acceptance length {made.simulated_length:.2f}"}


def _compared(made: edgespec.TrainedHead) -> dict[str, str]:
    """Return what to say of a draft model that was changed."""
    if made.paired is None:
        return {}
    paired = made.paired
    return {
        "before": f"acceptance length {paired.before.acceptance_length:.2f}; now "
        f"{paired.difference:+.2f} ({paired.difference_low:+.2f} to {paired.difference_high:+.2f})",
        "result": paired.sentence,
    }


def _served(served: edgespec.ServedHead) -> dict[str, str]:
    """Return what to say of a head that was measured."""
    places = [f"{share:.0%}" for share in served.acceptance]
    for i, (low, high) in enumerate(served.intervals):
        places[i] += f" ({low:.0%}–{high:.0%})"
    return {
        "served": f"acceptance length {served.acceptance_length:.2f}; the tokens of a draft are "
        f"accepted in {', '.join(places)} of the drafts ({served.n_answers} answers)",
        "gain": f"{served.gain:.2f} times as fast as plain decoding "
        f"({served.gain_low:.2f}–{served.gain_high:.2f})",
    } | _warned(served)


def _warned(measured: edgespec.TrainingPlan | edgespec.ServedHead) -> dict[str, str]:
    """Return the warning that other programs disturbed a measurement, if they did."""
    return {"warning": measured.warning} if measured.warning else {}


def _planned(plan: edgespec.TrainingPlan) -> dict[str, str]:
    """Return the table of a plan."""

    def length(value: float | None) -> str:
        return "not reached by any draft" if value is None else f"acceptance length {value:.2f}"

    table = {
        stage: f"{seconds / 60:.0f} min, {rate:.0f} tokens/s"
        for (stage, seconds), rate in zip(
            plan.seconds.items(),
            (plan.answers_per_s, plan.features_per_s, plan.training_per_s),
            strict=False,
        )
    }
    table |= {
        "disk": f"{size(plan.disk)} of {size(plan.free_disk)} that are free",
        "memory": size(plan.memory),
        "break even": f"{length(plan.break_even)}, as fast as plain decoding",
        f"{plan.wanted_gain} times": length(plan.wanted),
        "expected": f"acceptance length {plan.expected:.2f}, {plan.expected_gain:.2f} times as "
        "fast",
    }
    if plan.draft_model:
        table |= {
            "draft model": f"{plan.draft_model} is there: acceptance length "
            f"{plan.draft_length:.2f}, at best {plan.draft_gain:.2f} times as fast as plain "
            "decoding",
            "as fast as it": length(plan.as_draft),
            f"{plan.wanted_gain} times it": length(plan.above_draft),
        }
    return table
