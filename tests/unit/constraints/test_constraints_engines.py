"""Forms of answers on pairs of engines, whose rows are longer and shorter than the vocabulary."""

import json

import pytest

from edgespec import EngineConfig, EngineMissing, ToyTokenizer
from edgespec.loading.assembly import assemble
from tests.helpers import libllama, tiny_models

pytest.importorskip("onnx")
pytest.importorskip("gguf")
pytest.importorskip("llguidance")
llama_cpp = libllama.require()
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
onnx_models = pytest.importorskip("tests.helpers.onnx_models")

CONFIG = EngineConfig(n_ctx=256, n_threads=1, batch_invariant=True)
LETTERS = [chr(i) for i in range(32, 127)]
WORDS = ['{"', '":', "move", "turn", "_left", "true"]
TOKENIZER = ToyTokenizer([*LETTERS, *WORDS, "</s>", "<extra>"], eog=[len(LETTERS) + len(WORDS)])
N = TOKENIZER.vocab_size
SCHEMA = {
    "type": "object",
    "properties": {
        "action": {"enum": ["move_left", "turn_left"]},
        "sure": {"type": "boolean"},
        "why": {"type": "string", "maxLength": 5},
    },
    "required": ["action", "sure", "why"],
    "additionalProperties": False,
}
PROMPT = TOKENIZER.encode("where to?")


def gguf(folder):
    """Return a model whose rows are far longer than the vocabulary."""
    assert tiny_models.VOCABULARY > N
    return llama_cpp.LlamaCppModel(tiny_models.write(folder, "llama"), CONFIG)


def onnx(folder, rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_models, "VOCAB", rows)
        return backend.OnnxModel(onnx_models.save(folder / str(rows)), CONFIG)


PAIRS = {
    "GGUF, an ONNX draft that lacks most": (gguf, lambda folder: onnx(folder, 64)),
    "GGUF, an ONNX draft that is padded": (gguf, lambda folder: onnx(folder, N + 9)),
    "ONNX that is padded, a GGUF draft": (lambda folder: onnx(folder, N + 3), gguf),
    "ONNX that lacks the last token, a GGUF draft": (lambda folder: onnx(folder, N - 1), gguf),
    "ONNX, an ONNX draft that is longer": (
        lambda folder: onnx(folder, N), lambda folder: onnx(folder, N + 30)
    ),
}  # fmt: skip


def answers(target, draft, method, folder, ways):
    models = target(folder), draft(folder) if method != "none" else None
    spec = {"method": method}
    if method != "none":
        spec |= {"num_speculative_tokens": 4, "draft_p_min": 0.0}
    with assemble(models[0], TOKENIZER, models[1], spec) as engine:
        return [engine.generate(PROMPT, max_tokens=120, schema=SCHEMA, **way) for way in ways]


@pytest.mark.parametrize("pair", PAIRS)
def test_text_is_the_targets_and_follows_the_form(pair, tmp_path):
    target, draft = PAIRS[pair]
    ways = [{}, *({"temperature": 1.0, "seed": seed} for seed in range(4))]
    expected = answers(target, draft, "none", tmp_path, ways)
    drafted = 0
    for method in ("draft_model", "auto"):
        found = answers(target, draft, method, tmp_path, ways)
        for done, plain in zip(found, expected, strict=True):
            assert done.token_ids == plain.token_ids
            assert done.finish_reason == "stop"
            assert set(json.loads(done.text)) == {"action", "sure", "why"}
            drafted += done.stats.num_draft_tokens
    assert drafted > 50
