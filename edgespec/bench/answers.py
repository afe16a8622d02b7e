"""The answers that a benchmark measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..types import Stats


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in one mode.

    seconds: from a prompt that is in the target's cache to the last token, whatever a draft
    model had to read included. ttft_s: to the first token of the prompt when it was new.
    gaps: seconds between one arrival of tokens and the next, a value a token.
    joules: of the whole device, None where it does not tell. text: None where it is not known.
    prompt, token_ids: of both, () where they are not known.
    """

    id: str
    category: str
    temperature: float
    mode: str
    n_tokens: int
    seconds: float
    ttft_s: float
    stats: Stats
    gaps: list[float] = field(repr=False)
    joules: float | None = None
    text: str | None = field(default=None, repr=False)
    prompt: Sequence[int] = field(default=(), repr=False)
    token_ids: Sequence[int] = field(default=(), repr=False)

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the answer over the seconds that it took."""
        return self.n_tokens / self.seconds


def whole(answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers without those to the last prompt if it was not answered in every mode: a
    run was stopped there.
    """
    kept = list(answers)
    n = Counter((answer.temperature, answer.mode) for answer in kept)
    while kept and kept[-1].id == answers[-1].id:
        last = kept[-1]
        if len({n[key] for key in n if key[0] == last.temperature}) == 1:
            break
        n[last.temperature, last.mode] -= 1
        kept.pop()
    return kept
