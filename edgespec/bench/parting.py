"""Where a greedy text with drafts parts from the one without, and whether rounding explains it.

An engine rounds the row of a token that is evaluated alone otherwise than among several. Where two
tokens are closer to each other than that, either may come out.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..decoding.engine import Engine
from ..errors import EdgeSpecError
from ..types import Completion, Logprob
from .answers import Answer

_LEAST_CLEAR = 2  # times the rounding: a larger gap is none that rounding decides


@dataclass(frozen=True, slots=True)
class Parting:
    """The first token that differs, of an answer of greedy decoding with drafts.

    tokens: the one without drafts and the one with. gap: of their logits without drafts. rounding:
    the most by which the gap of the two best tokens differed, with and without drafts, at the
    tokens before. Both are None where they are not known.
    """

    position: int
    tokens: tuple[int, int]
    gap: float | None = None
    rounding: float | None = None

    @property
    def is_explained(self) -> bool | None:
        """True if rounding explains it, None if that is not known."""
        if self.gap is None or self.rounding is None:
            return None
        return self.gap <= _LEAST_CLEAR * self.rounding


def partings(engine: Engine, answers: Iterable[Answer]) -> list[Parting | None]:
    """Return where every greedy answer with drafts whose text differs parts from the one without;
    None for one of which that is not known.
    """
    found = []
    for plain, drafted in greedy_pairs(answers):
        if plain.text != drafted.text:
            found.append(parting(engine, plain.prompt, plain.token_ids, drafted.token_ids))
    return found


def greedy_pairs(answers: Iterable[Answer]) -> Iterator[tuple[Answer, Answer]]:
    """Yield the greedy answers to a question without and with drafts whose texts are known."""
    known: dict[tuple[str, str], list[Answer]] = defaultdict(list)
    for answer in answers:
        if not answer.temperature and answer.text is not None:
            known[answer.id, answer.mode].append(answer)
    for (id, mode), own in known.items():
        if mode == "auto":
            yield from zip(known.get((id, "plain"), ()), own, strict=False)


def in_words(found: Sequence[Parting | None]) -> str:
    """Return why texts differ, as the rest of a sentence: by rounding, or by what may be a bug."""
    parts = []
    rounded = [each for each in found if each and each.is_explained]
    if rounded:
        gap, rounding = (max(getattr(p, n) for p in rounded) for n in ("gap", "rounding"))
        parts.append(
            f"{len(rounded)} part at two tokens that are at most {gap:.2g} apart, and the engine "
            f"rounds one and several tokens at once up to {rounding:.2g} differently; "
            "--batch-invariant rounds both alike where the engine can"
        )
    for each in found:
        if each and each.is_explained is False:
            first, second = each.tokens
            parts.append(
                f"one parts at token {each.position} ({first} without drafts, {second} with), and "
                f"{each.gap:.2g} between them is more than the rounding of {each.rounding:.2g}: "
                "this may be a bug, please report it"
            )
    if unknown := sum(each is None or each.is_explained is None for each in found):
        parts.append(f"of {unknown} it is not known why")
    return "; ".join(parts)


def parting(
    engine: Engine, prompt: Sequence[int], plain: Sequence[int], drafted: Sequence[int]
) -> Parting | None:
    """Return where two answers to a prompt part, None where one of them begins with the other.

    Both are decoded once more as far as that, with the likeliest tokens.
    """
    pairs = list(zip(plain, drafted, strict=False))
    n = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    if n is None:
        return None
    found = Parting(n, pairs[n])
    with contextlib.suppress(EdgeSpecError):  # not every target tells log-probabilities
        alone = _again(engine, prompt, n, None)
        among = _again(engine, prompt, n, alone.token_ids)
        gap = _gap((alone.logprobs or ())[n], *pairs[n])
        agree = among.stats.num_draft_tokens and among.token_ids[:n] == alone.token_ids[:n]
        rounding = max(_differences(alone, among, n), default=None) if agree else None
        found = Parting(n, pairs[n], gap, rounding)
    return found


def _again(
    engine: Engine, prompt: Sequence[int], n: int, prediction: Sequence[int] | None
) -> Completion:
    """Return the first n + 1 tokens of an answer, decoded plainly or with a prediction."""
    return engine.generate(
        list(prompt), prediction=list(prediction or ()), max_tokens=n + 1, temperature=0.0,
        top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0,
        frequency_penalty=0.0, logprobs=5, disable_spec_decode=prediction is None,
    )  # fmt: skip


def _differences(alone: Completion, among: Completion, n: int) -> Iterator[float]:
    """Yield by how much the gap of the two best tokens differs at each of the first n tokens."""
    for one, other in zip((alone.logprobs or ())[:n], (among.logprobs or ())[:n], strict=True):
        (first, p), (second, q) = one.top[:2]
        if (gap := _gap(other, first, second)) is not None:
            yield abs((p - q) - gap)


def _gap(row: Logprob, first: int, second: int) -> float | None:
    """Return the log-probability of `first` over `second`, None where one is not in the row."""
    known = dict(row.top)
    return known[first] - known[second] if first in known and second in known else None
