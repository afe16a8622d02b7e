"""Answers of real weights alone and among those of seven other requests: the same texts, or texts
that part at near-ties where the slots are evaluated together.
"""

import random
import threading
from pathlib import Path

import pytest

import edgespec
from edgespec import EngineConfig
from edgespec.loading.models import open_model
from tests.helpers import libllama
from tests.helpers.near_ties import NOISE, parting
from tests.helpers.selection import first, sample
from tests.helpers.weights import FOLDER
from tests.models.test_recurrent import write_mamba

libllama.require()
pytest.importorskip("llguidance")
pytestmark = [pytest.mark.model, pytest.mark.llama_cpp]

N_SLOTS, N_CTX, SEED = 8, 320, 3
LINES = (Path(__file__).parents[1] / "data/questions.txt").read_text("utf-8").splitlines()
QUESTIONS = [*LINES, *[f"Answer with one word. {line}" for line in LINES]][:30]
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 20}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
KINDS = [
    {"temperature": 0},
    {"temperature": 0.8, "seed": SEED},
    {"temperature": 0, "schema": SCHEMA},
    {"temperature": 0.8, "seed": SEED, "schema": SCHEMA},
]
TREES = {"method": "recycling,suffix", "num_speculative_tokens": 3, "draft_p_min": 0.0}
REQUESTS = [
    (question, {"max_tokens": 12} | KINDS[i % len(KINDS)]) for i, question in enumerate(QUESTIONS)
]


@pytest.fixture(
    params=first(
        1,
        ["gguf, invariant", "gguf", "recurrent", "onnx", "onnx, invariant"],
        "real weights once more",
    )
)
def loaded(request, tmp_path):
    """Return an engine of eight slots, a lone model, and True if texts must be equal."""
    kind, _, how = request.param.partition(", ")
    if kind == "gguf":
        path = request.getfixturevalue("smollm2")
    elif kind == "recurrent":
        path = tmp_path / "mamba.gguf"
        write_mamba(path)
    else:
        path = FOLDER / "smollm2-135m-onnx-int4/model.onnx"
        if not path.exists():
            pytest.skip("smollm2-135m-onnx-int4 is not in $EDGESPEC_TEST_MODELS")
    options = {"n_ctx": N_CTX, "batch_invariant": bool(how)}
    with edgespec.load(path, None, n_slots=N_SLOTS, speculative_config=TREES, **options) as engine:
        assert engine.n_slots == N_SLOTS
        model = open_model(path, EngineConfig(**options))
        yield engine, model, bool(how)
        model.close()


class Others:
    """Seven threads that ask again and again, and cancel about half of their requests."""

    def __init__(self, engine):
        self._engine, self._ended = engine, threading.Event()
        self.n_cancelled, self.errors = 0, []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(i),)) for i in range(N_SLOTS - 1)
        ]

    def _run(self, rng):
        try:
            while not self._ended.is_set():
                question, sampling = rng.choice(REQUESTS)
                n = rng.choice([1, 2, 5, 99, 99])
                with self._engine.stream(question, **sampling) as stream:
                    for i, _ in enumerate(stream):
                        if i == n:
                            stream.cancel()
                            self.n_cancelled += 1
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def test_texts_among_others_are_those_of_lone_answers(loaded):
    engine, model, is_equal = loaded
    requests = sample(REQUESTS, 5)
    alone = [engine.generate(question, **sampling).token_ids for question, sampling in requests]
    assert engine.company.counts.shared_evaluations == 0
    with Others(engine) as others:
        among = [engine.generate(question, **sampling) for question, sampling in requests]
    assert others.errors == []
    assert others.n_cancelled > 0
    shares = engine.company.model.shares_prefixes
    assert (
        (engine.company.counts.shared_draft_evaluations > 0)
        == (engine.company.counts.shared_evaluations > 0)
        == shares
    )
    assert sum(each.stats.num_draft_tokens for each in among) > 0
    for (question, sampling), expected, found in zip(requests, alone, among, strict=True):
        if is_equal:
            assert found.token_ids == expected
        gap = parting(model, engine.encode(question), sampling, expected, found.token_ids)
        assert gap < NOISE, question
