"""Replay of what `edgespec bench replay` leaves out: temperatures, chains alone, targets on another
machine, and answers that a constraint forces in parts. Recorded answers stay as they are: what is
random is drawn given that the answer comes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from edgespec.bench import replay
from edgespec.bench.trace_head import HEADS
from edgespec.bench.trace_model import VOCAB, TraceModel
from edgespec.bench.traces import Trace
from edgespec.config import SamplingParams, SpeculativeConfig
from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.decoding.output import Output
from edgespec.drafters.base import DrafterContext
from edgespec.loading.assembly import speculate, uses_model
from edgespec.sampling.base import Request
from edgespec.types import Distribution, Draft, Stats, Verdict


@dataclass(frozen=True, slots=True)
class Setting:
    """What is replayed: a device, drafters, and how requests are decoded.

    head: in place of the recorded draft model. trip_s: to a target on another machine, 0: here.
    forced: share of an answer that a constraint forces.
    """

    device: str
    method: str = "auto"
    chains: bool = False
    temperature: float = 0.0
    acceptance: str = "block"
    head: str = ""
    trip_s: float = 0.0
    forced: float = 0.0

    def __str__(self) -> str:
        words = [self.device, self.method, self.head, "chains" if self.chains else ""]
        words += [f"T={self.temperature} {self.acceptance}" if self.temperature else ""]
        words += [f"{1e3 * self.trip_s:.0f} ms away" if self.trip_s else ""]
        words += [f"{self.forced:.0%} forced" if self.forced else ""]
        return ", ".join(filter(None, words))


class Given:
    """Randomness given that a recorded answer is drawn.

    Noise of a position is such that the target draws the answer's token with it. A draw is one of
    two draws that agree as often as they can, the target's being the answer's token.
    """

    def __init__(self, trace: Trace, temperature: float, draft: TraceModel | None) -> None:
        self._trace, self._temperature, self._draft = trace, temperature, draft
        self._random = random.Random(trace.id)
        self._noise: dict[tuple[int, int], float] = {}

    def bernoulli(self, probability: float) -> bool:
        raise AssertionError("the replayed verifier accepts what is in the answer")

    def draw(self, distribution: Distribution) -> int:
        """Draw a token for the draft model, which has just evaluated the one before it."""
        model = self._draft
        at = len(model._tokens) - len(self._trace.prompt)
        ids, probs = list(map(int, distribution.ids)), list(map(float, distribution.probs))
        if model._same == len(model._tokens) and 0 <= at < len(self._trace.output):
            target, answer = dict(self._target(at)), self._trace.output[at]
            both = min(1.0, distribution.prob(answer) / max(target.get(answer, 0.0), 1e-9))
            if self._random.random() < both:
                return answer
            excess = [max(q - target.get(t, 0.0), 0.0) for t, q in zip(ids, probs, strict=True)]
            probs = excess if sum(excess) > 0 else probs
        return self._random.choices(ids, probs)[0]

    def gumbel(self, position: int, distribution: Distribution) -> int:
        return self.smallest(position, distribution, 1)[0][0]

    def smallest(
        self, position: int, distribution: Distribution, k: int
    ) -> list[tuple[int, float]]:
        races = [
            (self._race(position, int(t)) / p, int(t))
            for t, p in zip(distribution.ids, map(float, distribution.probs), strict=True)
            if p > 0
        ]
        return [(token, race) for race, token in sorted(races)[:k]]

    def _race(self, position: int, token: int) -> float:
        key = position, token
        if key not in self._noise:
            at = position - len(self._trace.prompt)
            if 0 <= at < len(self._trace.output):
                self._fill(position, at)
            seeded = random.Random(f"{self._trace.id} {position} {token}")
            self._noise.setdefault(key, seeded.expovariate(1.0))
        return self._noise[key]

    def _fill(self, position: int, at: int) -> None:
        """Draw the noise of a position, in which the answer's token wins the target's race."""
        target = dict(self._target(at))
        seeded, answer = random.Random(f"{self._trace.id} {position}"), self._trace.output[at]
        first = seeded.expovariate(1.0)
        for token in sorted(target):
            prob = target[token]
            late = 0.0 if token == answer else seeded.expovariate(prob)
            self._noise[position, token] = prob * (first + late)

    def _target(self, at: int) -> list[tuple[int, float]]:
        rows = [(t, max(p, 1e-6) ** (1 / self._temperature)) for t, p in self._trace.top[at]]
        total = sum(p for _, p in rows)
        return [(t, p / total) for t, p in rows]


class Forcing:
    """A constraint that allows everything, and forces some stretches of an answer: `Constraint` and
    `Matcher` at once.
    """

    ends: tuple[int, ...] = ()
    has_ended = False
    shown: ClassVar[dict[int, bytes]] = {}
    description: ClassVar[dict[str, bool]] = {"replay": True}

    def __init__(self, trace: Trace, share: float) -> None:
        seeded, n = random.Random(trace.id), len(trace.output)
        self._output, self._n = trace.output, 0
        self._forced = [False] * n
        at = 0
        while at < n:
            length = seeded.randrange(1, 12)
            if seeded.random() < share:
                self._forced[at : at + length] = [True] * len(self._forced[at : at + length])
            at += length
        self._all = np.ones(VOCAB, bool)

    def matcher(self) -> Forcing:
        new = object.__new__(Forcing)
        new.__dict__ |= self.__dict__ | {"_n": 0}
        return new

    def mask(self, ahead: Sequence[int] = ()) -> Any:
        return self._all

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        return True

    def forced(self, ahead: Sequence[int] = ()) -> Sequence[int]:
        start = end = self._n + len(ahead)
        if list(ahead) != list(self._output[self._n : start]):
            return ()
        while end < len(self._output) and self._forced[end]:
            end += 1
        return self._output[start:end]

    def accept(self, tokens: Sequence[int]) -> None:
        self._n += len(tokens)


class Answers:
    """The target's own draws: the tokens of the answer."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def gumbel(self, position: int, distribution: Distribution) -> int:
        return self._trace.output[position - len(self._trace.prompt)]


class Verifier(replay._Verifier):
    """Accepts of drawn drafts what is in the answer."""

    trace: Trace

    def begin(self, request: Request, *rest: Any) -> Any:
        progress = super().begin(request, *rest)
        self._verification._rule = self  # type: ignore[assignment]
        self._verification._randomness = Answers(self.trace)  # type: ignore[assignment]
        return progress

    def chain(self, tokens: Sequence[int], probs: Any, target: Any, randomness: Any) -> Any:
        own = self.trace.output[len(self._context) - len(self.trace.prompt) :]
        n = 0
        while n < len(tokens) and tokens[n] == own[n]:
            n += 1
        return n, own[n]

    def tree(self, tokens: Any, parents: Any, probs: Any, target: Any, randomness: Any) -> Any:
        own = self.trace.output[len(self._context) - len(self.trace.prompt) :]
        path: tuple[int, ...] = ()
        while True:
            last, n = path[-1] if path else -1, len(path)
            nodes = [i for i, p in enumerate(parents) if p == last and tokens[i] == own[n]]
            if not nodes:
                return path, own[n]
            path = (*path, nodes[0])


class Away(Verifier):
    """The same on another machine: evaluations take the device no time, answers travel."""

    def __init__(self, *args: Any, trip_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.notices: list[str] = []
        self._trip_s = trip_s

    def round_trip_s(self) -> float:
        return self._trip_s

    def submit(self, draft: Draft) -> None:
        began = self._clock.now
        verdict = super().verify(draft)
        self._due = self._clock.now + (self._trip_s if draft.tokens else 0.0)
        self._clock.now = began
        self._verdict = verdict._replace(rows=(), drafted_rows=(), seconds=self._due - began)

    def ready(self) -> bool:
        return bool(self._clock.now >= self._due)

    def result(self) -> Verdict:
        self._clock.now = max(self._clock.now, self._due)
        return self._verdict

    def finish(self) -> None:
        pass


class Lab(replay.Replay):
    """One setting, over as many traces as it is given."""

    def __init__(self, setting: Setting, profiles: dict[str, Profile]) -> None:
        profile = profiles[setting.device]
        self.setting, head = setting, HEADS[setting.head] if setting.head else None
        super().__init__(profile, "plain", head=head)
        if head:
            profile = replace(profile, draft=head.curve(profile.target))
        if setting.chains:
            self._target.capabilities = replace(self._target.capabilities, max_leaves=1)
        made = self._made(profile)
        self.policy, options = made.policy, {"clock": self.clock}
        self.verifier = Verifier(self._target, clock=self.clock)
        if setting.trip_s:
            self.verifier = Away(self._target, clock=self.clock, trip_s=setting.trip_s)
        self.session = made.session(self.verifier, **options)
        self.decisions: list[dict[str, Any]] = []
        self._watch()

    def _made(self, profile: Profile) -> Any:
        setting = self.setting
        memory = "process" if "memory" in setting.method.split(",") else "off"
        config = SpeculativeConfig(
            "none" if setting.method == "plain" else setting.method,
            draft_memory=memory, draft_corpus=(), acceptance=setting.acceptance,  # type: ignore
        )  # fmt: skip
        draft = self._draft if uses_model(config) else None
        target = None if setting.trip_s else self._target
        leaves = 1 if setting.chains else 31
        context = DrafterContext(config, VOCAB, target, draft_model=draft, max_leaves=leaves)
        if setting.trip_s:
            curve = profile.target
            rows = tuple(
                tuple(s + setting.trip_s * (n > 1) for n, s in zip(curve.widths, row, strict=True))
                for row in curve.seconds
            )
            profile = replace(profile, target=Curve(curve.lengths, curve.widths, rows))
        return speculate(context, lambda: Costs(profile))

    def _watch(self) -> None:
        """Record each step's draft, what was expected of it and what came of it."""
        policy, verifier, seen = self.policy, self.verifier, {}
        observe, verify = policy.observe, verifier.verify

        def verified(draft: Draft) -> Verdict:
            seen["draft"] = draft
            return verify(draft)

        def observed(step: Any, *rest: Any) -> Any:
            draft = seen.pop("draft")
            self.decisions.append({
                "n_emitted": step.n_past + 1 - len(self._trace.prompt) - step.n_emitted,
                "source": draft.source, "tokens": draft.tokens, "parents": draft.parents,
                "evaluated": draft.evaluated, "expected": round(draft.expected, 4),
                "accepted": step.n_accepted, "ms": round(1e3 * step.total_s, 3),
            })  # fmt: skip
            return observe(step, *rest)

        policy.observe = observed
        if self.setting.trip_s:
            submit = verifier.submit
            verifier.submit = lambda draft: submit(seen.setdefault("draft", draft))
        else:
            verifier.verify = verified

    def answer(self, trace: Trace) -> float:
        """Replay one answer and return its seconds."""
        for model in filter(None, (self._target, self._draft)):
            model.tell(trace)
        self._trace = self.verifier.trace = trace
        temperature = self.setting.temperature
        params = SamplingParams(
            temperature=temperature, top_k=8 if temperature else 0, max_tokens=len(trace.output)
        )
        randomness = Given(trace, temperature, self._draft) if temperature else None
        constraint = Forcing(trace, self.setting.forced) if self.setting.forced else None
        request = Request(
            trace.prompt,
            params,
            randomness,
            constraint=constraint,  # type: ignore[arg-type]
        )
        output, began = Output(replay.Pieceless(), params), self.clock.now  # type: ignore
        for _ in self.session.generate(request, output, Stats()):
            pass
        if output.token_ids != trace.output:
            raise AssertionError(f"{self.setting}: another text than its trace, {trace.id}")
        return self.clock.now - began
