"""The task of training heads: their features, loss and accuracy (see worker.py).

The job has, in addition to the fields that `worker.py` reads,

    target        the target's file; rope: "pairs" if a GGUF keeps rotated numbers as neighbours;
                  target_weights: the program that reads its embedding and output matrix
    network       the name of a file next to this one: eagle3, medusa or mlp
    sizes         the fields of its Sizes
    features      the folder with features.bin and features.json
    n_conversations   how many there are
    drafted       the target's ids of the tokens that the head can draft, ascending
    start         the model.safetensors of an earlier head to go on with, "" for none
    depth         steps of the training-time test, or the tokens that the head drafts at once
"""

from __future__ import annotations

import json
import runpy
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

PRECISIONS = ("F32", "Q8_0", "Q4_0")  # of matrices, as in GGUFs
_NOT_IN_TARGET = ("midlayer.input_layernorm", "lm_head")  # the output matrix is read elsewhere
_MOST_COMPARED = 100  # conversations
_PIECE = 128  # rows of logits over the target's vocabulary that are in memory at a time
_TOLD_EVERY_S = 5.0


class Task:
    """The training of a head; its methods are described in worker.py."""

    def __init__(self, job: dict[str, Any], worker: Any) -> None:
        self._job, self._worker = job, worker
        self._device = worker.DEVICE
        self._objective = worker.sibling("objective")
        self._network = worker.sibling(job["network"])
        self._sizes = self._network.Sizes(**job["sizes"])
        self._conversations = Conversations(
            Path(job["features"]), self._sizes.hidden_size, job["checked"]
        )
        self.lengths = [self._conversations.n_tokens(i) for i in range(len(self._conversations))]
        held_out = set(job["held_out"])
        self._trained = [i for i in range(len(self._conversations)) if i not in held_out]
        self._drafted = torch.tensor(job["drafted"], device=self._device)
        embedding, output, start = target_weights(job)
        self._embedding = embedding.to(self._device)
        self._target_output = output.to(self._device)
        self._output = self._target_output[self._drafted]
        self._number_of = torch.full((len(embedding),), -1, device=self._device)
        self._number_of[self._drafted] = torch.arange(len(self._drafted), device=self._device)
        start["lm_head.weight"] = self._output
        self._conversations.scale = scale = self._taps_rms()
        weights = self._network.initial(self._sizes, start | earlier(job), scale, job["seed"])
        self.weights = {
            name: each.detach().to(self._device).requires_grad_() for name, each in weights.items()
        }

    def prepare(self, bfloat16: bool, wait: Callable[[], float]) -> dict[int, Any]:
        """Find the target's likeliest tokens, and return them."""
        output = self._target_output.to(torch.bfloat16 if bfloat16 else torch.float32)
        self._find_likeliest(output, wait)
        return self._conversations.likeliest

    def go_on(self, prepared: dict[int, Any]) -> None:
        """Take the result of `prepare` in an earlier run."""
        self._conversations.likeliest = prepared

    def loss_of(self, numbers: Sequence[int]) -> tuple[Any, list[float]]:
        """Return the loss, and the divergence at each step of the training-time test."""
        batch = self._conversations.batch(numbers, self._objective.Batch, self._device)
        loss, reported = self._objective.loss_of(
            self._network, self.weights, self._sizes, self._embedding, self._output,
            self._number_of, batch, self._job["depth"],
        )  # fmt: skip
        return loss, list(reported)

    def hits_of(self, numbers: Sequence[int], n_drafts: int) -> list[Any]:
        """Return which guesses are right."""
        batch = self._conversations.batch(numbers, self._objective.Batch, self._device)
        right = self._objective.hits_of(
            self._network, self.weights, self._sizes, self._embedding, self._drafted, batch,
            n_drafts,
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
        save_file(written, Path(self._job["folder"]) / "model.safetensors", {"format": "pt"})
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
                    own.copy_(rounded(weights[name] / scale, kind) * scale)
            by_depth = measured(self._job["held_out"][:_MOST_COMPARED])["acceptance_length"]
            lengths[kind] = by_depth[: self._job["depth"]][-1]
        return lengths

    def _find_likeliest(self, output: Any, wait: Callable[[], float]) -> None:
        """Note the tokens that the target finds likeliest in the answers that are trained with.

        output: the target's output matrix, [vocab_size, d], in the type in which logits are
        computed. wait: called before each conversation; returns how many seconds it has waited.
        """
        began = told = time.monotonic()
        for done, number in enumerate(self._trained):
            began += wait()
            n_prompt = self._conversations.all[number]["n_prompt"]
            states = self._conversations.states(number)
            before = states[n_prompt - 1 : -1, 3 * self._sizes.hidden_size :]
            pieces = before.to(output).split(_PIECE)
            chosen = [torch.nn.functional.linear(each, output).argmax(-1) for each in pieces]
            self._conversations.likeliest[number] = torch.cat(chosen).cpu()
            if (now := time.monotonic()) - told > _TOLD_EVERY_S:
                told, left_s = now, (now - began) / (done + 1) * (len(self._trained) - done - 1)
                self._worker.tell(
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

    features.bin has the bfloat16 states of all tokens one after the other, [4, d] each: three
    layers and the final state. features.json has for each conversation the number of its first
    token there, its ids and the length of its prompt. exact.bin, if it is there, has the float32
    states of those that are `checked`.
    """

    def __init__(self, folder: Path, hidden_size: int, checked: Sequence[int]) -> None:
        self.all = json.loads((folder / "features.json").read_text("utf-8"))["conversations"]
        states = np.memmap(folder / "features.bin", np.uint16, "r")
        self._states = states.reshape(-1, 4 * hidden_size)
        self._hidden_size = hidden_size
        self._exact = dict[int, Any]()
        if (exact := folder / "exact.bin").exists():
            rows = np.memmap(exact, np.float32, "r").reshape(-1, 4 * hidden_size)
            ends = np.cumsum([self.n_tokens(i) for i in checked])
            self._exact = dict(zip(checked, np.split(rows, ends[:-1]), strict=True))
        self.scale = torch.ones(3 * hidden_size)  # `batch` divides the layers' states by this
        self.likeliest: dict[int, Any] = {}  # as in objective.Batch; zeros elsewhere

    def __len__(self) -> int:
        return len(self.all)

    def n_tokens(self, number: int) -> int:
        """Return the number of tokens of a conversation, the prompt's included."""
        return len(self.all[number]["ids"])

    def states(self, number: int) -> Any:
        """Return the states of a conversation, float32 [n, 4d]."""
        if number in self._exact:
            return torch.from_numpy(np.array(self._exact[number]))
        begin, n = self.all[number]["begin"], self.n_tokens(number)
        rows = np.array(self._states[begin : begin + n]).view(np.int16)
        return torch.from_numpy(rows).view(torch.bfloat16).float()

    def batch(self, numbers: Sequence[int], batch_type: Any, device: str) -> Any:
        """Return these conversations as an objective.Batch, padded on the right."""
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
            if number in self.likeliest:
                likeliest[i, own["n_prompt"] : size] = self.likeliest[number]
        taps, last = states[..., : 3 * d] / self.scale, states[..., 3 * d :]
        fields = (ids, taps, last, is_answer, likeliest)
        return batch_type(*(each.to(device) for each in fields))


def target_weights(job: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return a target's embedding and output matrix, float32 [vocab_size, d], and the weights of
    its last layer by the names of an EAGLE-3 head's, as far as they are known.
    """
    path, sizes = Path(job["target"]), job["sizes"]
    read = runpy.run_path(job["target_weights"])
    from_file: Callable[[Path, str], Any] = (
        read["from_graph"] if path.suffix == ".onnx" else read["from_gguf"]
    )
    both = [torch.from_numpy(from_file(path, name)) for name in ("embed_tokens", "lm_head")]
    reads_layer = job["network"] == "eagle3" and path.suffix == ".gguf"
    start = last_layer(path, sizes, job["rope"]) if reads_layer else {}
    return both[0], both[1], start


def rounded(weight: Any, kind: str) -> Any:
    """Return a weight as it is after it was stored in a precision. Vectors, and matrices with rows
    of no fitting length, stay float32.
    """
    import gguf

    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    if kind == "F32" or weight.dim() == 1 or weight.shape[1] % block:
        return weight
    number = gguf.GGMLQuantizationType[kind]
    stored = gguf.quants.quantize(weight.cpu().numpy(), number)
    return torch.from_numpy(gguf.quants.dequantize(stored, number)).to(weight.device)


def earlier(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights of the earlier head that the job names, {} if it names none."""
    from safetensors.torch import load_file

    return load_file(job["start"]) if job["start"] else {}


def last_layer(path: Path, sizes: Mapping[str, Any], rope: str) -> dict[str, Any]:
    """Return the weights of a GGUF's last layer and its final norm, by the names of a head's.

    The head's attention reads twice as much as the target's: what it reads of the token gets zeros.
    """
    import gguf

    tensors = {each.name: each for each in gguf.GGUFReader(path).tensors}
    n_layer = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blk."))
    prefix = f"blk.{n_layer - 1}."
    names = runpy.run_path(str(Path(__file__).with_name("gguf_file.py")))["NAMES"]
    weights = {}
    for given, own in names.items():
        name = f"{given}.weight"
        source = own.replace("blk.0.", prefix).replace("attn_norm_2", "attn_norm")
        tensor = tensors.get(f"{source}.weight")
        if tensor is not None and given not in _NOT_IN_TARGET:
            weight = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
            weights[name] = torch.from_numpy(weight.copy())
    for letter, n_heads in (("q", sizes["n_heads"]), ("k", sizes["n_kv_heads"]), ("v", 0)):
        name = f"midlayer.self_attn.{letter}_proj.weight"
        if (rows := weights.get(name)) is not None:
            if n_heads and rope == "pairs":
                rows = halved(rows, n_heads)
            weights[name] = torch.cat([torch.zeros_like(rows), rows], 1)
    return weights


def halved(weight: Any, n_heads: int) -> Any:
    """Return a projection whose rotated numbers are neighbours as one with pairs half a head
    apart.
    """
    rows, n_in = weight.shape
    return weight.view(n_heads, rows // n_heads // 2, 2, n_in).transpose(1, 2).reshape(rows, n_in)
