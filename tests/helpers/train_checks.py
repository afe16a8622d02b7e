"""Compares the training-time test of edgespec/train/eagle3.py with inference step by step in NumPy.

The tools' Python runs it, which has torch; its argument is the folder of edgespec. It prints one
JSON object: what was found, by name.
"""

import json
import sys
from types import ModuleType

import numpy as np

try:
    import torch
except ImportError:  # only the program needs it
    torch = None

SEED = 3
N_STEPS = 4
VOCABULARY = 40
PROMPTS, LENGTHS = (5, 8), (14, 11)


def main():
    package = sys.modules["edgespec"] = ModuleType("edgespec")
    package.__path__ = [sys.argv[1]]
    from edgespec.train import eagle3, objective
    from edgespec.train.sizes import Sizes

    torch.manual_seed(SEED)
    sizes = Sizes(12, 30, N_STEPS, 4, 2, 6, 20, 1e-5, 100.0)
    weights = eagle3.initial(sizes, {}, torch.ones(36), SEED)
    with torch.no_grad():
        for each in weights.values():
            each += 0.3 * torch.randn_like(each)
    embedding = torch.randn(VOCABULARY, 12)
    drafted = torch.arange(5, 35)
    number_of = torch.full((VOCABULARY,), -1)
    number_of[drafted] = torch.arange(30)
    output = torch.randn(30, 12)
    pair = [conversation(*each) for each in zip(PROMPTS, LENGTHS, strict=True)]

    def loss(batch):
        given = weights, sizes, embedding, output, number_of, batch
        found, _ = objective.loss_of(eagle3, *given)
        return found

    both = batch_of(objective, pair)
    print(json.dumps({
        "apart": apart(eagle3, weights, sizes, embedding, both),
        "padded": relative(loss(batch_of(objective, pair, 7)), loss(both)),
        "mean": relative(loss(both), mean_of(eagle3, objective, weights, sizes, embedding, output,
                                             number_of, pair)),
        "guessed": [guessed(objective, both, step) for step in range(N_STEPS)],
        "gradients": all_gradients(loss(both), weights),
    }))  # fmt: skip


def conversation(n_prompt, n):
    return {
        "ids": torch.randint(VOCABULARY, (n,)), "taps": torch.randn(n, 36),
        "last": torch.randn(n, 12), "is_answer": torch.arange(n) >= n_prompt,
        "likeliest": torch.randint(VOCABULARY, (n,)),
    }  # fmt: skip


def batch_of(objective, conversations, padding=0):
    n = max(len(each["ids"]) for each in conversations) + padding
    fields = []
    for name in objective.Batch._fields:
        rows = [each[name] for each in conversations]
        shape = (len(rows), n, *rows[0].shape[1:])
        fields.append(torch.zeros(shape, dtype=rows[0].dtype))
        for own, row in zip(fields[-1], rows, strict=True):
            own[: len(row)] = row
    return objective.Batch(*fields)


def relative(a, b):
    return float(abs(a - b).detach() / abs(b).detach())


def mean_of(eagle3, objective, weights, sizes, embedding, output, number_of, conversations):
    """Return the loss computed from the divergence of each single guess, by its definition."""
    total, batches = 0.0, [batch_of(objective, [each]) for each in conversations]
    for step in range(N_STEPS):
        found = []
        for batch in batches:
            states = list(eagle3.unroll(weights, sizes, embedding, batch, N_STEPS))[step][0]
            n = batch.ids.shape[1]
            for row in range(n):
                place = row + 2 + step
                if place >= n or not batch.is_answer[0, row + 2]:
                    continue
                if number_of[batch.likeliest[0, place]] < 0:
                    continue
                target = torch.softmax(output @ batch.last[0, place - 1], -1)
                own = torch.log_softmax(weights["lm_head.weight"] @ states[row - batch.first], -1)
                found.append((target * (target.log() - own)).sum())
        total = total + 0.8**step * sum(found) / len(found)
    return total


def guessed(objective, batch, step):
    """Return the positions that are guessed at a step, for each conversation."""
    is_guess, positions = objective.guessed(batch, step)
    return [places[mask].tolist() for mask, places in zip(is_guess, positions, strict=True)]


def all_gradients(loss, weights):
    loss.backward()
    return all(bool(each.grad.abs().sum() > 0) for each in weights.values())


def apart(eagle3, weights, sizes, embedding, batch):
    """Return the largest difference of a state from that of inference, relative to the largest."""
    plain = {name: each.detach().double().numpy() for name, each in weights.items()}
    reference = Inference(plain, sizes, embedding.double().numpy())
    steps = [each.detach().numpy() for each in
             eagle3.unroll(weights, sizes, embedding, batch, N_STEPS)]  # fmt: skip
    worst = 0.0
    for b, n in enumerate(LENGTHS):
        ids, taps = batch.ids[b].numpy(), batch.taps[b].double().numpy()
        for row in range(batch.first, n - 1 - N_STEPS):
            states = reference.draft(ids, taps, row)
            for step, state in enumerate(states):
                found = steps[step][b, row - batch.first]
                worst = max(worst, float(np.abs(found - state).max() / np.abs(state).max()))
    return worst


class Inference:
    """The head in float64, as an engine evaluates it: one token at a time, with a cache."""

    def __init__(self, weights, sizes, embedding):
        self.w, self.sizes, self.embedding = weights, sizes, embedding

    def draft(self, ids, taps, row):
        """Read the true states up to a row into a new cache, then N_STEPS - 1 tokens with own
        states; return the normed state after each of these N_STEPS steps.
        """
        self.keys, self.values = [], []
        for i in range(row + 1):
            own = self.step(ids[i + 1], self.w["fc.weight"] @ taps[i])
        found = [self.normed(own, "norm")]
        for s in range(1, N_STEPS):
            own = self.step(ids[row + 1 + s], own)
            found.append(self.normed(own, "norm"))
        return found

    def step(self, token, state):
        read = np.concatenate([
            self.normed(self.embedding[token], "midlayer.input_layernorm"),
            self.normed(state, "midlayer.hidden_norm"),
        ])  # fmt: skip
        position = len(self.keys)
        heads = {
            letter: (self.w[f"midlayer.self_attn.{letter}_proj.weight"] @ read).reshape(
                -1, self.sizes.head_dim
            )
            for letter in "qkv"
        }
        self.keys.append(self.rotated(heads["k"], position))
        self.values.append(heads["v"])
        query, mixed = self.rotated(heads["q"], position), []
        for i, each in enumerate(query):
            group = i // (self.sizes.n_heads // self.sizes.n_kv_heads)
            scores = np.array([key[group] @ each for key in self.keys])
            shares = np.exp((scores - scores.max()) / self.sizes.head_dim**0.5)
            shares /= shares.sum()
            mixed.append(sum(s * v[group] for s, v in zip(shares, self.values, strict=True)))
        state = state + self.w["midlayer.self_attn.o_proj.weight"] @ np.concatenate(mixed)
        inner = self.normed(state, "midlayer.post_attention_layernorm")
        gate = self.w["midlayer.mlp.gate_proj.weight"] @ inner
        inner = gate / (1 + np.exp(-gate)) * (self.w["midlayer.mlp.up_proj.weight"] @ inner)
        return state + self.w["midlayer.mlp.down_proj.weight"] @ inner

    def normed(self, x, name):
        return x / np.sqrt((x * x).mean() + self.sizes.eps) * self.w[f"{name}.weight"]

    def rotated(self, x, position):
        angles = position * np.array(self.sizes.rotation)
        a, b = np.split(x, 2, axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


if __name__ == "__main__":
    main()
