"""Recorded answers of real servers (`benchmarks/real_engines.py`) replayed: the same
requests must be sent, and the answers must give the server's own text.
"""

import json
from pathlib import Path

import pytest

from edgespec import SamplingParams
from edgespec.config import RemoteConfig
from edgespec.decoding.session import Session
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.engine import Engine
from edgespec.errors import VerifierFault
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.types import Draft
from edgespec.verifiers.completions import CompletionsVerifier
from edgespec.verifiers.http import Http
from edgespec.verifiers.sglang import SGLangVerifier
from tests.helpers.fake_engines import FakeEngine

DATA = Path(__file__).parents[2] / "data" / "engines"
RECORDINGS = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}
RUNS = [(name, i) for name, found in RECORDINGS.items() for i in range(len(found["runs"]))]


class RecordedTokenizer:
    """As much of SmolLM2's tokenizer as was recorded."""

    vocab_size = 49152
    chat_template = None

    def __init__(self, recording):
        self._encoded, self._special = recording["encoded"], recording["special"]

    def encode(self, text, *, add_special=True, parse_special=True):
        assert not add_special
        return self._encoded[text]

    def special(self):
        return dict(enumerate(self._special))

    def is_eog(self, token):
        return False

    def piece(self, token):
        return b""


def replay(name, i, spoil=lambda answer: answer):
    """Return a server that gives recorded answers to exactly the recorded requests, in order."""
    recording = RECORDINGS[name]
    run = recording["runs"][i]
    steps = iter([*run["connecting"], *run["rounds"]])
    n_left = len(run["connecting"])

    def before(path, body):
        nonlocal n_left
        step = next(steps)
        assert (path, body) == (step["path"], step["request"])
        n_left -= 1
        answer = (
            step["response"] if n_left >= 0 else spoil(json.loads(json.dumps(step["response"])))
        )
        return 200, {}, json.dumps(answer).encode()

    engine = FakeEngine(recording["kind"])
    engine.before = before
    return engine, run, RecordedTokenizer(recording)


def connected(name, run, url, tokenizer):
    http = Http(url, retries=0, timeout_s=5)
    if RECORDINGS[name]["kind"] == "sglang":
        return SGLangVerifier(RemoteConfig(f"sglang+{url}"), tokenizer, http=http)
    remote = RemoteConfig(f"openai+{url}")
    return CompletionsVerifier(remote, tokenizer, http=http, greedy=run["recipe"])


@pytest.mark.parametrize(("name", "i"), RUNS)
def test_recorded_text(name, i):
    engine, run, tokenizer = replay(name, i)
    with engine.serving() as url:
        target = connected(name, run, url, tokenizer)
        session = Session(target, [SuffixDrafter(1)], FixedDepth(run["depth"]))
        with Engine([session], tokenizer) as made:
            found = made.generate(run["prompt"], max_tokens=len(run["own"]), ignore_eos=True)
    assert list(found.token_ids) == run["own"]
    assert found.stats.num_accepted_draft_tokens > 0
    assert len(engine.seen) == len(run["connecting"]) + len(run["rounds"])


def fewer(answer):
    """One choice, or one row, too few."""
    rows = answer.get("choices") or answer["meta_info"]["input_top_logprobs"]
    rows.pop()
    return answer


def nulls(answer):
    for choice in answer.get("choices", []):
        choice["logprobs"] = None
    if "meta_info" in answer:
        rows = answer["meta_info"]["input_top_logprobs"]
        answer["meta_info"]["input_top_logprobs"] = [None] * len(rows)
    return answer


@pytest.mark.parametrize("spoil", [fewer, nulls])
@pytest.mark.parametrize(("name", "i"), RUNS)
def test_spoiled_recordings(name, i, spoil):
    engine, run, tokenizer = replay(name, i, spoil)
    first = run["rounds"][0]["request"]
    longest = first["prompt"][-1] if "prompt" in first else first["input_ids"]
    with engine.serving() as url:
        target = connected(name, run, url, tokenizer)
        list(target.begin(Request(run["prompt"], SamplingParams(), None)))
        with pytest.raises(VerifierFault):
            target.verify(Draft(tuple(longest[len(run["prompt"]) :])))
        target.close()
