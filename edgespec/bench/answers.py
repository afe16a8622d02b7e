"""The answers that a benchmark measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..types import Stats


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in one mode.

    seconds: the time of the answer with the prompt in the target's cache; it includes the time in
    which a draft model reads the prompt. ttft_s: the time to the first token when the prompt was
    first read. gaps: for each token after the first, the seconds since the token before it. joules:
    the energy that the whole device used, None if not measured. text: the text of the answer,
    None if it is not known. prompt, token_ids: the token ids of the prompt and of the answer, () if
    they are not known.
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
        """The number of tokens divided by the seconds of the answer."""
        return self.n_tokens / self.seconds


def whole(answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers. If a run was stopped before the last prompt was answered in every mode,
    the answers to that prompt are left out.
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
