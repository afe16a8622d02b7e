"""Windows on real weights: a draft model that sees the first and the latest tokens only."""

import contextlib

import pytest

from benchmarks.windows import measure, text_of
from edgespec import EngineConfig
from edgespec.backends.llama_cpp import LlamaCppModel
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.window import Window
from tests.helpers import libllama
from tests.helpers.selection import sample

libllama.require()

pytestmark = pytest.mark.llama_cpp

CONFIG = EngineConfig(n_ctx=1024, n_threads=1)


@pytest.fixture
def models(smollm2):
    """Return a target and two draft models of the same weights."""
    with contextlib.ExitStack() as stack:
        made = [LlamaCppModel(smollm2, CONFIG) for _ in range(3)]
        for model in made:
            stack.enter_context(contextlib.closing(model))
        yield made


@pytest.mark.long("reads a long text with three real models")
def test_a_window_of_a_real_text(models):
    """The draft model is the target: of all of a text it is always right, of a part often."""
    target, *drafts = models
    drafters = {
        name: ModelDrafter(draft, target.vocab_size, window=Window(window, CONFIG.n_ctx))
        for (name, window), draft in zip([("whole", 0), ("window", 128)], drafts, strict=True)
    }
    options = {"lengths": sample([300, 600], 2), "depth": 3, "n_tokens": 16, "rounds": 1}
    found = measure(target, drafters, text_of([]), **options)
    for length in found:
        whole, window = found[length]["whole"], found[length]["window"]
        assert whole["draft_acceptance_rate"] > 0.9
        assert 0.2 < window["draft_acceptance_rate"] <= 1
    n_seen = [draft.n_past for draft in drafts]
    assert n_seen[1] <= 4 + 128 + 4 < n_seen[0]
