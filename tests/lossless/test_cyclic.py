"""Heads on a language that goes round: each knows it from the target's hidden states alone.

A head that reads the state of another position than its paper says, or guesses for another one, is
always wrong there: it cannot be right by chance.
"""

import numpy as np
import pytest

from edgespec import EngineConfig, EngineMissing, ToyModel, ToyTokenizer
from edgespec.loading.assembly import assemble
from tests.helpers import head_files, tiny_heads, tiny_models
from tests.helpers.gguf_files import FEED, WIDTH

pytestmark = pytest.mark.llama_cpp

N = 23  # tokens of a round; what follows is never said
VOCAB, HIDDEN = head_files.VOCAB, head_files.HIDDEN
N_DRAFTED = 3
SURE = 20.0  # logit of the token that is guessed
PROMPT = [4, 5, 6, 7, 8]
KINDS = ("eagle3", "eagle", "medusa", "mlp_speculator", "eagle3 in llama.cpp")


class Cyclic(ToyModel):
    """A target whose hidden state is the token itself, `shift` positions later, as a unit vector.

    In this language that is the state of another position, too.
    """

    hidden_size, n_layer = HIDDEN, head_files.TARGET_LAYERS

    def __init__(self, shift=0):
        super().__init__(_next, vocab_size=VOCAB, n_ctx=200)
        self._shift = shift
        self.tokenizer = ToyTokenizer([chr(256 + i) for i in range(VOCAB)])

    def _states(self, positions, tokens):
        if not self._layers:
            return None
        states = np.eye(HIDDEN, dtype=np.float32)[(np.asarray(tokens) + self._shift) % N]
        return np.repeat(states[:, None], len(self._layers), 1)


def _next(tokens):
    probs = np.zeros(VOCAB)
    probs[(tokens[-1] + 1) % N] = 1
    return probs


def later(n, rows, columns, scale=1.0):
    """Return a matrix [rows, columns] that maps each token's unit vector to that n tokens later."""
    made = np.zeros((rows, columns), np.float32)
    made[(np.arange(N) + n) % N, np.arange(N)] = scale
    return made


def eagle():
    """Return an EAGLE-1 head: its state is that of the token that it reads."""
    made = head_files.eagle(bias=False)
    silent(made.weights)
    made.weights["fc.weight"] = np.concatenate(
        [np.zeros((HIDDEN, HIDDEN), np.float32), later(1, HIDDEN, HIDDEN)], 1
    )
    made.weights["lm_head.weight"] = later(1, VOCAB, HIDDEN, SURE)
    return made


def eagle3():
    """Return an EAGLE-3 head: its feed-forward turns a state into that of the token it reads."""
    made = head_files.eagle3(part=False, embedding=True)
    silent(made.weights)
    made.weights |= turning(head_files.FEED)
    return made


def turning(feed):
    """Return weights of an EAGLE-3 layer that add the next state to a state, and take it away."""
    root = HIDDEN**0.5  # what the norm makes of a unit vector
    size = root * root / (1 + np.exp(-root))  # of silu(gate) * up
    found = {
        "fc.weight": np.concatenate(3 * [np.eye(HIDDEN) / 3], 1),
        "gate.weight": np.eye(feed, HIDDEN),
        "up.weight": np.eye(feed, HIDDEN),
        "down.weight": (later(1, HIDDEN, feed) - later(0, HIDDEN, feed)) / size,
        "post_attention_layernorm.weight": np.ones(HIDDEN),
        "norm.weight": np.ones(HIDDEN),
        "lm_head.weight": later(1, VOCAB, HIDDEN),
    }
    return {name: array.astype(np.float32) for name, array in found.items()}


def silent(weights):
    """Let nothing of a layer matter but what goes round it."""
    for name in ("o.weight", "down.weight"):
        weights[name] = np.zeros_like(weights[name])


def medusa():
    """Return Medusa heads: the first guesses the token two after that of the state."""
    made = head_files.medusa()
    for name in made.weights:
        made.weights[name] = np.zeros_like(made.weights[name])
    for i in range(head_files.N_GUESSES):
        made.weights[f"{i}.lm_head.weight"] = later(2 + i, VOCAB, HIDDEN, SURE)
    return made


def mlp_speculator():
    """Return an MLP speculator: each state is that of the token that it reads."""
    made, inner = head_files.mlp_speculator(), head_files.INNER
    for i in range(head_files.N_GUESSES):
        made.weights |= {
            f"emb.{i}.weight": np.zeros((VOCAB, inner), np.float32),
            f"proj.{i}.weight": later(1, inner, inner if i else HIDDEN),
            f"ln.{i}.weight": np.ones(inner, np.float32),
            f"ln.{i}.bias": np.zeros(inner, np.float32),
            f"head.{i}.weight": later(1, VOCAB, inner),
        }
    return made


def opened(kind, folder, target):
    """Return a head for a target."""
    config = EngineConfig(n_ctx=256, n_threads=1, flash_attn="on")
    if kind == "eagle3 in llama.cpp":
        llama_cpp = pytest.importorskip("edgespec.backends.llama_cpp", exc_type=EngineMissing)
        return llama_cpp.open_head(gguf(folder / "head.gguf"), config, target)
    pytest.importorskip("onnx")
    pytest.importorskip("gguf")
    pytest.importorskip("edgespec.backends.llama_cpp", exc_type=EngineMissing)  # reads the target
    onnx = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
    from tests.helpers.head_folders import converted

    return onnx.open_head(converted(folder, globals()[kind]()), config, target)


def gguf(path):
    """Write the EAGLE-3 head as a GGUF and return its path."""
    assert (WIDTH, tiny_models.VOCABULARY) == (HIDDEN, VOCAB)
    names = {
        "gate": "blk.0.ffn_gate", "up": "blk.0.ffn_up", "down": "blk.0.ffn_down",
        "post_attention_layernorm": "blk.0.ffn_norm", "norm": "output_norm", "lm_head": "output",
        "fc": "fc",
    }  # fmt: skip
    weights = tiny_heads.head_weights()
    del weights["d2t"]
    weights["blk.0.attn_output.weight"] = np.zeros((WIDTH, WIDTH), np.float32)
    weights |= {f"{names[k.removesuffix('.weight')]}.weight": w for k, w in turning(FEED).items()}
    return tiny_heads.write(path, weights)


def drafted(kind, folder, shift):
    """Return how many tokens a head drafted in an answer, and how many were accepted."""
    target = Cyclic(shift)
    head = opened(kind, folder, target)
    method = {"method": "draft_model", "num_speculative_tokens": N_DRAFTED, "draft_p_min": 0.0}
    with assemble(target, target.tokenizer, head, method) as engine:
        found = engine.generate(PROMPT, max_tokens=40)
    assert list(found.token_ids) == [(PROMPT[-1] + 1 + i) % N for i in range(40)]
    (counts,) = found.stats.drafts_by_source.values()
    return counts["drafted"], counts["accepted"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_knows_the_states_is_always_right(tmp_path, kind):
    n, n_accepted = drafted(kind, tmp_path, 0)
    assert n_accepted >= 28  # three of four tokens
    assert n - n_accepted < N_DRAFTED  # after the end of the answer


@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_states_of_another_position_are_always_wrong(tmp_path, kind, shift):
    n, n_accepted = drafted(kind, tmp_path, shift)
    assert n > 60, "it hardly drafted"
    assert n_accepted == 0
