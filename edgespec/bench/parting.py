"""The first difference between greedy answers with and without drafts, and how near a tie it is.

An engine rounds a token's logits row differently if the token is evaluated alone or together with
others. If the logits of two tokens are closer than that difference, either token may be chosen.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..engine import Engine
from ..errors import EdgeSpecError
from ..types import Logprob
from .answers import Answer


@dataclass(frozen=True, slots=True)
class Parting:
    """The first token at which a greedy answer with drafts differs from the one without.

    position: the position of the token in the answer. tokens: the token without drafts, and the one
    with drafts. gap: the difference between their logits without drafts, None if it is not known.
    """

    position: int
    tokens: tuple[int, int]
    gap: float | None = None


def partings(engine: Engine, answers: Iterable[Answer]) -> list[Parting | None]:
    """Return the `Parting` of each greedy answer whose text with drafts differs from the text
    without; None for an answer whose first different token is not known.
    """
    differing = []
    for plain, drafted in greedy_pairs(answers):
        if plain.text != drafted.text:
            differing.append(parting(engine, plain.prompt, plain.token_ids, drafted.token_ids))
    return differing


def greedy_pairs(answers: Iterable[Answer]) -> Iterator[tuple[Answer, Answer]]:
    """Yield pairs of greedy answers to the same question, without and with drafts. Answers whose
    text is not known are left out.
    """
    known: dict[tuple[str, str], list[Answer]] = defaultdict(list)
    for answer in answers:
        if not answer.temperature and answer.text is not None:
            known[answer.id, answer.mode].append(answer)
    for (id, mode), own in known.items():
        if mode == "auto":
            yield from zip(known.get((id, "plain"), ()), own, strict=False)


def in_words(differing: Sequence[Parting | None]) -> str:
    """Return a message that says at which tokens texts differ, and how to find out if rounding is
    the reason.
    """
    parts = []
    for each in differing:
        if each:
            first, second = each.tokens
            gap = "" if each.gap is None else f", {each.gap:.2g} apart in logits"
            parts.append(f"one at token {each.position} ({first} or {second}{gap})")
    where = f"they part: {', '.join(parts)}. " if parts else ""
    return (
        f"{where}Rounding decides between near ties; with --batch-invariant the texts are equal "
        "where the engine can, and if they are not, please report it"
    )


def parting(
    engine: Engine, prompt: Sequence[int], plain: Sequence[int], drafted: Sequence[int]
) -> Parting | None:
    """Return the first difference of two answers to a prompt, None if one begins with the other.

    To get the gap, the answer without drafts is generated again up to that token.
    """
    pairs = list(zip(plain, drafted, strict=False))
    n = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    if n is None:
        return None
    with contextlib.suppress(EdgeSpecError):  # not every target tells log-probabilities
        alone = engine.generate(
            list(prompt), max_tokens=n + 1, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0,
            repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logprobs=5,
            disable_spec_decode=True,
        )  # fmt: skip
        gap = _gap((alone.logprobs or ())[n], *pairs[n])
        return Parting(n, pairs[n], gap)
    return Parting(n, pairs[n])


def _gap(row: Logprob, first: int, second: int) -> float | None:
    """Return the log-probability of `first` minus that of `second`, None if the row lacks one."""
    known = dict(row.top)
    return known[first] - known[second] if first in known and second in known else None
