"""A trained head as a GGUF: llama.cpp evaluates what was trained."""

import numpy as np
import pytest

from edgespec.backends.features import Features
from edgespec.convert.heads.tensors import read_safetensors
from tests.helpers import libllama, tiny_models, train_checks, train_jobs

llama_cpp = libllama.require()

from tests.helpers.llama_heads import EXACT  # noqa: E402

pytestmark = pytest.mark.llama_cpp
TEXT = [3, 200, 17, 5, 90, 250, 41, 8, 77]
N_GROWN = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a head that was trained a little, as model.safetensors."""
    found = tmp_path_factory.mktemp("trained")
    drafted = list(range(10, 200))
    sizes = train_jobs.shape(len(drafted)).sizes._asdict()
    train_jobs.run(train_jobs.job(found, n_steps=40, sizes=sizes, drafted=drafted))
    return found


@pytest.mark.parametrize(("kind", "most"), [("F32", 1e-4), ("Q8_0", 0.05)])
def test_rows_are_those_of_the_trained_weights(folder, tmp_path, kind, most):
    target_path = tiny_models.write(tmp_path, "llama")
    shape = train_jobs.shape(190)
    path = tmp_path / "eagle3-tiny.gguf"
    train_jobs.write_gguf(folder, target_path, shape, kind, path)
    target = llama_cpp.LlamaCppModel(target_path, EXACT)
    head = llama_cpp.open_head(path, EXACT, target)
    try:
        target.tap(head.layers)
        states = target.decode(TEXT).hidden.copy()
        head.features = Features()
        head.features.append(0, states)
        head.start = 1
        rows = [head.decode(TEXT[1:], 1).logits[0].copy()]
        for i in range(N_GROWN):
            rows.append(head.grow([int(rows[-1].argmax())], [i - 1]).logits[0].copy())
    finally:
        head.close()
        target.close()
    expected = computed(folder, target_path, states)
    ids = np.arange(10, 200)
    for row, logits in zip(rows, expected, strict=True):
        assert np.isneginf(np.delete(row, ids)).all()
        assert np.abs(row[ids] - logits).max() < most * np.abs(logits).max()
        assert int(row.argmax()) == 10 + int(logits.argmax())


def computed(folder, target_path, states):
    """Return the logits of the same guesses, in float64 from the trained weights."""
    tensors = read_safetensors(folder / "model.safetensors")
    weights = {name: each.array().astype(np.float64) for name, each in tensors.items()}
    sizes = train_jobs.shape(190).sizes
    embedding = tiny_models.weights("llama")["token_embd.weight"].astype(np.float64)
    reference = train_checks.Inference(weights, sizes, embedding)
    reference.keys, reference.values = [], []
    for i, token in enumerate(TEXT[1:]):
        own = reference.step(token, weights["fc.weight"] @ states[i].reshape(-1))
    found = []
    for _ in range(N_GROWN + 1):
        found.append(weights["lm_head.weight"] @ reference.normed(own, "norm"))
        own = reference.step(10 + int(found[-1].argmax()), own)
    return found
