"""Where a greedy text with drafts parts from the one without, and how near a tie that is.

An engine rounds the row of a token that is evaluated alone otherwise than among several. Where two
tokens are closer to each other than that, either may come out.
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
    """The first token that differs, of an answer of greedy decoding with drafts.

    tokens: the one without drafts and the one with. gap: of their logits without drafts, None
    where it is not known.
    """

    position: int
    tokens: tuple[int, int]
    gap: float | None = None


def partings(engine: Engine, answers: Iterable[Answer]) -> list[Parting | None]:
    """Return, for each greedy answer whose text differs with drafts, where it parts from the one
    without them, or None if that is not known.
    """
    differing = []
    for plain, drafted in greedy_pairs(answers):
        if plain.text != drafted.text:
            differing.append(parting(engine, plain.prompt, plain.token_ids, drafted.token_ids))
    return differing


def greedy_pairs(answers: Iterable[Answer]) -> Iterator[tuple[Answer, Answer]]:
    """Yield the greedy answers to a question without and with drafts whose texts are known."""
    known: dict[tuple[str, str], list[Answer]] = defaultdict(list)
    for answer in answers:
        if not answer.temperature and answer.text is not None:
            known[answer.id, answer.mode].append(answer)
    for (id, mode), own in known.items():
        if mode == "auto":
            yield from zip(known.get((id, "plain"), ()), own, strict=False)


def in_words(differing: Sequence[Parting | None]) -> str:
    """Return where texts differ, and how to find out whether rounding is why."""
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
    """Return where two answers to a prompt part, None where one of them begins with the other.

    The one without drafts is decoded once more as far as that.
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
    """Return the log-probability of `first` over `second`, None where one is not in the row."""
    known = dict(row.top)
    return known[first] - known[second] if first in known and second in known else None
