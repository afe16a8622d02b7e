"""The card of a trained draft: what it is, what it was made of, and what it gains here."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import kept_files
from ..backends import files

if TYPE_CHECKING:
    from .kinds.base import MadeDraft
    from .training import TrainedHead

PICTURE = "training.png"
_GENERAL = (
    "Its training data are answers of the model to the prompts of the person who trained it: parts "
    "of them may be recovered from the weights, so do not publish a draft that was made of private "
    "prompts."
)
_PRIVATE = (
    "**Private: do not publish or share it.** It was made of one person's chats, documents and "
    "earlier answers, and parts of them may be recovered from the weights."
)


def card(
    trained: TrainedHead, made: MadeDraft, target: Path, *, private: bool, picture: str = ""
) -> str:  # fmt: skip
    """Return the model card of a draft as Markdown.

    private: it was made of the user's own texts. picture: the name of the picture of the training
    next to the card, "" if there is none.
    """
    name, size, start = files.identity(target)
    served, before = trained.served, {}
    if compared := trained.paired:
        old = compared.before
        before = {"served before": (old.acceptance_length, _shown(old.acceptance))}
    lines = [
        "---", f"license: {made.license}", "library_name: edgespec", "---", "",
        f"# {made.title} for {name}", "",
        f"It drafts tokens for this one model. {_PRIVATE if private else _GENERAL}", "",
        "| | |", "| --- | --- |",
        f"| target | {name}, {size} bytes, sha256 of its first MiB begins with {start} |",
        *(f"| {label} | {fact} |" for label, fact in made.facts.items()),
        f"| data | {trained.n_tokens} tokens in {trained.n_answers} answers of the target to "
        f"{trained.n_done} prompts; {trained.n_skipped} prompts skipped, {trained.n_failed} failed "
        "|",
        f"| licence | that of the target ({made.license}) and of the prompts |", "",
        f"Acceptance for {served.n_answers} prompts that were held out, drafts of "
        f"{len(served.acceptance)} tokens:", "",
        *_table({
            "simulated in training": (trained.simulated_length, _shown(trained.simulated)),
            "served by edgespec (95% interval)": (
                served.acceptance_length, _shown(served.acceptance, served.intervals)
            ),
        } | before), "",
        f"Speed on the device that made it: {served.gain:.2f} times as fast as plain decoding "
        f"(95% interval {served.gain_low:.2f}–{served.gain_high:.2f}). {served.warning}".rstrip(),
        "",
    ]  # fmt: skip
    if both := trained.agreement:
        lines += [
            f"In the {both.n_answers} answers that are the same with and without drafts, "
            f"{both.ratio:.3f} times as many drafted tokens a step were accepted as was simulated "
            f"(95% interval {both.low:.3f} to {both.high:.3f}). For each token of a draft: "
            f"{', '.join(_shown(both.by_place, both.intervals))}.", "",
        ]  # fmt: skip
    if compared:
        lines += [
            f"{compared.sentence} The acceptance length changed by {compared.difference:+.3f} "
            f"(95% interval {compared.difference_low:+.3f} to {compared.difference_high:+.3f}). A "
            f"drafted token takes {1000 * compared.token_s:.1f} ms, "
            f"{1000 * compared.token_s_before:.1f} ms before.", "",
        ]  # fmt: skip
    if picture:
        lines += [f"![Divergence and acceptance during the training]({picture})", ""]
    return "\n".join(lines)


def _shown(
    values: Sequence[float | None], intervals: Sequence[tuple[float, float] | None] = ()
) -> list[str]:  # fmt: skip
    """Return values with their intervals, if there are any, as texts."""
    texts = ["–" if each is None else f"{each:.3f}" for each in values]
    for i, each in enumerate(intervals):
        texts[i] += f" ({each[0]:.3f} to {each[1]:.3f})" if each else ""
    return texts


def _table(columns: Mapping[str, tuple[float, list[str]]]) -> list[str]:
    """Return a table of acceptance lengths and the acceptance at each place, as far as known."""
    known = {name: each for name, each in columns.items() if each[1]}
    lines = [f"| | {' | '.join(known)} |", f"| --- |{' ---: |' * len(known)}"]
    for i, row in enumerate(zip(*(shares for _, shares in known.values()), strict=True), 1):
        lines.append(f"| token {i} | {' | '.join(row)} |")
    lengths = " | ".join(f"{length:.3f}" for length, _ in known.values())
    return [*lines, f"| acceptance length | {lengths} |"]


def draw(result: Path, path: Path) -> bool:
    """Draw the history in the worker's result.json as a PNG; return False if there is no history,
    or no matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    if not result.exists():
        return False
    history: Sequence[Mapping[str, Any]] = kept_files.read_json(result, dict)["history"]
    figure = Figure(figsize=(10, 4), layout="constrained")
    loss, acceptance = figure.subplots(1, 2)
    trained = [each for each in history if each["divergence"]]  # not the weights it began with
    for i in range(min((len(each["divergence"]) for each in trained), default=0)):
        values = [each["divergence"][i] for each in trained]
        loss.plot([each["step"] for each in trained], values, label=f"token {i + 1}")
    loss.set(title="divergence from the model, a batch", xlabel="step", ylabel="nats")
    loss.legend(fontsize="small")
    for n in range(len(history[0]["acceptance_length"])):
        lengths = [each["acceptance_length"][n] for each in history]
        acceptance.plot([each["step"] for each in history], lengths, label=f"drafts of {n + 1}")
    acceptance.set(title="held out", xlabel="step", ylabel="mean acceptance length")
    acceptance.legend(fontsize="small")
    content = io.BytesIO()
    figure.savefig(content, format="png")
    kept_files.replace(path, [content.getvalue()])
    return True
