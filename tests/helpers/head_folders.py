"""Heads with random weights, converted for a tiny target, and states as it may give them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from edgespec import ToyModel
from edgespec.convert import tools
from edgespec.convert.heads.conversion import convert_head
from tests.helpers import gguf_files, heads
from tests.helpers import head_files as files


def target_weights(seed=5) -> dict[str, np.ndarray]:
    """Return the embedding and the output matrix of the target."""
    rng = np.random.default_rng(seed)
    shape = (files.VOCAB, files.HIDDEN)
    found = {f"{n}.weight": rng.normal(size=shape) for n in ("embed_tokens", "lm_head")}
    return {name: array.astype(np.float32) for name, array in found.items()}


def gguf_target(path: Path, tied=False, n_layer=files.TARGET_LAYERS) -> Path:
    """Write the target as a GGUF that holds these matrices and nothing else."""
    known = gguf_files.fields()
    known["llama.block_count"] = (gguf_files.UINT32, n_layer)
    weights = target_weights()
    tensors = {"token_embd.weight": weights["embed_tokens.weight"]}
    if not tied:
        tensors["output.weight"] = weights["lm_head.weight"]
    path.write_bytes(gguf_files.gguf_bytes(known, tensors))
    return path


def run_here(python, job, folder, progress, times, program):
    """Stand in for `tools.run_worker`: run the program in this process, which is quicker."""
    importlib.import_module(program).main(json.loads(json.dumps(job)))
    return ()


def converted(tmp_path: Path, made: files.Made, target: Path | None = None, **options) -> Path:
    """Return the folder of a head that was written as a checkpoint and converted, to fp32."""
    options = {"precision": "fp32"} | options
    source = files.write(tmp_path / "source", made)
    target = target or gguf_target(tmp_path / "target.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools, "run_worker", run_here)
        return convert_head(source, target, tmp_path / "head", **options).path


def target() -> ToyModel:
    """Return what a head asks of its target."""
    found = ToyModel(lambda _: (), vocab_size=files.VOCAB)
    found.hidden_size, found.n_layer = files.HIDDEN, files.TARGET_LAYERS
    found.tokenizer = "the target's"
    return found


def states(n: int, n_layers: int, seed=7) -> np.ndarray:
    """Return hidden states of n tokens as a target gives them, [n, n_layers, HIDDEN]."""
    rng = np.random.default_rng(seed)
    return (3 * rng.normal(size=(n, n_layers, files.HIDDEN))).astype(np.float32)


class Reference:
    """Rows of a head after a text and along a path of guesses, computed anew each time.

    weights: of the head, rounded as the checkpoint has them.
    """

    def __init__(self, made: files.Made) -> None:
        self.kind, self.config, self.d2t = made.kind, made.config, made.d2t
        if made.kind.startswith("eagle"):
            self.head = heads.Eagle(made.kind, made.weights, made.config, target_weights())
        elif made.kind == "mtp":
            self.head = heads.Mtp(made.weights, made.config, target_weights())
        elif made.kind == "dflash":
            self.head = heads.Dflash(made.weights, made.config, target_weights())
        elif made.kind == "medusa":
            self.head = heads.Medusa(made.weights, made.config)
        else:
            self.head = heads.MlpSpeculator(made.weights, made.config)

    def rows(self, text, taps, path) -> np.ndarray:
        """Return a row after the text and after each token of the path, [1 + len(path), V].

        taps: the target's states before each token of the text, [len(text), n_layers, HIDDEN].
        """
        taps = taps.reshape(len(text), -1)
        if self.kind == "medusa":
            return self.head.run(taps[-1])[: 1 + len(path)]
        if self.kind == "dflash":
            rows = self.head.rows(text[-1], taps)[: 1 + len(path)]
            return np.stack([self._spread(row) for row in rows])
        if self.kind == "mlp_speculator":
            state, found = taps[-1], []
            for i, token in enumerate([text[-1], *path]):
                logits, state = self.head.step(i, token, state)
                found.append(logits)
            return np.stack(found)
        states = self.head.fuse(taps)
        found = []
        for end in range(len(path) + 1):
            logits, after = self.head.chain([*text, *path[:end]], states)
            found.append(logits[-1])
            states = np.concatenate([states, after[-1:]])
        return np.stack([self._spread(row) for row in found])

    def _spread(self, row):
        if self.d2t is None:
            return row
        whole = np.full(files.VOCAB, -np.inf)
        whole[self.d2t] = row
        return whole
