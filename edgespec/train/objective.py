"""The objective of heads in torch: which tokens are guessed, the loss, and the accuracy.

It needs torch. A network is one of the modules next to this one (`eagle3.py`, `medusa.py`,
`mlp.py`), and its weights are those in `sizes.py`. It has

    initial(sizes, start, scale, seed)   the weights to begin with
    unroll(weights, sizes, embedding, batch, n_steps)   the head's states at each step
    OUTPUT     the name of the matrix that turns these states into logits, [V', d]
    exported(weights, sizes, scale, embedding)   the tensors of a checkpoint

Shapes: B conversations of n tokens, padded on the right; d the target's hidden size; V' the tokens
that the head can draft. Row i knows the tokens up to i + 1 and the target's states up to i; at step
s it has also read its own s guesses, and guesses token i + 2 + s.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn import functional

from .sizes import Sizes

FADING = 0.8
"""The loss of each further step counts this much of the one before it."""


class Batch(NamedTuple):
    """Conversations for one training step.

    ids: [B, n] token ids. taps: [B, n, 3d], the target's states of three layers. last: [B, n, d],
    its final states. is_answer: [B, n], True for tokens of answers, False for prompts and padding.
    likeliest: [B, n], the token that the target gives the highest probability at each place of an
    answer, whichever was drawn.
    """

    ids: Any
    taps: Any
    last: Any
    is_answer: Any
    likeliest: Any

    @property
    def first(self) -> int:
        """The first row that guesses a token of an answer at step 0."""
        begins = self.is_answer.any(0).nonzero()
        return max(0, int(begins[0]) - 2) if len(begins) else 0


def guessed(batch: Batch, step: int) -> tuple[Any, Any]:
    """Return the rows that guess a token of an answer at a step, and those tokens' positions: both
    [B, n - first], the first as bools.

    These rows begin with the one whose guess at step 0 is the answer's first token.
    """
    first, n = batch.first, batch.ids.shape[1]
    rows = torch.arange(first, n, device=batch.ids.device)
    positions = (rows + 2 + step).clamp(max=n - 1).expand(len(batch.ids), -1)
    begins = batch.is_answer[:, (rows + 2).clamp(max=n - 1)]
    is_guess = begins & batch.is_answer.gather(1, positions) & (rows + 2 + step < n)
    return is_guess, positions


def loss_of(
    network: Any, weights: Any, sizes: Sizes, embedding: Any, output: Any, number_of: Any,
    batch: Batch,
) -> tuple[Any, list[float]]:  # fmt: skip
    """Return the loss of a batch, and the mean divergence in nats of each step for reports.

    It is the cross-entropy against the target's distribution over the drafted tokens, where the
    head can draft the target's likeliest token (as in SafeAILab's and SpecForge's trainers); the
    mean over these places, so padding does not count.
    output: [V', d], the target's rows of the drafted tokens. number_of: [vocab_size], the number of
    each token among the drafted ones, -1 for others.
    """
    is_wanted = batch.is_answer & (number_of[batch.likeliest] >= 0)
    conversation, position = is_wanted.nonzero(as_tuple=True)
    place = torch.zeros_like(batch.ids).masked_scatter_(
        is_wanted, torch.arange(len(position), device=batch.ids.device)
    )
    with torch.no_grad():
        last = batch.last[conversation, position - 1]
        wanted = torch.log_softmax(functional.linear(last, output).float(), -1)
    total, reported = torch.zeros((), device=batch.ids.device), []
    for s, state in enumerate(network.unroll(weights, sizes, embedding, batch, sizes.n_ahead)):
        is_guess, positions = guessed(batch, s)
        is_guess = is_guess & is_wanted.gather(1, positions)
        if not is_guess.any():
            reported.append(0.0)
            continue
        logits = functional.linear(state[is_guess], weights[network.OUTPUT])
        own = torch.log_softmax(logits.float(), -1)
        true = wanted[place.gather(1, positions)[is_guess]]
        apart = functional.kl_div(own, true, reduction="sum", log_target=True) / len(own)
        total = total + FADING**s * apart
        reported.append(float(apart.detach()))
    return total, reported


def hits_of(
    network: Any, weights: Any, sizes: Sizes, embedding: Any, drafted: Any, batch: Batch,
    n_steps: int,
) -> Any:  # fmt: skip
    """Return whether each guess is the recorded token, bools [n_steps, B, n]: [s, b, i] for the
    guess that row i makes at step s, False where nothing of an answer is guessed.

    drafted: [V'], the target's ids of the head's tokens.
    """
    first, (n_conversations, n) = batch.first, batch.ids.shape
    hits = torch.zeros(n_steps, n_conversations, n, dtype=torch.bool)
    with torch.no_grad():
        for s, state in enumerate(network.unroll(weights, sizes, embedding, batch, n_steps)):
            is_guess, positions = guessed(batch, s)
            logits = functional.linear(state, weights[network.OUTPUT])
            right = drafted[logits.argmax(-1)] == batch.ids.gather(1, positions)
            hits[s, :, first:] = (right & is_guess).cpu()
    return hits
