"""The loop's law with heads on onnxruntime: every outcome is enumerated."""

import contextlib
import json

import numpy as np
import pytest

from edgespec import EngineConfig, EngineMissing, SamplingParams
from edgespec.backends.features import Features
from edgespec.decoding.session import Session
from edgespec.drafters.heads import HeadDrafter
from edgespec.drafters.window import Window
from edgespec.policies.fixed import FixedDepth
from edgespec.types import Stats
from edgespec.verifiers.local import LocalVerifier
from tests.helpers import head_files as files
from tests.helpers import mtp_files, toy_loops
from tests.helpers.enumeration import law, total_variation
from tests.helpers.head_makers import MAKERS

onnx_models = pytest.importorskip("tests.helpers.onnx_models")
folders = pytest.importorskip("tests.helpers.head_folders")
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
CONFIG = EngineConfig(n_ctx=64, n_threads=1)


HEADS = MAKERS | {
    "eagle3": lambda: files.eagle3(part=False), "mtp of MiMo": mtp_files.mimo,
}  # fmt: skip
CACHE = onnx_models.LAYERS, onnx_models.KV_HEADS, onnx_models.SIZE


@pytest.fixture(scope="module", params=list(HEADS))
def pair(request, tmp_path_factory):
    """Return a target of three tokens and a head for it."""
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("pair")
    reads_cache = request.param == "moa"
    probs = rng.dirichlet([0.8, 0.8, 0.4], 3)
    options = {"cache": CACHE} if reads_cache else {"hidden_states": (2, 4, 5, -1)}
    sizes = {"hidden_size": 32}
    if not reads_cache:
        sizes["num_hidden_layers"] = files.TARGET_LAYERS
    path = onnx_models.save(folder / "target", onnx_models.table(probs, **options))
    (path.parent / "config.json").write_text(json.dumps(sizes))
    with pytest.MonkeyPatch.context() as patch:
        for module in (files, mtp_files, onnx_models):
            patch.setattr(module, "VOCAB", 3)
        patch.setattr(files, "MASK_TOKEN", 2)
        # a table has no matrices to take
        other = onnx_models.save(folder / "other", keep=True)
        (other.parent / "config.json").write_text(json.dumps(sizes))
        head = folders.converted(folder, HEADS[request.param](), target=other)
    target = backend.OnnxModel(path, CONFIG)
    with (
        contextlib.closing(target),
        contextlib.closing(backend.open_head(head, CONFIG, target)) as opened,
    ):
        yield target, opened


def outcome(chance, pair, drafted, params):
    """Return what a run emits. drafted: takes how many tokens were drafted; None: none are."""
    target, head = pair
    drafts = drafted is not None
    target.truncate(0)
    head.truncate(0)
    head.start = 0
    head.features.truncate(0)
    states = Features() if drafts else None
    view = Window(None, head.n_ctx, n_sinks=0)
    drafters = [HeadDrafter(head, 3, states, window=view)] if drafts else []
    verifier = LocalVerifier(target, states=states)
    made = Session(verifier, drafters, FixedDepth(3))
    emitted = toy_loops.outcome(chance, made, params, stats := Stats())
    if drafts:
        drafted += [source["drafted"] for source in stats.drafts_by_source.values()]
    return emitted


@pytest.mark.parametrize("params", [
    SamplingParams(temperature=1.0, max_tokens=4),
    SamplingParams(temperature=0.7, max_tokens=4, ignore_eos=True, top_k=2, stop=("ba",)),
], ids=range(2))  # fmt: skip
def test_law_equals_plain(pair, params):
    plain = law(lambda chance: outcome(chance, pair, None, params))
    assert len(plain) > 4
    drafted = []
    found = law(lambda chance: outcome(chance, pair, drafted, params))
    assert max(drafted) > 2
    assert total_variation(found, plain) <= 1e-12
