"""Test vectors of prompt lookup for other languages: what it reads, and what it drafts then.

`python -m tests.unit.drafters.test_suffix_vectors` writes tests/data/drafter_vectors.json anew.
"""

import json
import random
from pathlib import Path

import pytest

from edgespec.drafters.base import LEAST
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.types import Verified
from tests.helpers.growing import begin

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "tests" / "data" / "drafter_vectors.json"
IDS = ROOT / "tests" / "data" / "lookup_ids.json"  # a text with code in it, SmolLM2's tokens


class Recording:
    """Records what a drafter is told and what it drafts."""

    def __init__(self, name, min_match=2, p_min=0.0):
        self._drafter, self._p_min = SuffixDrafter(min_match), p_min
        self._steps = []
        self.case = {"name": name, "min_match": min_match, "p_min": p_min, "steps": self._steps}

    def begin(self, prompt, earlier=()):
        begin(self._drafter, list(prompt), earlier=tuple(earlier))
        self._steps.append({"begin": list(prompt), "earlier": list(earlier)})
        return self

    def propose(self, limit):
        tokens, probs = self._chain(limit)
        rounded = [float(f"{p:.12g}") for p in probs]
        self._steps.append({"propose": limit, "tokens": list(tokens), "acceptance_probs": rounded})
        return tokens

    def _chain(self, limit):
        """Return the first guesses, each after those before, and how likely they are accepted."""
        state, tokens, probs, prob = self._drafter.root(), [], [], 1.0
        while len(tokens) < limit and (children := self._drafter.children(state)):
            prob *= children[0][1]
            if prob < max(self._p_min, LEAST):
                break
            tokens.append(children[0][0])
            probs.append(prob)
            state = self._drafter.step(state, tokens[-1])
        return tokens, probs

    def accept(self, tokens):
        self._drafter.accept(Verified(tuple(tokens)))
        self._steps.append({"accept": list(tokens)})
        return self

    def answer(self, tokens, limits):
        """Draft a known answer with these limits in turn, and accept what is right."""
        tokens, step = list(tokens), 0
        while tokens:
            draft = self.propose(limits[step % len(limits)])
            right = next((i for i, t in enumerate(draft) if tokens[i : i + 1] != [t]), len(draft))
            self.accept(tokens[: right + 1])
            tokens, step = tokens[right + 1 :], step + 1
        self.propose(limits[0])
        return self


def cases():
    real = json.loads(IDS.read_text("utf-8"))["ids"]
    yield Recording("nothing seen twice").begin([1, 2, 3, 4]).answer([5, 6, 1, 7], [4])
    for min_match in (1, 2, 3):
        name = f"endings of {min_match} tokens and more"
        yield (
            Recording(name, min_match)
            .begin([5, 1, 2, 3, 9, 1, 2, 4, 9, 1, 2])
            .answer([4, 9, 1, 2, 3, 9, 8, 3], [1, 5])
        )
    for p_min in (0.3, 0.7):
        yield Recording(f"p_min {p_min}", 2, p_min).begin(real[:200]).answer(real[200:240], [16])
    yield Recording("periodic").begin([7] * 150).answer([7] * 40 + [8] + [7] * 10, [31, 3])
    yield (
        Recording("turns that were left out")
        .begin([1, 2, 9, 1], earlier=[4, 5, 6, 1, 2, 3, 9])
        .answer([2, 3, 9, 4, 5, 6, 1], [6])
        .begin([9, 4, 5], earlier=[8, 8, 4, 5, 6])
        .answer([6, 9, 4, 5, 6], [3])
    )
    yield (
        Recording("nothing is drafted across a separator")
        .begin([1, 2], earlier=[5, 1, 2])
        .answer([5, 1, 2], [4])
    )
    chat = Recording("a conversation that goes on, and one that does not")
    chat.begin(real[:120]).answer(real[120:180], [8])
    chat.begin(real[:200]).answer(real[200:230], [8])
    chat.begin([*real[:60], *real[150:200]]).answer(real[200:220], [8])
    yield chat
    for vocab, seed in ((2, 0), (3, 1), (8, 2)):
        rng = random.Random(seed)
        text = [rng.randrange(vocab) for _ in range(260)]
        yield (Recording(f"random, {vocab} tokens").begin(text[:60]).answer(text[60:], [4, 1, 12]))
    yield Recording("a real text").begin(real[:170]).answer(real[170:], [8, 31])
    yield Recording("limit 0").begin([1, 2, 3, 1, 2]).answer([3, 1], [0])


def vectors():
    return {"cases": [recording.case for recording in cases()]}


def as_text():
    lines = []
    for case in vectors()["cases"]:
        steps = ",\n   ".join(map(json.dumps, case.pop("steps")))
        lines.append(f'  {json.dumps(case)[:-1]}, "steps": [\n   {steps}]}}')
    return '{"cases": [\n' + ",\n".join(lines) + "\n]}\n"


def test_the_vectors_in_the_repository():
    """Tokens are equal, probabilities as far as two mathematics libraries agree on a power."""
    kept = json.loads(VECTORS.read_text("utf-8"))["cases"]
    found = vectors()["cases"]
    again = "run: python -m tests.unit.drafters.test_suffix_vectors"
    assert [case["name"] for case in kept] == [case["name"] for case in found], again
    for old, new in zip(kept, found, strict=True):
        assert len(old["steps"]) == len(new["steps"]), again
        for i, (before, now) in enumerate(zip(old["steps"], new["steps"], strict=True)):
            probs = now.pop("acceptance_probs", [])
            assert before.pop("acceptance_probs", []) == pytest.approx(probs, rel=1e-11), (i, again)
            assert before == now, (old["name"], i, again)


def test_the_vectors_say_something():
    steps = [step for case in vectors()["cases"] for step in case["steps"]]
    assert sum(len(step.get("tokens", ())) for step in steps) > 1000
    assert sum(step.get("tokens") == [] for step in steps) > 50
    assert sum(len(step.get("accept", ())) > 2 for step in steps) > 20


if __name__ == "__main__":
    VECTORS.write_text(as_text(), "utf-8")
