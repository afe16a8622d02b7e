"""Answers of a target on another machine, enumerated: frames go between two halves of a process.

The law is that of the masked target, which `test_constraints` computes without edgespec.
"""

import itertools
from collections import deque

import pytest

from edgespec import SamplingParams, ToyModel, protocol
from edgespec.backends.separate import SeparateModels
from edgespec.chat.constraints import AnswerConstraints
from edgespec.config import RemoteConfig
from edgespec.constraints.compiler import Constraints
from edgespec.server.verification import frames
from edgespec.server.verification.sessions import Sessions
from edgespec.verifiers.remote import verifier as remote
from tests.helpers import toy_loops as loop
from tests.helpers import whole_answers as whole
from tests.helpers.enumeration import law, total_variation
from tests.helpers.masked_loops import LANGUAGES, N, answer, masked_law
from tests.helpers.selection import sample

pytest.importorskip("llguidance")


class Loopback:
    """A connection to sessions in this process, which take a step whenever the device waits."""

    host, n_vocab, abort = "here", 3, None

    def __init__(self, sessions, tokenizer):
        self._sessions, self._arrived = sessions, deque()
        digest = protocol.vocabulary_hash(tokenizer, 3)
        opening = protocol.encode(protocol.Open(protocol.VERSION, protocol.NO_TOKEN, 3, digest, ""))
        self._session = sessions.open(opening, self._hear)
        self.opened = self._arrived.popleft()

    def _hear(self, data):
        self._arrived.append(protocol.decode(data))

    def again(self, action, resume):
        return action()

    def answered(self):
        """Note nothing: nothing gets lost here."""

    def send(self, frame):
        assert self._sessions.receive(self._session, self._hear, protocol.encode(frame))

    def receive(self):
        while not self._arrived:
            assert self._sessions.step(), "the server has nothing to do, and the device waits"
        frame = self._arrived.popleft()
        assert not isinstance(frame, protocol.Error), frame
        return frame

    def ready(self, is_past):
        return bool(self._arrived)

    def ping_s(self):
        return 0.0


@pytest.fixture
def session_elsewhere(monkeypatch):
    """Return a function that makes a loop with the target on the other side of the protocol."""

    def make(kind, chance, tokenizer=loop.TOKENIZER, **options):
        model = SeparateModels([ToyModel(loop.probs_of(1), vocab_size=3)])
        sessions = Sessions(model, tokenizer, name="toy")
        monkeypatch.setattr(frames, "SeededRandomness", lambda seed: chance)
        monkeypatch.setattr(remote, "Connection", lambda *given: Loopback(sessions, tokenizer))
        if chance:
            chance.seed = 0
        made = loop.session(kind, "coupled", **options)
        made._verifier = made._remote = remote.RemoteVerifier(RemoteConfig("ws://"), tokenizer)
        return made

    return make


@pytest.fixture
def elsewhere(session_elsewhere):
    """Return a function that runs an answer with the target on the other side."""

    def run(kind, chance, params, **options):
        return answer(session_elsewhere(kind, chance, **options), chance, params)

    return run


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", ["none", "suffix", "forced", "forced, suffix"])
def test_law_is_that_of_the_masked_target(elsewhere, kind, language):
    given, texts = LANGUAGES[language]
    params = SamplingParams(temperature=1.0, max_tokens=N, **given)
    for options in ({"depth": 2}, {"depth": 4}):
        found = law(lambda chance: elsewhere(kind, chance, params, **options))  # noqa: B023
        assert total_variation(found, masked_law(texts)) <= 1e-12


@pytest.mark.parametrize("name", whole.CASES)
@pytest.mark.parametrize("kind", ["none", "forced, suffix"])
def test_law_of_whole_answers_with_calls_and_reasoning(session_elsewhere, kind, name):
    case = whole.CASES[name]
    params = SamplingParams(temperature=1.0, max_tokens=N, **case.params)
    constraint = AnswerConstraints(Constraints(case.tokenizer), case.form).of(
        params, case.options, case.rendered
    )

    def run(chance):
        made = session_elsewhere(kind, chance, case.tokenizer)
        return whole.answer(case, constraint, made, chance, params)

    assert total_variation(law(run), whole.masked_law(case)) <= 1e-12


DRAWN = ["model", "tree", "model tree", "merged", "model, forced", "model tree, forced"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_text_is_a_function_of_noise_alone(elsewhere, language):
    given, _ = LANGUAGES[language]
    params = SamplingParams(temperature=1.0, max_tokens=3, **given)
    grid = [*itertools.permutations([0.2, 0.9, 1.7]), (0.5, 0.6, 0.7)][::2]
    for noise in sample(itertools.product(grid, repeat=3)):
        chance = loop.GridNoise([*noise, *noise])
        expected = answer(loop.session("none"), chance, params)
        for kind in DRAWN:
            assert elsewhere(kind, chance, params, depth=3) == expected


@pytest.mark.parametrize("kind", ["none", *DRAWN, "forced, suffix"])
def test_greedy_equals_plain(elsewhere, kind):
    for given, texts in LANGUAGES.values():
        params = SamplingParams(max_tokens=12, **given)
        plain = answer(loop.session("none"), None, params)
        assert elsewhere(kind, None, params, depth=3) == plain
        assert plain[1] in texts or len(plain[0]) == 12
