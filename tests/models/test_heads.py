"""A head beside real targets: the states that it reads are the target's, and the text is, too."""

import numpy as np
import pytest

from edgespec import EngineConfig
from edgespec.loading.assembly import assemble
from tests.helpers import libllama
from tests.helpers.selection import first
from tests.helpers.toy_head import ToyHead

llama_cpp = libllama.require()

pytestmark = pytest.mark.llama_cpp

PROMPT = "Here are five facts about the river Rhine. 1."
N = 24
LAYERS = {"smollm2": (2, 15, 27), "gemma": (2, 9, 15)}  # taps, and a callback


class Scripted(ToyHead):
    """A head that knows an answer, but for every fourth token, and remembers the states it reads.

    Its second choice is right where its first is wrong, at every other such place.
    """

    def __init__(self, text, layers, vocab_size):
        super().__init__(self._says, layers=layers, vocab_size=vocab_size, n_ctx=1024)
        self._text = text

    def _says(self, tokens):
        probs = np.full(self.vocab_size, 1e-9)
        n = self.start + len(tokens)
        if n < len(self._text):
            wrong = not n % 4
            probs[self._text[n]] = (0.3 if n % 8 else 0.0) if wrong else 0.7
            probs[(self._text[n] + 1) % self.vocab_size] = 0.6 if wrong else 0.2
        return probs / probs.sum()

    def _state(self, position):
        return self.features.of(position - 1, position)[0].copy()


@pytest.mark.model
@pytest.mark.parametrize("name", first(1, LAYERS, "states of more real weights"))
def test_text_and_states_are_the_targets(request, name):
    config = EngineConfig(n_ctx=1024, n_threads=1, flash_attn="on", batch_invariant=True)
    path = request.getfixturevalue(name)
    target = llama_cpp.LlamaCppModel(path, config)
    with assemble(target, target.tokenizer, None, {"method": "none"}) as plain:
        prompt = target.tokenizer.encode(PROMPT)
        expected = [*prompt, *plain.generate(prompt, max_tokens=N, ignore_eos=True).token_ids]
        layers = LAYERS[name]
        target.tap(layers)
        target.truncate(0)
        states = [*target.decode(prompt).hidden]  # at once, as the engine reads it
        states += [target.decode([token]).hidden[0].copy() for token in expected[len(prompt) :]]
    target = llama_cpp.LlamaCppModel(path, config)
    head = Scripted(expected, layers, target.vocab_size)
    method = {"method": "draft_model", "num_speculative_tokens": 6, "draft_p_min": 0.0}
    options = {"options": {"top_k": 3}}
    with assemble(target, target.tokenizer, head, method | options) as engine:
        found = engine.generate(prompt, max_tokens=N, ignore_eos=True)
        assert [*prompt, *found.token_ids] == expected
        drafted = found.stats.drafts_by_source["eagle3"]
        assert 0.3 * N < drafted["accepted"] < drafted["drafted"]
        read = head.read
    assert len(read) > len(prompt) + N // 2
    assert all(np.array_equal(a, b) for a, b in zip(read, states, strict=False))
