"""Inference servers of others as targets: text, exact distributions, what is refused."""

import types
from dataclasses import replace

import pytest

from edgespec import ContextFull, SamplingParams, ToyModel, VerifierRefused
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Draft, Stats
from edgespec.verifiers.local import LocalVerifier
from tests.helpers.enumeration import law, total_variation
from tests.helpers.fake_engines import TOKENIZER, VOCAB, FakeEngine, toy_probs
from tests.helpers.inference_servers import PROMPT, begin, connected, generate, toy, verifier

# --- text ---------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["abab", "aabbaabb", "b", "abba.abba."])
def test_greedy_text_is_the_local_one(remote, prompt):
    engine, target = remote
    ids = TOKENIZER.encode(prompt)
    options = {"prompt": ids, "max_tokens": 40, "ignore_eos": True}
    plain = generate(LocalVerifier(toy()), **options)
    drafted = generate(target, [SuffixDrafter(1)], **options)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.num_accepted_draft_tokens > 5
    assert drafted.stats.num_spec_steps == len(engine.seen)  # one request a round
    assert drafted.stats.num_draft_tokens > drafted.stats.num_accepted_draft_tokens


def test_short_prompts_take_prompt_logprobs_and_long_ones_fan_out(vllm):
    engine, target = vllm
    generate(target, [SuffixDrafter(1)], max_tokens=80, ignore_eos=True, prompt=PROMPT * 8)
    drafted = [body for _, body in engine.seen if "prompt_logprobs" in body]
    fanned = [body["prompt"] for _, body in engine.seen if len(body["prompt"]) > 1]
    assert drafted
    assert fanned
    assert max(len(body["prompt"][0]) for body in drafted) <= 16 * 4
    assert all(len(rows[-1]) > 16 * len(rows) for rows in fanned)


@pytest.mark.parametrize("greedy", ["fan-out", "prompt_logprobs"])
def test_both_greedy_recipes_of_vllm(greedy):
    with connected("vllm", greedy=greedy) as (_, target):
        options = {"prompt": PROMPT * 6, "max_tokens": 20, "ignore_eos": True}
        drafted = generate(target, [SuffixDrafter(1)], **options)
        assert drafted.token_ids == generate(LocalVerifier(toy()), **options).token_ids


def test_greedy_with_logit_bias(remote):
    engine, target = remote
    options = {"max_tokens": 20, "ignore_eos": True, "logit_bias": {ord("a"): -3.0, 98: 0.25}}
    if engine.kind == "generic":
        with pytest.raises(VerifierRefused, match="logit_bias"):
            generate(target, **options)
        return
    plain = generate(LocalVerifier(toy()), **options)
    assert generate(target, [SuffixDrafter(1)], **options).token_ids == plain.token_ids
    unbiased = generate(LocalVerifier(toy()), max_tokens=20, ignore_eos=True)
    assert plain.token_ids != unbiased.token_ids


# --- laws ---------------------------------------------------------------------------------


def outcome(chance, target, drafters, params, depth):
    session = Session(target, drafters, FixedDepth(depth))
    output = Output(TOKENIZER, params)
    list(session.generate(Request(PROMPT, params, chance), output, Stats()))
    return tuple(output.token_ids), output.finish_reason


def remote_law(engine, target, params, drafters=lambda: [SuffixDrafter(1)], depth=2):
    def run(chance):
        engine.randomness = chance
        return outcome(chance, target, drafters(), params, depth)

    return law(run)


def local_law(params):
    return law(lambda chance: outcome(chance, LocalVerifier(toy()), [], params, 0))


LAWS = [
    SamplingParams(temperature=1.0, max_tokens=3),
    SamplingParams(temperature=0.6, max_tokens=3, ignore_eos=True, top_p=0.8),
    SamplingParams(temperature=1.5, max_tokens=3, top_k=2, min_p=0.1, ignore_eos=True),
]


@pytest.mark.parametrize("params", LAWS, ids=range(len(LAWS)))
def test_the_law_is_the_targets(remote, params):
    engine, target = remote
    if engine.kind == "generic":
        params = replace(params, top_k=0, min_p=0)
    found = remote_law(engine, target, params)
    assert total_variation(found, local_law(params)) <= 1e-12
    assert any(len(body.get("prompt", body.get("input_ids"))) > 1 for _, body in engine.seen)


@pytest.mark.parametrize("acceptance", ["block", "coupled"])
def test_drawn_drafts_are_exact_too(vllm, acceptance):
    engine, target = vllm

    def other(tokens):
        p = 0.5 * toy_probs((*tokens, 1)) + 0.5 * toy_probs(tokens)
        return p / p.sum()

    def drafters():
        return [ModelDrafter(ToyModel(other, vocab_size=VOCAB), VOCAB, acceptance=acceptance)]

    params = SamplingParams(temperature=1.0, max_tokens=2)
    found = remote_law(engine, target, params, drafters, depth=1)
    assert total_variation(found, local_law(params)) <= 1e-12


def test_rows_drawn_with_one_seed_would_not_be_exact(vllm):
    """Why no seed is ever sent: the proof above must be able to fail."""
    engine, target = vllm
    engine.tied = True
    params = SamplingParams(temperature=1.0, max_tokens=2, ignore_eos=True)
    found = remote_law(engine, target, params, depth=1)
    assert total_variation(found, local_law(params)) > 1e-3


def test_a_server_that_ties_its_rows_is_refused_for_sampling():
    engine = FakeEngine("generic")
    engine.tied = True
    with engine.serving() as url:
        target = verifier("generic", url)
        begin(target)
        with pytest.raises(VerifierRefused, match="one token in all rows"):
            begin(target, temperature=1.0)
        target.close()


# --- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(("params", "what"), [
    ({"repetition_penalty": 1.1}, "repetition_penalty exactly"),
    ({"presence_penalty": 0.1}, "presence_penalty exactly"),
    ({"frequency_penalty": 0.1, "temperature": 1.0}, "frequency_penalty exactly"),
    ({"logprobs": 0}, "logprobs"),
    ({"seed": 7, "temperature": 0.5}, "a seed"),
    ({"logit_bias": {97: 101.0}}, "logit_bias"),
    ({"logit_bias": {97: float("-inf")}}, "logit_bias"),
])  # fmt: skip
def test_what_cannot_be_exact_is_refused_before_anything_is_sent(remote, params, what):
    engine, target = remote
    with pytest.raises(VerifierRefused, match=f"cannot serve {what}.*; "):
        begin(target, **params)
    assert engine.seen == []


def test_forms_of_answers_are_refused_before_anything_is_sent(remote):
    """Each round would begin the form anew."""
    engine, target = remote
    form = types.SimpleNamespace(description={"schema": "{}"}, matcher=lambda: None)
    request = Request(PROMPT, SamplingParams(), SeededRandomness(1), constraint=form)
    with pytest.raises(VerifierRefused, match="cannot serve schema: each step is a request"):
        target.begin(request)
    assert engine.seen == []


def test_a_seed_does_not_matter_to_greedy_text(remote):
    _, target = remote
    assert begin(target, seed=7) == [0]


def test_temperatures_that_vllm_replaces_are_refused(vllm):
    _, target = vllm
    with pytest.raises(VerifierRefused, match=r"temperature 0\.005.*at least 0\.01"):
        begin(target, temperature=0.005)
    begin(target, temperature=0.01)


def test_samplers_that_a_server_is_not_known_to_have_are_refused():
    with connected("generic") as (_, target):
        for params in ({"top_k": 5}, {"min_p": 0.1}):
            with pytest.raises(VerifierRefused, match="top_k and min_p"):
                begin(target, temperature=1.0, **params)
            begin(target, **params)  # moot without temperature


def test_prompts_and_drafts_end_where_the_context_does(remote):
    engine, target = remote
    longest = 193 if engine.kind == "sglang" else 199
    assert target.n_ctx == longest
    begin(target, (PROMPT * 50)[:longest])
    target.verify(Draft())
    with pytest.raises(ContextFull, match=str(longest)):
        target.verify(Draft((97,)))
    with pytest.raises(ContextFull, match="shorten the prompt"):
        begin(target, PROMPT * 50)
    with pytest.raises(ValueError, match="empty"):
        begin(target, [])
