"""A Mixture of Attentions with random weights, and what it computes, in NumPy, float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.helpers.head_files import _OF_LAYER, FEED, HIDDEN, N_HEADS, Made, _config, _Random
from tests.helpers.heads import Linear, attention, completed, rotated

KEPT = 64  # numbers of keys and values of a token in one of the target's layers
KV = {"layers": 4, "text": 2, "cross": 1}  # heads of keys
WIDTH = {"layers": KEPT, "text": HIDDEN, "cross": HIDDEN}
_PREFIXES = {"layers": "layer_self_attention", "text": "self_attention", "cross": "cross_attention"}


def moa(*, seed=0, **config) -> Made:
    """Return a head as it is published; its config has the target's inner size."""
    random, published = _Random(seed), {}
    for part, prefix in _PREFIXES.items():
        width = WIDTH[part]
        size = width // N_HEADS
        for name, rows, columns in (
            ("q", width, width), ("k", KV[part] * size, width), ("v", KV[part] * size, width),
            ("o", width, width), ("gate", FEED, width), ("up", FEED, width), ("down", width, FEED),
        ):  # fmt: skip
            random.matrix(f"{part}.{name}", rows, columns)
            source = f"{prefix}.{_OF_LAYER[name]}.weight"
            published[source] = random.weights[f"{part}.{name}.weight"]
        for name in ("input_layernorm", "post_attention_layernorm"):
            random.norm(f"{part}.{name}", width)
            published[f"{prefix}.{name}.weight"] = random.weights[f"{part}.{name}.weight"]
    random.matrix("project", HIDDEN, KEPT, True)
    published |= {f"Ekv2E.{end}": random.weights[f"project.{end}"] for end in ("weight", "bias")}
    known = _config(architectures=["MOASpecModel"], intermediate_size=999) | config
    del known["head_dim"]
    return Made("moa", random.weights, known, published=published)


class Reference(Linear):
    """Rows of the head after a text and along a path, from all layers' keys and values of the
    target before each token of the text. target: its embedding and output matrix.
    """

    def __init__(self, made: Made, target: dict[str, np.ndarray]) -> None:
        super().__init__(completed(made.weights, target), made.config["rms_norm_eps"])
        self.theta = made.config["rope_theta"]

    def rows(self, text: Sequence[int], kept: np.ndarray, path: Sequence[int]) -> np.ndarray:
        """Return a row after each token of the text and of the path. kept: [n, layers, KEPT],
        zeros where there is nothing before the first.
        """
        n, tokens = len(text), [*text, *path]
        at = np.arange(len(tokens))
        context = np.stack([self._of_layers(each.astype(np.float64)) for each in kept])
        context = self.norm("cross.input_layernorm", context)
        embedded = self.weights["embed_tokens.weight"][tokens]
        read = self.norm("text.input_layernorm", embedded)
        q, k, v = self._split("text", read, read)
        q, k = rotated(q, at, self.theta), rotated(k, at, self.theta)
        sees = at <= at[:, None]
        state = self._layer("text", embedded, attention(q, k, v, sees))
        q, k, v = self._split("cross", self.norm("cross.input_layernorm", state), context)
        q, k = rotated(q, at + 1, self.theta), rotated(k, at[:n], self.theta)
        sees = sees[:, :n].copy()
        sees[1:, 0] &= kept[0].any()  # no state is before the first token of a text
        state = self._layer("cross", state, attention(q, k, v, sees))
        return self.linear("lm_head", state)

    def _of_layers(self, state: np.ndarray) -> np.ndarray:
        """Return what becomes of one token's keys and values, [layers, KEPT] to [HIDDEN]."""
        read, at = self.norm("layers.input_layernorm", state), np.arange(len(state))
        q, k, v = self._split("layers", read, read)
        q, k = rotated(q, at, self.theta), rotated(k, at, self.theta)
        mixed = attention(q, k, v, np.ones((len(state),) * 2, bool))
        return self.linear("project", self._layer("layers", state, mixed).mean(0))

    def _split(self, part, read, seen):
        size = WIDTH[part] // N_HEADS
        pairs = (("q", read), ("k", seen), ("v", seen))
        return (self.linear(f"{part}.{x}", of).reshape(len(of), -1, size) for x, of in pairs)

    def _layer(self, part, state, mixed):
        state = state + self.linear(f"{part}.o", mixed)
        return state + self.feed(self.norm(f"{part}.post_attention_layernorm", state), f"{part}.")
