"""The card of a trained head: what it is, what it was made of, and what it gains here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends import files

if TYPE_CHECKING:
    from .shape import Shape
    from .training import TrainedHead


def card(made: TrainedHead, shape: Shape, target: Path, depth: int, result: Any) -> str:
    """Return the model card of a head as Markdown.

    depth: the steps of its training-time test. result: the worker's result.json.
    """
    name, size, start = files.identity(target)
    served = made.served
    places = range(1, len(served.acceptance) + 1)
    lines = [
        "---", f"license: {shape.license}", "library_name: edgespec", "---", "",
        f"# EAGLE-3 head for {name}", "",
        "It drafts tokens for this one model. Its training data are answers of the model to the "
        "prompts of the person who trained it: parts of them may be recovered from the weights, so "
        "do not publish a head that was made of private prompts.", "",
        "| | |", "| --- | --- |",
        f"| target | {name}, {size} bytes, sha256 of its first MiB begins with {start} |",
        f"| reads | the inputs of the layers {', '.join(map(str, shape.layers))} |",
        f"| drafts | {shape.n_drafted} of {shape.target.vocab_size} tokens |",
        f"| weights | {shape.n_weights / 1e6:.1f} million |",
        f"| data | {made.n_tokens} tokens in {made.n_answers} answers of the target to "
        f"{made.n_done} prompts; {made.n_skipped} prompts skipped, {made.n_failed} failed |",
        f"| training | {result['n_steps']} steps, training-time test of {depth}, "
        f"best at step {result['best_step']} |",
        f"| licence | that of the target ({shape.license}) and of the prompts |", "",
        f"Acceptance for {served.n_answers} prompts that were held out, drafts of "
        f"{len(served.acceptance)} tokens:", "",
        "| | simulated in training | served by edgespec |", "| --- | ---: | ---: |",
        *(f"| token {i} | {a:.3f} | {b:.3f} |"
          for i, a, b in zip(places, made.simulated, served.acceptance, strict=True)),
        f"| acceptance length | {made.simulated_length:.3f} | {served.acceptance_length:.3f} |", "",
        f"Speed on the device that made it: {served.gain:.2f} times as fast as plain decoding "
        f"(95% interval {served.gain_low:.2f}–{served.gain_high:.2f}).", "",
    ]  # fmt: skip
    return "\n".join(lines)
