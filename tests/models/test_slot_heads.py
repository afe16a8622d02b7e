"""Every slot has a head of the same weights: it drafts, and texts are those of lone answers."""

import concurrent.futures
import json

import pytest

import edgespec
from edgespec import EngineConfig, EngineMissing
from edgespec.loading.assembly import assemble
from edgespec.loading.load import slots_of
from edgespec.loading.models import open_model
from tests.helpers import head_files as files
from tests.helpers import libllama, tiny_dflash, tiny_gemma4, tiny_heads, tiny_models, tiny_mtp
from tests.helpers.near_ties import parting

libllama.require()

pytestmark = pytest.mark.llama_cpp

N_SLOTS = 3
NOISE = 0.01  # logits, which spread by 1.7; evaluations of 1 and of 4 tokens differ by 0.002
TEXTS = ["hello world", "abc", "The quick brown fox", "one two", "hello hello", "cab"]
FIXED = {"method": "draft_model", "draft_p_min": 0.0, "num_speculative_tokens": 3}
OPTIONS = {"n_ctx": 256, "n_threads": 1, "n_slots": N_SLOTS, "speculative_config": FIXED}
KINDS = ["eagle3", "dflash", "mtp", "chain", "sidecar"]


def written(folder, kind):
    """Write a target and its head; return their paths, "auto" for a head in the target's file."""
    if kind in ("eagle3", "dflash"):
        write = tiny_heads.write if kind == "eagle3" else tiny_dflash.write
        return tiny_models.write(folder, "llama"), write(folder / "head.gguf")
    n = 3 if kind == "chain" else 1
    weights = tiny_mtp.guessing_weights("hy_v3", n, noise=0.3)
    path = tiny_mtp.write(folder, "hy_v3", n, weights=weights)
    if kind == "sidecar":
        return path, tiny_mtp.write(folder, "hy_v3", weights=weights, alone=True)
    return path, "auto"


def answers(engine, sampling):
    """Return the answers to all texts, as many at once as there are slots."""
    options = {"max_tokens": 40, "ignore_eos": True} | sampling
    with concurrent.futures.ThreadPoolExecutor(N_SLOTS) as pool:
        return list(pool.map(lambda text: engine.generate(text, **options), TEXTS))


def all_draft(engine, model, sampling):
    """Check that each of several answers at once has drafts, and is what the target says alone."""
    alone = {"max_tokens": 40, "ignore_eos": True, "disable_spec_decode": True} | sampling
    expected = [engine.generate(text, **alone).token_ids for text in TEXTS]
    for text, ids, answer in zip(TEXTS, expected, answers(engine, sampling), strict=True):
        assert answer.stats.num_draft_tokens > 0
        gap = parting(model, engine.encode(text), sampling, ids, answer.token_ids)
        assert gap < NOISE, text
    shared = engine.company.counts.shared_draft_evaluations
    assert (shared > 0) == engine.company.model.shares_prefixes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "seed": 7}], ids=str)
def test_all_slots_draft_with_a_head_on_llama_cpp(tmp_path, kind, sampling):
    path, head = written(tmp_path, kind)
    model = open_model(path, EngineConfig(n_ctx=256, n_threads=1))
    with edgespec.load(path, head, **OPTIONS) as engine:
        assert engine.describe()["draft"]
        all_draft(engine, model, sampling)
    model.close()


@pytest.mark.parametrize("kind", ["eagle3", "medusa", "dflash"])
@pytest.mark.parametrize("engine_of_target", ["gguf", "onnx"])
def test_all_slots_draft_with_a_head_on_onnxruntime(tmp_path, kind, engine_of_target, monkeypatch):
    backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
    folders = pytest.importorskip("tests.helpers.head_folders")
    if engine_of_target == "gguf":
        path = tiny_models.write(tmp_path, "llama", files.TARGET_LAYERS)
    else:
        onnx_models = pytest.importorskip("tests.helpers.onnx_models")
        monkeypatch.setattr(onnx_models, "VOCAB", files.VOCAB)
        monkeypatch.setattr(onnx_models, "LAYERS", files.TARGET_LAYERS)
        path = onnx_models.save(tmp_path, keep=True, bias=True, hidden_states=(2, 4, 5, -1))
        sizes = {"hidden_size": files.HIDDEN, "max_position_embeddings": 512}
        (tmp_path / "config.json").write_text(json.dumps(sizes))
    folder = folders.converted(tmp_path / "head", getattr(files, kind)(), target=path)
    config = EngineConfig(n_ctx=256, n_threads=1)
    target, model = open_model(path, config), open_model(path, config)
    slots = slots_of(target, N_SLOTS)
    head = backend.open_head(folder, config, target)
    with assemble(target, target.tokenizer, head, FIXED, slots=slots) as engine:
        all_draft(engine, model, {"temperature": 0})
    model.close()


def test_an_assistant_drafts_in_the_first_slot_only(tmp_path):
    weights, own = tiny_gemma4.guessing_weights(noise=0.03)
    target = tiny_gemma4.write_target(tmp_path, weights)
    assistant = tiny_gemma4.write_assistant(tmp_path, own)
    with edgespec.load(target, assistant, **OPTIONS) as engine:
        found = answers(engine, {"temperature": 0})
    assert sum(each.stats.num_draft_tokens > 0 for each in found) < len(found)
