"""Windows on real engines, with tiny random models: text, rows and what the cache holds."""

import numpy as np
import pytest

from edgespec import EngineConfig, SamplingParams
from edgespec.backends.features import Features
from edgespec.backends.onnx import OnnxModel
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.heads import HeadDrafter
from edgespec.drafters.window import SINKS, Window
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Stats, Verified
from edgespec.verifiers.local import LocalVerifier
from tests.helpers import libllama, onnx_models, tiny_heads, tiny_models
from tests.helpers.growing import begin, said

llama_cpp = libllama.require()

pytestmark = pytest.mark.llama_cpp

CONFIG = EngineConfig(
    n_ctx=256, n_batch=64, n_threads=1, flash_attn="on", type_k="f32", type_v="f32"
)
DEPTH, N_TOKENS = 3, 24


def gguf(folder):
    folder.mkdir()
    return llama_cpp.LlamaCppModel(tiny_models.write(folder, "llama"), CONFIG)


def onnx(folder):
    return OnnxModel(onnx_models.save(folder), CONFIG)


class Loops:
    """Two copies of a model, of which one drafts for the other. most: tokens of its cache."""

    def __init__(self, open_model, folder):
        self.target, self.draft = open_model(folder / "target"), open_model(folder / "draft")
        self.prompt = [2 + (5 * i + i * i) % 7 for i in range(70)]
        self.verifier = LocalVerifier(self.target)
        self.most = 0

    def drafter(self, kind, window):
        view = Window(window, self.draft.n_ctx)
        return ModelDrafter(
            self.draft, self.draft.vocab_size, top_k=2 if kind == "tree" else 1, window=view
        )

    def answer(self, drafter=None, prompt=None, verifier=None):
        drafters = [drafter] if drafter else []
        policy = FixedDepth(DEPTH if drafter else 0, max_leaves=31)
        made = Session(verifier or self.verifier, drafters, policy)
        params = SamplingParams(max_tokens=N_TOKENS, ignore_eos=True)
        output, self.stats = Output(self.target.tokenizer, params), Stats()
        request = Request(prompt or self.prompt, params, SeededRandomness(0))
        for _ in made.generate(request, output, self.stats):
            self.most = max(self.most, self.draft.n_past)
        return output.token_ids


@pytest.fixture(params=[gguf, onnx], ids=["gguf", "onnx"])
def loops(request, tmp_path):
    made = Loops(request.param, tmp_path)
    yield made
    made.draft.close()
    made.target.close()


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_text_is_that_of_plain_decoding(loops, kind):
    for window in (1, 5, 16, 40):
        drafter = loops.drafter(kind, window)
        loops.draft.truncate(0)
        for prompt in (loops.prompt, [*loops.prompt, 3, 4], loops.prompt[:30]):
            expected = loops.answer(prompt=prompt)
            loops.most = 0
            assert loops.answer(drafter, prompt) == expected
            assert loops.stats.num_draft_steps > 3
            assert loops.most <= SINKS + window + 2 * DEPTH


def test_a_window_as_long_as_the_text_accepts_everything(loops):
    for window in (0, 200):
        loops.draft.truncate(0)
        loops.answer(loops.drafter("chain", window))
        assert loops.stats.draft_acceptance_rate > 0.9


def test_rows_behind_a_view_that_moved_are_those_of_a_fresh_cache(loops):
    drafter = loops.drafter("chain", 16)
    begin(drafter, loops.prompt[:50])
    said(drafter)
    drafter.accept(Verified(tuple(loops.prompt[50:])))
    row = drafter._rows([drafter.root()])[0].copy()
    view = loops.prompt[:SINKS] + loops.prompt[drafter._start + SINKS :]
    assert drafter._cache.tokens == view
    loops.draft.truncate(0)
    expected = loops.draft.decode(view).logits[0]
    assert np.abs(row - expected).max() < 1e-4


def test_a_head_of_a_gguf_with_a_window(tmp_path):
    loops = Loops(gguf, tmp_path)
    try:
        path = tiny_heads.write(tmp_path / "head.gguf")
        head = llama_cpp.open_head(path, CONFIG, loops.target)
        expected = loops.answer()
        for window in (0, 1, 6, 200):
            head.truncate(0)
            states, view = Features(), Window(window, head.n_ctx, n_sinks=0)
            drafter = HeadDrafter(head, loops.target.vocab_size, states, top_k=2, window=view)
            verifier = LocalVerifier(loops.target, states=states)
            loops.target.truncate(0)
            assert loops.answer(drafter, verifier=verifier) == expected
            assert loops.stats.num_draft_steps > 3
            if window:
                assert len(drafter._cache.tokens) <= window + DEPTH + 1
        head.close()
    finally:
        loops.draft.close()
        loops.target.close()
