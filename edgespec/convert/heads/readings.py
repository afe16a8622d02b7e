"""Two readings of a checkpoint's layer ids, tried with its target: which of them guesses better."""

from __future__ import annotations

from collections.abc import Sequence

from ...backends.base import Head, HiddenStates
from ...backends.features import Features

N_TOKENS = 48


def agreement(
    head: Head, target: HiddenStates, layers: Sequence[int], prompt: Sequence[int]
) -> float:
    """Return the share of N_TOKENS greedy tokens of a target, behind a prompt, that a head guesses
    right when it reads the states of these layers.

    The head was opened for the target. Both begin anew, and the target gives no states afterwards.
    Raises ConfigError for a layer that the target cannot give.
    """
    target.tap(layers)
    try:
        target.truncate(0)
        head.truncate(0)
        head.start, head.features = 0, Features()
        outputs = target.decode(prompt)
        head.features.append(0, outputs.hidden)
        head.decode(prompt, 0)
        token, n_right = int(outputs.logits[0].argmax()), 0
        for i in range(N_TOKENS):
            guess = int(head.decode([token]).logits[0].argmax())
            outputs = target.decode([token])
            head.features.append(len(prompt) + i, outputs.hidden)
            token = int(outputs.logits[0].argmax())
            n_right += guess == token
        return n_right / N_TOKENS
    finally:
        target.tap(())
