"""Trained drafts computed in NumPy, float64, from their papers: what graphs are compared with.

Weights are those of `head_files.Made`, by the names of HeadCheckpoint; matrices are [out, in].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

Weights = Mapping[str, np.ndarray]


class Linear:
    """Weights by name, as functions of rows."""

    def __init__(self, weights: Weights, eps: float) -> None:
        self.weights = {name: array.astype(np.float64) for name, array in weights.items()}
        self.eps = eps

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return x Wᵀ + b."""
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0)

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return x / rms(x) · w, + b if the norm has one."""
        scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)
        return scaled * self.weights[f"{name}.weight"] + self.weights.get(f"{name}.bias", 0)

    def feed(self, x: np.ndarray, at: str = "") -> np.ndarray:
        """Return what a gated feed-forward layer makes of rows. at: where its weights are."""
        gate, up = self.linear(f"{at}gate", x), self.linear(f"{at}up", x)
        return self.linear(f"{at}down", silu(gate) * up)


def completed(weights: Weights, target: Weights | None) -> Weights:
    """Return the weights of a head, those that it lacks from its target, with an embedding that is
    rounded to float16, as graphs keep it.
    """
    whole = dict(target or {}) | dict(weights)
    return whole | {"embed_tokens.weight": whole["embed_tokens.weight"].astype(np.float16)}


def silu(x: np.ndarray) -> np.ndarray:
    """Return x · σ(x)."""
    return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """Return x · Φ(x), Φ the normal distribution's."""
    return x * np.vectorize(lambda each: 0.5 * (1 + math.erf(each / math.sqrt(2))))(x)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, sees: np.ndarray) -> np.ndarray:
    """Return what queries [n, heads, size] mix of values, [n, heads * size]. sees: [n, keys]."""
    groups = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, groups, axis=1) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
    scores = np.where(sees, scores, -np.inf)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", probs, v).reshape(len(q), -1)


def rotated(
    x: np.ndarray, positions: Sequence[int], theta: float, share: float = 1.0
) -> np.ndarray:
    """Return [n, heads, size] rotated; share: of the numbers of a head, the first of them."""
    size = int(x.shape[-1] * share)
    inverse = theta ** (-np.arange(0, size, 2) / size)
    angles = np.asarray(positions)[:, None, None] * inverse
    first, second = np.split(x[..., :size], 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    turned = [first * cos - second * sin, second * cos + first * sin, x[..., size:]]
    return np.concatenate(turned, -1)


class Eagle(Linear):
    """An EAGLE head of any of the three papers.

    config: as in head_files. target: as for `completed`.
    """

    def __init__(
        self, kind: str, weights: Weights, config: Mapping, target: Weights | None = None
    ) -> None:
        super().__init__(completed(weights, target), config["rms_norm_eps"])
        self.kind, self.config = kind, config

    def fuse(self, taps: np.ndarray) -> np.ndarray:
        """Return what the layer reads of the target's states, [n, layers * hidden] to [n, d]."""
        if self.kind == "eagle":
            return taps.astype(np.float64)
        taps = taps.astype(np.float64)
        if self.config.get("fc_norm"):
            parts = np.split(taps, 3, axis=1)
            taps = np.concatenate(
                [self.norm(f"fc_norm.{i}", part) for i, part in enumerate(parts)], 1
            )
        if self.config.get("norm_before_fc"):
            taps = self.norm("input_norm", taps)
        return self.linear("fc", taps)

    def run(
        self, tokens: Sequence[int], states: np.ndarray, positions: Sequence[int], sees: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (logits, next states) of all tokens. sees: [n, n], which see which."""
        embedded = self.weights["embed_tokens.weight"][list(tokens)]
        if self.kind == "eagle":
            residual = read = self.linear("fc", np.concatenate([embedded, states], 1))
        else:
            normed = self.norm("hidden_norm", states)
            residual = normed if self.config.get("norm_before_residual") else states
            read = np.concatenate([self.norm("input_layernorm", embedded), normed], 1)
        state = residual + self.linear("o", self._attention(read, positions, sees))
        state = state + self.feed(self.norm("post_attention_layernorm", state))
        if self.kind == "eagle":
            return self.linear("lm_head", state), state
        normed = self.norm("norm", state)
        fed_back = normed if self.config.get("norm_output") else state
        return self.linear("lm_head", normed), fed_back

    def chain(self, tokens: Sequence[int], states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (logits, next states) of tokens one after another."""
        n = len(tokens)
        return self.run(tokens, states, range(n), np.tri(n, dtype=bool))

    def _attention(self, read, positions, sees):
        n, size = len(read), self.config["head_dim"]
        q, k, v = (self.linear(name, read).reshape(n, -1, size) for name in "qkv")
        q, k = (rotated(x, positions, self.config["rope_theta"]) for x in (q, k))
        return attention(q, k, v, sees)


class Mtp(Linear):
    """A target's layer for multi-token prediction, Qwen3.5's or MiMo's. target: as for Eagle."""

    def __init__(self, weights: Weights, config: Mapping, target: Weights | None = None) -> None:
        self.states_first = config["model_type"] == "mimo"
        self.config = config.get("text_config", config)
        super().__init__(completed(weights, target), self.config["rms_norm_eps"])

    def fuse(self, taps: np.ndarray) -> np.ndarray:
        """Return what the layer reads of the target's states: these."""
        return taps.astype(np.float64)

    def chain(self, tokens: Sequence[int], states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (logits, next states) of tokens one after another."""
        token = self.norm("token_norm", self.weights["embed_tokens.weight"][list(tokens)])
        both = [token, self.norm("hidden_norm", states)]
        state = self.linear("fc", np.concatenate(both[::-1] if self.states_first else both, 1))
        read = self.norm("input_layernorm", state)
        mixed = self._attention(read)
        if "attention_gate.weight" in self.weights:
            mixed = mixed / (1 + np.exp(-self.linear("attention_gate", read)))
        state = state + self.linear("o", mixed)
        state = state + self.feed(self.norm("post_attention_layernorm", state))
        state = self.norm("norm", state)
        return self.linear("lm_head", state), state

    def _attention(self, read):
        n, size = len(read), self.config["head_dim"]
        q, k, v = (self.linear(name, read).reshape(n, -1, size) for name in "qkv")
        if "q_norm.weight" in self.weights:
            q, k = self.norm("q_norm", q), self.norm("k_norm", k)
        share = self.config.get("rope_parameters", {}).get("partial_rotary_factor", 1)
        q, k = (rotated(x, range(n), self.config["rope_theta"], share) for x in (q, k))
        return attention(q, k, v, np.tri(n, dtype=bool))


class Dflash(Linear):
    """A block of masked places that is guessed at once, float64. target: as for Eagle."""

    def __init__(self, weights: Weights, config: Mapping, target: Weights | None = None) -> None:
        config = config.get("transformer_layer_config", {}) | config
        config = config | config.get("dflash_config", {})
        super().__init__(completed(weights, target), config["rms_norm_eps"])
        self.config = config

    def rows(self, token: int, taps: np.ndarray) -> np.ndarray:
        """Return the logits of the places after a token, [block - 1, V]. taps: the target's states
        before it, [n, layers * hidden].
        """
        config, n = self.config, len(taps)
        block = [token] + [config["mask_token_id"]] * (config["block_size"] - 1)
        context = self.norm("hidden_norm", self.linear("fc", taps.astype(np.float64)))
        state = self.weights["embed_tokens.weight"][block] * config.get("input_embedding_scale", 1)
        at = np.arange(n + len(block))
        for i in range(config["num_hidden_layers"]):
            read = self.norm(f"{i}.input_layernorm", state)
            sees = self._sees(i, at[n:, None], at)
            state = state + self.linear(f"{i}.o", self._attention(i, context, read, at, sees))
            inner = self.norm(f"{i}.post_attention_layernorm", state)
            state = state + self.feed(inner, f"{i}.")
        logits = self.linear("lm_head", self.norm("norm", state[1:]))
        logits = logits * config.get("output_multiplier", 1)
        cap = config.get("final_logit_softcapping")
        return np.tanh(logits / cap) * cap if cap else logits

    def _sees(self, i, query, key):
        kinds, said = self.config.get("layer_types"), self.config.get("is_causal")
        slides = bool(kinds) and kinds[i] == "sliding_attention"
        sees = np.ones(np.broadcast_shapes(query.shape, key.shape), bool)
        if slides if said is None else said:
            sees &= key <= query
        if slides or self.config.get("use_swa"):
            window = self.config.get("swa_window_size") or self.config["sliding_window"]
            sees &= abs(query - key) < window
        return sees

    def _attention(self, i, context, read, positions, sees):
        size = self.config["head_dim"]

        def split(name, x):
            return self.linear(f"{i}.{name}", x).reshape(len(x), -1, size)

        both = np.concatenate([context, read])
        q, k = (self.norm(f"{i}.{name}_norm", split(name, x)) for name, x in
                (("q", read), ("k", both)))  # fmt: skip
        q = rotated(q, positions[len(context) :], self.config["rope_theta"])
        k = rotated(k, positions, self.config["rope_theta"])
        return attention(q, k, split("v", both), sees)


class Medusa(Linear):
    """Heads on the target's last hidden state: residual blocks and a matrix each."""

    def __init__(self, weights: Weights, config: Mapping) -> None:
        super().__init__(weights, 0)
        self.n_blocks = config["medusa_num_layers"]
        self.n_heads = sum(name.endswith("lm_head.weight") for name in weights)

    def run(self, state: np.ndarray) -> np.ndarray:
        """Return the logits of all heads, [n_heads, vocab_size]."""
        rows = []
        for i in range(self.n_heads):
            x = state.astype(np.float64)
            for j in range(self.n_blocks):
                x = x + silu(self.linear(f"{i}.{j}.linear", x))
            rows.append(self.linear(f"{i}.lm_head", x))
        return np.stack(rows)


class MlpSpeculator(Linear):
    """A small state, a step a token. Its norm divides by the root mean square and adds a bias.
    Embeddings are rounded to float16, as graphs keep them.
    """

    def __init__(self, weights: Weights, config: Mapping) -> None:
        super().__init__(weights, 1e-6)
        self.config = config
        n, inner = config["n_predict"], config["inner_dim"]
        state_weight = 0.5 ** (0.5 / n)
        self._factor = math.sqrt((1 - state_weight**2) * inner / 2) / state_weight

    def step(self, i: int, token: int, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (logits, next state) of a token at depth i; the first state is the target's."""
        state = state.astype(np.float64)
        if i == 0 and self.config["scale_input"]:
            state = state / np.sqrt((state * state).mean() + self.eps) / math.sqrt(2)
        embedded = self.weights[f"emb.{i}.weight"][token].astype(np.float16).astype(np.float64)
        mixed = self.linear(f"proj.{i}", state) + self._factor * embedded
        state = gelu(self.norm(f"ln.{i}", mixed))
        return self.linear(f"head.{i}", state), state
