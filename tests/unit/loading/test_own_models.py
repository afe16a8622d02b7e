"""Models that people bring themselves: subclasses of `edgespec.Model`."""

import re
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec.errors import ConfigError

PAGE = Path(__file__).parents[3] / "docs/how-to/embed.md"
TOKENIZER = edgespec.ToyTokenizer("abcdefghijklmnopqrstuvwxyz ")


class Least(edgespec.Model):
    """A model of nothing but what has to be there, that counts."""

    vocab_size, n_ctx, n_past = 27, 64, 0
    capabilities = edgespec.Capabilities(max_rows=8, max_batch=16)

    def decode(self, tokens, n_logits=1, abort=None):
        self.n_past += len(tokens)
        last = np.asarray(tokens)[len(tokens) - n_logits :]
        return edgespec.Outputs(9.0 * np.eye(self.vocab_size)[(last + 1) % self.vocab_size])

    def truncate(self, n_past):
        self.n_past = min(self.n_past, n_past)


def test_the_example_on_the_page_prints_what_it_says(capsys):
    text = PAGE.read_text(encoding="utf-8").partition("## Bring your own model")[2]
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.strip() == re.search(r"# (\w+)\n$", code)[1]


def test_one_may_draft_for_another():
    config = {"method": "draft_model", "num_speculative_tokens": 3, "draft_p_min": 0.0}
    with edgespec.assemble(Least(), TOKENIZER, Least(), config) as engine:
        done = engine.generate("ab", max_tokens=9)
    assert (done.text, done.stats.mean_acceptance_length > 1) == ("cdefghijk", True)


def test_what_is_optional_does_nothing():
    model = Least()
    model.restrict(4)
    model.expect_drafts(True)
    model.limit_threads(1)
    model.tap(())
    model.close()
    assert (model.thread_limit, model.n_cached, dict(model.placement)) == (None, 0, {})


def test_it_goes_back_to_a_checkpoint_by_its_length():
    model = Least()
    model.decode([1, 2])
    state = model.checkpoint()
    model.decode([3])
    model.restore(state)
    assert model.n_past == 2


@pytest.mark.parametrize("call", [
    lambda model: model.decode_tree([1, 2], [-1]), lambda model: model.grow([1], [-1]),
    lambda model: model.keep(()), lambda model: model.cached(0, 1),
    lambda model: model.set_threads(1, 1),
])  # fmt: skip
def test_what_cannot_be_left_out_says_so(call):
    with pytest.raises(NotImplementedError, match="Least"):
        call(Least())


def test_hidden_states_that_it_does_not_give_are_refused():
    with pytest.raises(ConfigError, match=r"Least gives no hidden states.*\[2\]"):
        Least().tap([2])


def test_what_is_missing_is_named_when_it_is_made():
    class Half(edgespec.Model):
        def decode(self, tokens, n_logits=1, abort=None): ...

    with pytest.raises(TypeError, match=r"n_past.*truncate"):
        Half()


def test_a_model_of_another_class_is_refused():
    class Quacking:
        vocab_size, n_ctx, n_past = Least.vocab_size, Least.n_ctx, 0
        capabilities = Least.capabilities
        decode, truncate = Least.decode, Least.truncate

    with pytest.raises(ConfigError, match=r"Quacking is no edgespec\.Model"):
        edgespec.assemble(Quacking(), TOKENIZER)
