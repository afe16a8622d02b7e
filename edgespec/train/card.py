"""The card of a trained draft: what it is, what it was made of, and what it gains here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..backends import files

if TYPE_CHECKING:
    from .kinds.base import MadeDraft
    from .training import TrainedHead


_GENERAL = (
    "Its training data are answers of the model to the prompts of the person who trained it: parts "
    "of them may be recovered from the weights, so do not publish a draft that was made of private "
    "prompts."
)
_PRIVATE = (
    "**Private: do not publish or share it.** It was made of one person's chats, documents and "
    "earlier answers, and parts of them may be recovered from the weights."
)


def card(trained: TrainedHead, made: MadeDraft, target: Path, *, private: bool) -> str:
    """Return the model card of a draft as Markdown; it is `private` if made of the user's texts."""
    name, size, start = files.identity(target)
    served = trained.served
    places = range(1, len(served.acceptance) + 1)
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
        "| | simulated in training | served by edgespec |", "| --- | ---: | ---: |",
        *(f"| token {i} | {a:.3f} | {b:.3f} |"
          for i, a, b in zip(places, trained.simulated, served.acceptance, strict=True)),
        f"| acceptance length | {trained.simulated_length:.3f} | {served.acceptance_length:.3f} |",
        "", f"Speed on the device that made it: {served.gain:.2f} times as fast as plain decoding "
        f"(95% interval {served.gain_low:.2f}–{served.gain_high:.2f}).", "",
    ]  # fmt: skip
    return "\n".join(lines)
