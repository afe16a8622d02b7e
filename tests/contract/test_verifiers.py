"""The promises of verifiers, run against each of them with a toy target."""

import contextlib
import time
from collections.abc import Callable
from typing import NamedTuple

import pytest

from edgespec import (
    Aborted,
    ContextFull,
    SamplingParams,
    ToyModel,
    VerifierRefused,
    VerifierUnavailable,
)
from edgespec.backends.base import Tokenizer
from edgespec.config import RemoteConfig
from edgespec.constraints.compiler import Constraints
from edgespec.decoding.session import Session
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.engine import Engine
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Draft
from edgespec.verifiers import REMOTE, connect
from edgespec.verifiers.base import AsyncVerifier, Verifier
from edgespec.verifiers.fallback import Fallback
from edgespec.verifiers.local import LocalVerifier
from edgespec.verifiers.remote import RemoteVerifier
from tests.helpers import fake_engines, serving

N_CTX = 160


class Target(NamedTuple):
    """A verifier, and what makes one of the same target in this process to compare with."""

    verifier: Verifier
    here: Callable[[], LocalVerifier]
    tokenizer: Tokenizer
    prompt: list[int]
    wrong: int  # a token that the target never emits after the prompt


def small():
    """Return the target of the verification server."""
    return serving.toy(n_ctx=N_CTX)


def bytewise():
    """Return the target of the inference servers of others."""
    return ToyModel(fake_engines.toy_probs, vocab_size=fake_engines.VOCAB, n_ctx=N_CTX)


def of_small(verifier):
    prompt = serving.TOKENIZER.encode("the cat sat on the mat")
    return Target(verifier, lambda: LocalVerifier(small()), serving.TOKENIZER, prompt, wrong=27)


def of_bytes(verifier):
    prompt = fake_engines.TOKENIZER.encode("abab")
    return Target(
        verifier, lambda: LocalVerifier(bytewise()), fake_engines.TOKENIZER, prompt, ord("z")
    )


@contextlib.contextmanager
def behind_a_server():
    with serving.Server(lambda: serving.served(n_ctx=N_CTX)) as server:
        yield RemoteConfig(server.url, timeout_s=5.0)


@contextlib.contextmanager
def local():
    yield of_small(LocalVerifier(small()))


@contextlib.contextmanager
def remote():
    with behind_a_server() as config:
        yield of_small(connect(config, serving.TOKENIZER))


@contextlib.contextmanager
def fallback():
    with behind_a_server() as config:
        yield of_small(Fallback(lambda: connect(config, serving.TOKENIZER), LocalVerifier(small())))


def nobody():
    raise VerifierUnavailable("nobody is there")


@contextlib.contextmanager
def fallback_alone():
    yield of_small(Fallback(nobody, LocalVerifier(small())))


@contextlib.contextmanager
def inference_server(kind, scheme):
    n_ctx = N_CTX + (7 if kind == "sglang" else 1)
    with fake_engines.FakeEngine(kind, n_ctx=n_ctx).serving() as url:
        config = RemoteConfig(f"{scheme}+{url}", timeout_s=5.0, n_ctx=n_ctx)
        yield of_bytes(connect(config, fake_engines.TOKENIZER))


TARGETS = {
    "local": local,
    "remote": remote,
    "fallback": fallback,
    "fallback, nobody there": fallback_alone,
    "vLLM": lambda: inference_server("vllm", "vllm"),
    "llama-server": lambda: inference_server("llamacpp", "openai"),
    "another server": lambda: inference_server("generic", "openai"),
    "SGLang": lambda: inference_server("sglang", "sglang"),
}


@pytest.fixture(params=TARGETS)
def target(request):
    with TARGETS[request.param]() as found:
        yield found
        found.verifier.close()


def begin(verifier, prompt, abort=None):
    """Start a greedy request; return the progress."""
    request = Request(prompt, SamplingParams(), SeededRandomness(1), abort=abort)
    return list(verifier.begin(request))


def step(verifier, draft=()):
    verdict = verifier.verify(Draft(tuple(draft)))
    verifier.accept(verdict.tokens)
    return verdict.tokens


def plain(target, n, prompt=None):
    """Return the next n tokens of plain decoding in this process."""
    here = target.here()
    begin(here, prompt or target.prompt)
    return [step(here)[0] for _ in range(n)]


def test_it_says_what_it_takes(target):
    assert target.verifier.n_ctx == N_CTX
    assert target.verifier.max_draft >= 8


def test_an_empty_draft_is_a_plain_step(target):
    begin(target.verifier, target.prompt)
    verdict = target.verifier.verify(Draft())
    assert list(verdict.tokens) == plain(target, 1)
    assert verdict.n_accepted == 0


def test_plain_steps_are_plain_decoding(target):
    begin(target.verifier, target.prompt)
    assert [step(target.verifier) for _ in range(12)] == [(t,) for t in plain(target, 12)]


def test_full_acceptance(target):
    expected = plain(target, 4)
    begin(target.verifier, target.prompt)
    verdict = target.verifier.verify(Draft(tuple(expected[:3])))
    assert verdict.n_accepted == 3
    assert list(verdict.tokens) == expected


def test_rejection(target):
    first, second, *_ = plain(target, 2)
    begin(target.verifier, target.prompt)
    verdict = target.verifier.verify(Draft((first, target.wrong, target.wrong)))
    assert verdict.n_accepted == 1
    assert verdict.tokens == (first, second)


def test_a_tree_is_followed_as_far_as_it_is_right(target):
    if target.verifier.max_leaves == 1:
        pytest.skip("a promise of trees, and this verifier takes chains only")
    first, second, third, *rest = plain(target, 6)
    begin(target.verifier, target.prompt)
    tree = Draft(
        (target.wrong, first, target.wrong, second, target.wrong), parents=(-1, -1, 1, 1, 3)
    )
    for accepted, emitted in [(2, (first, second, third)), (0, rest[:1]), (0, rest[1:2])]:
        verdict = target.verifier.verify(tree)
        assert (verdict.n_accepted, list(verdict.tokens)) == (accepted, list(emitted))
        target.verifier.accept(verdict.tokens)
    assert step(target.verifier) == (rest[2],)


def test_who_takes_trees(target):
    """Servers of others verify chains only."""
    ours = isinstance(target.verifier, (LocalVerifier, RemoteVerifier, Fallback))
    assert (target.verifier.max_leaves > 1) == ours


def test_verdicts_are_those_of_the_target_in_this_process(target):
    """Every kind of draft, first and after another one; what was evaluated is counted alike."""
    right, wrong = plain(target, 3), target.wrong
    for draft in [(), right, (wrong,), (right[0], wrong), (*right[:2], wrong, wrong)]:
        here, there = target.here(), target.verifier
        reuses = isinstance(there, (LocalVerifier, AsyncVerifier))
        begin(there, target.prompt)
        begin(here, target.prompt)
        for i, tokens in enumerate([tuple(draft), (wrong, wrong), ()]):
            ours, theirs = (v.verify(Draft(tokens)) for v in (here, there))
            assert (theirs.tokens, theirs.n_accepted) == (ours.tokens, ours.n_accepted)
            assert theirs.n_evaluated == ours.n_evaluated or (reuses and i == 0)
            here.accept(ours.tokens)
            there.accept(theirs.tokens)


def test_a_prompt_that_begins_like_the_last_one(target):
    begin(target.verifier, target.prompt)
    said = [token for _ in range(5) for token in step(target.verifier)]
    for prompt in ([*target.prompt, *said, *target.prompt], target.prompt[:3], target.prompt):
        progress = begin(target.verifier, prompt)
        assert progress == sorted(progress)
        assert progress[-1] <= len(prompt)
        found = [token for _ in range(4) for token in step(target.verifier)]
        assert found == plain(target, 4, prompt)


def test_an_empty_prompt_is_refused(target):
    with pytest.raises(ValueError, match="empty"):
        begin(target.verifier, [])


def test_context_full(target):
    many = (target.prompt * N_CTX)[: N_CTX + 1]
    with pytest.raises(ContextFull, match="shorten the prompt"):
        begin(target.verifier, many)
    begin(target.verifier, many[:N_CTX])
    with pytest.raises(ContextFull):
        target.verifier.verify(Draft((target.wrong,)))
    begin(target.verifier, many[:N_CTX])
    assert list(step(target.verifier)) == plain(target, 1, many[:N_CTX])
    test_full_acceptance(target)


def test_an_aborted_step_and_the_request_after_it(target):
    stopped = []
    begin(target.verifier, target.prompt, abort=lambda: "cancelled" if stopped else None)
    step(target.verifier)
    stopped.append(True)
    with pytest.raises(Aborted):
        target.verifier.verify(Draft((target.wrong,) * 3))
    test_plain_steps_are_plain_decoding(target)


def test_fewer_tokens_are_accepted_than_were_emitted(target):
    """A stop string may cut them; the request goes on after what was kept."""
    expected = plain(target, 6)
    begin(target.verifier, target.prompt)
    assert list(target.verifier.verify(Draft(tuple(expected[:3]))).tokens) == expected[:4]
    target.verifier.accept(expected[:2])
    found = [*step(target.verifier), *step(target.verifier, expected[3:5])]
    assert found == expected[2:6]


def test_a_constraint_holds_for_its_request_or_is_refused(target):
    pytest.importorskip("llguidance")
    params = SamplingParams(choices=("abba", "abca"))
    constraint = Constraints(target.tokenizer).of(params)
    request = Request(target.prompt, params, SeededRandomness(1), constraint=constraint)
    a, b = target.tokenizer.encode("ab")
    if isinstance(target.verifier, (LocalVerifier, RemoteVerifier, Fallback)):
        list(target.verifier.begin(request))
        found = [*step(target.verifier, [target.wrong, a]), *step(target.verifier, [b, a, a])]
        while not target.tokenizer.is_eog(found[-1]):
            found += step(target.verifier)
        assert b"".join(map(target.tokenizer.piece, found[:-1])) in (b"abba", b"abca")
    else:
        with pytest.raises(VerifierRefused, match="cannot serve choices"):
            target.verifier.begin(request)
    test_plain_steps_are_plain_decoding(target)


@pytest.mark.parametrize("options", [{}, {"ignore_eos": True}], ids=["", "ignore_eos"])
def test_greedy_text_is_that_of_plain_decoding(target, options):
    def generate(verifier, drafters):
        session = Session(verifier, drafters, FixedDepth(3))
        engine = Engine([session], target.tokenizer)
        return engine.generate(target.prompt, max_tokens=60, **options)

    drafted = generate(target.verifier, [SuffixDrafter(1)])
    expected = generate(target.here(), [])
    assert drafted.token_ids == expected.token_ids
    assert drafted.finish_reason == expected.finish_reason
    assert 0 < drafted.stats.num_accepted_draft_tokens < drafted.stats.num_draft_tokens


def test_close_twice(target):
    target.verifier.close()
    target.verifier.close()


@pytest.mark.parametrize("name", ["remote", "fallback", "fallback, nobody there"])
def test_a_verdict_in_two_halves(name):
    with TARGETS[name]() as target:
        verifier = target.verifier
        assert isinstance(verifier, AsyncVerifier)
        assert verifier.round_trip_s() >= 0
        expected = plain(target, 8)
        begin(verifier, target.prompt)
        found = []
        for draft in (expected[:2], [], []):
            verifier.submit(Draft(tuple(draft)))
            while not verifier.ready():
                time.sleep(0.001)
            tokens = verifier.result().tokens
            verifier.accept(tokens)
            found += tokens
        assert found == expected[:5]
        verifier.finish()
        test_full_acceptance(target)
        verifier.close()


def test_every_scheme_has_a_verifier():
    for make in REMOTE.values():
        assert callable(make())
