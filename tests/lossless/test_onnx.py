"""The loop's law on onnxruntime: target and draft are graphs, every outcome is enumerated."""

import numpy as np
import pytest

from edgespec import EngineConfig, EngineMissing, SamplingParams
from edgespec.decoding.session import Session
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.policies.fixed import FixedDepth
from edgespec.verifiers.local import LocalVerifier
from tests.helpers import toy_loops
from tests.helpers.acceptance_rules import UNCOUPLED
from tests.helpers.enumeration import law, total_variation

onnx_models = pytest.importorskip("tests.helpers.onnx_models")
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)


@pytest.fixture(scope="module", params=[0.0, 1.5], ids=["rows alike", "rows differ alone"])
def pair(request, tmp_path_factory):
    rng = np.random.default_rng(3)
    models = []
    for name in ("target", "draft"):
        graph = onnx_models.table(rng.dirichlet([0.8, 0.8, 0.4], 3), request.param)
        path = onnx_models.save(tmp_path_factory.mktemp(name), graph)
        config = EngineConfig(n_ctx=64, n_threads=1, batch_invariant=name == "target")
        models.append(backend.OnnxModel(path, config))
    yield models
    for model in models:
        model.close()


def outcome(chance, pair, kind, acceptance, params):
    target, draft = pair
    target.truncate(0)
    draft.truncate(0)
    drafters = {
        "none": [],
        "suffix": [SuffixDrafter(1)],
        "model": [ModelDrafter(draft, 3, acceptance=acceptance)],
    }[kind]
    made = Session(LocalVerifier(target, acceptance), drafters, FixedDepth(2))
    return toy_loops.outcome(chance, made, params)


@pytest.mark.parametrize("params", [
    SamplingParams(temperature=1.0, max_tokens=3),
    SamplingParams(temperature=0.7, max_tokens=3, ignore_eos=True, top_k=2, stop=("ba",)),
], ids=range(2))  # fmt: skip
@pytest.mark.parametrize("acceptance", UNCOUPLED)
def test_law_equals_plain(pair, acceptance, params):
    plain = law(lambda chance: outcome(chance, pair, "none", acceptance, params))
    assert len(plain) > 4
    for kind in ("suffix", "model"):
        found = law(lambda chance, kind=kind: outcome(chance, pair, kind, acceptance, params))
        assert total_variation(found, plain) <= 1e-12


def test_without_pairing_the_law_is_another_one(tmp_path):
    """Show the need for pairing: where rows differ alone, drafts would change the law."""
    rng = np.random.default_rng(3)
    models = []
    for name in ("target", "draft"):
        graph = onnx_models.table(rng.dirichlet([0.8, 0.8, 0.4], 3), 1.5)
        path = onnx_models.save(tmp_path / name, graph)
        models.append(backend.OnnxModel(path, EngineConfig(n_ctx=64, batch_invariant=False)))
    params = SamplingParams(temperature=1.0, max_tokens=3)
    laws = [
        law(lambda chance, kind=kind: outcome(chance, models, kind, "block", params))
        for kind in ("none", "model")
    ]
    assert total_variation(*laws) > 1e-2
