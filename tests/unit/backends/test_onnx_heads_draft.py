"""Heads on onnxruntime beside tiny targets of both engines: they change nothing in the text."""

import json

import pytest

from edgespec import EngineConfig, EngineMissing
from edgespec.loading.assembly import assemble
from tests.helpers import head_files as files
from tests.helpers import libllama, mtp_files, tiny_models

pytest.importorskip("onnx")
pytest.importorskip("gguf")
llama_cpp = libllama.require()
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
folders = pytest.importorskip("tests.helpers.head_folders")
onnx_models = pytest.importorskip("tests.helpers.onnx_models")

pytestmark = pytest.mark.llama_cpp

PROMPT = [7, 3, 20, 12, 5, 13, 3]
CONFIG = EngineConfig(n_ctx=256, n_threads=1, batch_invariant=True)
HEADS = {
    "eagle3": files.eagle3, "medusa": files.medusa, "dflash": files.dflash,
    "mtp of Qwen3.5": mtp_files.qwen, "mtp of MiMo": lambda: mtp_files.mimo(own=False),
}  # fmt: skip


@pytest.fixture(scope="module", params=["onnx", "gguf"])
def target(request, tmp_path_factory):
    """Return a function that opens a target of the sizes that the heads are made for, and its
    path.
    """
    folder = tmp_path_factory.mktemp("target")
    if request.param == "gguf":
        path = tiny_models.write(folder, "llama", files.TARGET_LAYERS)
        return (lambda: llama_cpp.LlamaCppModel(path, CONFIG)), path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_models, "VOCAB", files.VOCAB)
        patch.setattr(onnx_models, "LAYERS", files.TARGET_LAYERS)
        path = onnx_models.save(folder, keep=True, bias=True, hidden_states=(2, 4, 5, -1))
    sizes = {"hidden_size": files.HIDDEN, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(sizes))
    return (lambda: backend.OnnxModel(path, CONFIG)), path


@pytest.fixture(scope="module", params=list(HEADS))
def head(request, target, tmp_path_factory):
    """Return the folder of a head that was converted for the target."""
    _, path = target
    return folders.converted(tmp_path_factory.mktemp("head"), HEADS[request.param](), target=path)


def answer(target, folder=None, **sampling):
    opened = target[0]()
    head = folder and backend.open_head(folder, CONFIG, opened)
    method = {"method": "draft_model", "num_speculative_tokens": 3, "draft_p_min": 0.0}
    if head:
        method["options"] = {"top_k": 4}
    tokenizer = opened.tokenizer
    with assemble(opened, tokenizer, head, method if head else {"method": "none"}) as engine:
        found = engine.generate(PROMPT, max_tokens=40, ignore_eos=True, **sampling)
        return found.token_ids, found.stats.drafts_by_source


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.0, "seed": 7}], ids=str)
def test_text_is_the_targets(target, head, sampling):
    expected, _ = answer(target, **sampling)
    found, drafts = answer(target, head, **sampling)
    assert found == expected
    (drafted,) = drafts.values()
    assert drafted["drafted"] > 60
