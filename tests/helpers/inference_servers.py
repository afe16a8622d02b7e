"""Verifiers over the fake inference servers, with fast retries."""

import contextlib

from edgespec import SamplingParams, ToyModel
from edgespec.config import RemoteConfig
from edgespec.decoding.session import Session
from edgespec.engine import Engine
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.verifiers.completions import CompletionsVerifier
from edgespec.verifiers.http import Http
from edgespec.verifiers.sglang import SGLangVerifier
from tests.helpers.fake_engines import TOKENIZER, VOCAB, FakeEngine, toy_probs

KINDS = ["vllm", "llamacpp", "sglang", "generic"]
PROMPT = TOKENIZER.encode("abab")


def toy():
    return ToyModel(toy_probs, vocab_size=VOCAB)


def verifier(kind, url, *, timeout_s=5.0, api_key=None, model="", n_ctx=None, **options):
    """Fast retries; a generic server does not tell its context."""
    http = Http(url, api_key, timeout_s=timeout_s, backoff_s=0.001)
    if kind == "generic":
        n_ctx = 200 if n_ctx is None else n_ctx
    remote = RemoteConfig(f"openai+{url}", model=model, n_ctx=n_ctx or 0)
    make = SGLangVerifier if kind == "sglang" else CompletionsVerifier
    return make(remote, TOKENIZER, http=http, **options)


@contextlib.contextmanager
def connected(kind, **options):
    """Yield a fake server, which has forgotten how it was connected, and a verifier for it."""
    engine = FakeEngine(kind)
    with engine.serving() as url, contextlib.closing(verifier(kind, url, **options)) as target:
        engine.seen.clear()
        yield engine, target


def begin(target, prompt=PROMPT, abort=None, **params):
    request = Request(prompt, SamplingParams(**params), SeededRandomness(1), abort=abort)
    return list(target.begin(request))


def generate(target, drafters=(), prompt=PROMPT, depth=3, **params):
    session = Session(target, drafters, FixedDepth(depth))
    with Engine([session], TOKENIZER) as engine:
        return engine.generate(prompt, **params)
