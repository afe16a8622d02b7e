"""The task of training heads: their features, loss and accuracy (see worker.py).

The job has, in addition to the fields that `worker.py` reads,

    target        the target's file; paired: True if a GGUF keeps rotated numbers as neighbours
    network       the name of a file next to this one: eagle3, medusa or mlp
    sizes         the fields of Sizes
    recorded      the folder with the answers and their features
    drafted       the target's ids of the tokens that the head can draft, ascending
    start         the model.safetensors of an earlier head to go on with, "" for none
    known         the ids of the tokens that the earlier head drafts
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..convert.heads.target_weights import matrix_of
from ..convert.program import tell
from . import objective
from .formats import EXACT, FEATURES, N_STATES, TOLD_EVERY_S, WEIGHTS, conversations
from .gguf_file import NAMES, rounded
from .sizes import ATTENTION, Sizes
from .worker import DEVICE, sibling

PRECISIONS = ("F32", "Q8_0", "Q4_0")  # of matrices, as in GGUFs
_OUTPUTS = {"lm_head.weight", "0.1.weight", "speculator.head.0.weight"}  # one row a drafted token
_NOT_IN_TARGET = ("midlayer.input_layernorm", "lm_head")  # the output matrix is read elsewhere
_MOST_COMPARED = 100  # conversations
_PIECE = 128  # rows of logits over the target's vocabulary that are in memory at a time


class Task:
    """The training of a head; its methods are described in worker.py."""

    has_learnt = False

    def __init__(self, job: dict[str, Any]) -> None:
        self._job, self._sizes = job, Sizes(**job["sizes"])
        self.prepared: dict[int, Any] = {}  # the likeliest tokens of each conversation
        self._network = sibling(job["network"])
        self._conversations = Conversations(
            Path(job["recorded"]), self._sizes.hidden_size, job["checked"]
        )
        self.lengths = [len(each["ids"]) for each in self._conversations.all]
        held_out = set(job["held_out"])
        self._trained = [i for i in range(len(self.lengths)) if i not in held_out]
        self._drafted = torch.tensor(job["drafted"], device=DEVICE)
        self._embedding, self._target_output = (
            torch.from_numpy(matrix_of(Path(job["target"]), name)).to(DEVICE)
            for name in ("embed_tokens", "lm_head")
        )
        self._output = self._target_output[self._drafted]
        self._number_of = torch.full((len(self._embedding),), -1, device=DEVICE)
        self._number_of[self._drafted] = torch.arange(len(self._drafted), device=DEVICE)
        earlier = self._earlier(Path(job["start"])) if job["start"] else {}
        start = first_weights(job, self._sizes) | {"lm_head.weight": self._output} | earlier
        self._conversations.scale = scale = self._taps_rms()
        weights = self._network.initial(self._sizes, start, scale, job["seed"])
        self.weights = {
            name: each.detach().to(DEVICE).requires_grad_() for name, each in weights.items()
        }

    def _earlier(self, file: Path) -> dict[str, Any]:
        """Return the tensors of an earlier head, with output matrices for the tokens that are
        drafted now. Tokens that it did not draft take their rows from the target's matrix.
        """
        from safetensors.torch import load_file

        tensors: dict[str, Any] = load_file(file)
        known = self._job["known"]
        number_of = torch.full((len(self._embedding),), -1)
        number_of[torch.tensor(known)] = torch.arange(len(known))
        numbers = number_of[self._drafted.cpu()]
        for name in _OUTPUTS & tensors.keys():
            rows = self._output.cpu().to(tensors[name].dtype, copy=True)
            rows[numbers >= 0] = tensors[name][numbers[numbers >= 0]]
            tensors[name] = rows
        return tensors

    def loss_of(self, numbers: Sequence[int]) -> tuple[Any, list[float]]:
        """Return the loss, and the divergence at each step of the training-time test."""
        return objective.loss_of(
            self._network, self.weights, self._sizes, self._embedding, self._output,
            self._number_of, self._conversations.batch(numbers, self.prepared),
        )  # fmt: skip

    def hits_of(self, numbers: Sequence[int], n_drafts: int) -> list[Any]:
        """Return which guesses are right."""
        right = objective.hits_of(
            self._network, self.weights, self._sizes, self._embedding, self._drafted,
            self._conversations.batch(numbers, {}), n_drafts,
        ).numpy()  # fmt: skip
        hits = []
        for i, number in enumerate(numbers):
            n_prompt = self._conversations.all[number]["n_prompt"]
            hits.append(right[:, i, n_prompt - 1 : self.lengths[number] - 2])
        return hits

    def write(
        self, weights: Mapping[str, Any], measured: Callable[[Sequence[int]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Write the head as model.safetensors; return its acceptance length by the precision of its
        matrices, in what was held out.
        """
        from safetensors.torch import save_file

        scale, embedding = self._conversations.scale, self._embedding.cpu()
        tensors = self._network.exported(weights, self._sizes, scale, embedding)
        written = {name: each.contiguous() for name, each in tensors.items()}
        ids = self._drafted.cpu()
        written["d2t"] = ids - torch.arange(len(ids))
        written["t2d"] = torch.zeros(len(self._embedding), dtype=torch.bool)
        written["t2d"][ids] = True
        save_file(written, Path(self._job["folder"]) / WEIGHTS, {"format": "pt"})
        return {"precisions": self._precisions(weights, measured)}

    def _precisions(
        self, weights: Mapping[str, Any], measured: Callable[[Sequence[int]], dict[str, Any]]
    ) -> dict[str, float]:
        lengths = {}
        for kind in PRECISIONS:
            with torch.no_grad():
                for name, own in self.weights.items():
                    divided = name == "fc.weight"  # as it is written
                    scale = self._conversations.scale if divided else torch.ones(1)
                    stored = rounded((weights[name] / scale).numpy(), kind)
                    own.copy_(torch.from_numpy(stored) * scale)
            by_depth = measured(self._job["held_out"][:_MOST_COMPARED])["acceptance_length"]
            lengths[kind] = by_depth[: self._sizes.n_ahead][-1]
        return lengths

    def prepare(self, bfloat16: bool, wait: Callable[[], float]) -> None:
        """Note the tokens that the target finds likeliest in the answers that are trained with.

        bfloat16: how logits are computed. wait: called before each conversation; returns how many
        seconds it has waited.
        """
        output = self._target_output.to(torch.bfloat16 if bfloat16 else torch.float32)
        began = told = time.monotonic()
        for done, number in enumerate(self._trained):
            began += wait()
            n_prompt = self._conversations.all[number]["n_prompt"]
            states = self._conversations.states(number)
            before = states[n_prompt - 1 : -1, 3 * self._sizes.hidden_size :]
            pieces = before.to(output).split(_PIECE)
            chosen = [torch.nn.functional.linear(each, output).argmax(-1) for each in pieces]
            self.prepared[number] = torch.cat(chosen).cpu()
            if (now := time.monotonic()) - told > TOLD_EVERY_S:
                told, left_s = now, (now - began) / (done + 1) * (len(self._trained) - done - 1)
                tell(
                    progress=f"the target's choices: {done + 1} of {len(self._trained)} answers, "
                    f"{left_s / 60:.0f} min left"
                )

    def _taps_rms(self) -> Any:
        """Return the root mean square of each number of the layers' states, [3d], in some
        conversations; at least a tenth of its layer's. A few numbers are hundreds of times as large
        as the others. The first token, whose states are larger still, is left out.
        """
        d, numbers = self._sizes.hidden_size, self._trained[:16]
        squares = torch.cat([self._conversations.states(i)[1:, : 3 * d] for i in numbers]).square()
        each = squares.mean(0).view(3, d)
        least = 0.01 * each.mean(1, keepdim=True)
        return each.maximum(least).clamp(min=1e-12).sqrt().view(3 * d)


class Conversations:
    """The recorded conversations with the target's states, read from disk as they are needed.

    The file FEATURES has the bfloat16 states of all tokens one after the other, [4, d] each: three
    layers and the final state. EXACT has the float32 states of those that are `checked`.
    """

    def __init__(self, folder: Path, hidden_size: int, checked: Sequence[int]) -> None:
        self.all, width = conversations(folder), N_STATES * hidden_size
        self._states = np.memmap(folder / FEATURES, np.uint16, "r").reshape(-1, width)
        self._begins = np.cumsum([0, *(len(each["ids"]) for each in self.all)])
        self._hidden_size = hidden_size
        self._exact = dict[int, Any]()
        if (exact := folder / EXACT).exists():
            rows = np.memmap(exact, np.float32, "r").reshape(-1, width)
            ends = np.cumsum([self.n_tokens(i) for i in checked])
            self._exact = dict(zip(checked, np.split(rows, ends[:-1]), strict=True))
        self.scale = torch.ones(3 * hidden_size)  # `batch` divides the layers' states by this

    def n_tokens(self, number: int) -> int:
        """Return the number of tokens of a conversation, the prompt's included."""
        return len(self.all[number]["ids"])

    def states(self, number: int) -> Any:
        """Return the states of a conversation, float32 [n, 4d]."""
        if number in self._exact:
            return torch.from_numpy(np.array(self._exact[number]))
        begin, end = self._begins[number : number + 2]
        rows = np.array(self._states[begin:end]).view(np.int16)
        return torch.from_numpy(rows).view(torch.bfloat16).float()

    def batch(self, numbers: Sequence[int], known: Mapping[int, Any]) -> objective.Batch:
        """Return these conversations, padded on the right. known: their `likeliest` tokens."""
        n, d = max(map(self.n_tokens, numbers)), self._hidden_size
        ids = torch.zeros(len(numbers), n, dtype=torch.long)
        states = torch.zeros(len(numbers), n, 4 * d)
        is_answer = torch.zeros(len(numbers), n, dtype=torch.bool)
        likeliest = torch.zeros(len(numbers), n, dtype=torch.long)
        for i, number in enumerate(numbers):
            own, size = self.all[number], self.n_tokens(number)
            ids[i, :size] = torch.tensor(own["ids"])
            states[i, :size] = self.states(number)
            is_answer[i, own["n_prompt"] : size] = True
            if number in known:
                likeliest[i, own["n_prompt"] : size] = known[number]
        taps, last = states[..., : 3 * d] / self.scale, states[..., 3 * d :]
        fields = (ids, taps, last, is_answer, likeliest)
        return objective.Batch(*(each.to(DEVICE) for each in fields))


def first_weights(job: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Return the weights of a GGUF's last layer and its final norm, by the names of an EAGLE-3
    head's; {} for other targets and networks.

    The head's attention reads twice as much as the target's: what it reads of the token gets zeros.
    """
    if job["network"] != "eagle3" or not job["target"].endswith(".gguf"):
        return {}
    import gguf

    tensors = {each.name: each for each in gguf.GGUFReader(job["target"]).tensors}
    n_layer = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blk."))
    weights = {}
    for given, own in NAMES.items():
        source = own.replace("blk.0.", f"blk.{n_layer - 1}.").replace("attn_norm_2", "attn_norm")
        tensor = tensors.get(f"{source}.weight")
        if tensor is not None and given not in _NOT_IN_TARGET:
            weight = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
            weights[f"{given}.weight"] = torch.from_numpy(weight.copy())
    for letter, n_heads in (("q", sizes.n_heads), ("k", sizes.n_kv_heads), ("v", 0)):
        name = f"{ATTENTION}.{letter}_proj.weight"
        if (rows := weights.get(name)) is not None:
            if n_heads and job["paired"]:
                rows = halved(rows, n_heads)
            weights[name] = torch.cat([torch.zeros_like(rows), rows], 1)
    return weights


def halved(weight: Any, n_heads: int) -> Any:
    """Return a projection whose rotated numbers are neighbours as one with pairs half a head
    apart.
    """
    rows, n_in = weight.shape
    return weight.view(n_heads, rows // n_heads // 2, 2, n_in).transpose(1, 2).reshape(rows, n_in)
