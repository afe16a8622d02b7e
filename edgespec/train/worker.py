"""The program that trains a head; `convert/tools.py` runs it in its own environment.

It needs torch, safetensors and gguf, and imports nothing of edgespec. Its argument is one JSON
object: "parent", the id of the process that started it, and "job", the path of a JSON file with

    target        the target's file; rope: "pairs" if a GGUF keeps rotated numbers as neighbours;
                  target_weights: the program that reads its embedding and output matrix
    sizes         the fields of eagle3.Sizes
    features      the folder with features.bin and features.json
    folder        the folder of the state of training and its results
    n_conversations   how many there are
    drafted       the target's ids of the tokens that the head can draft, ascending
    start         the model.safetensors of an earlier head to go on with, "" for none
    held_out      the numbers of the conversations that are only evaluated
    checked       those of them with which the head is served afterwards
    depth         steps of the training-time test
    n_steps, passes, seconds   how long to train: the first that is not 0 decides
    batch_tokens  most tokens of a batch, padding included
    rate          the highest learning rate
    seed

It writes model.safetensors and result.json to the folder, and prints one JSON object per line:
{"step": …} or {"progress": …}.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

N_DRAFTS = 5  # longest drafts that are evaluated
SAVED_EVERY_S, TOLD_EVERY_S = 60.0, 5.0
_LOOKED_EVERY_S = 0.5
_N_EVALUATIONS = 8
_WARM_UP, _LEAST_WARM_UP = 0.02, 10  # share of all steps, and steps
_LOWEST_RATE = 0.05  # of the highest
_CLIP = 0.5
_TIMED = 3  # steps that are timed to know how many fit
_GAIN = 1.5  # bfloat16 is used where it multiplies so many times as fast
_MOST_EVALUATED = 400  # conversations
_PIECE = 128  # rows of logits over the target's vocabulary that are in memory at a time


def main() -> None:
    """Train the head that the argument describes, and write it."""
    given = json.loads(sys.argv[1])
    job = json.loads(Path(given["job"]).read_text("utf-8"))
    tell(step="reading the target's weights")
    training = Training(job, given["parent"])
    tell(step="training")
    training.run()
    tell(step="writing the head")
    training.write()


def tell(**message: Any) -> None:
    """Write a message to the parent process, as one line of JSON."""
    print(json.dumps(message), file=sys.__stdout__, flush=True)


def wait(folder: Path, parent: int) -> float:
    """Wait while the parent process pauses the training; return the seconds.

    The file `pause` is in the folder meanwhile. If the parent has ended, nothing is waited for.
    """
    began = time.monotonic()
    while (folder / "pause").exists() and os.getppid() == parent:
        time.sleep(_LOOKED_EVERY_S)
    return time.monotonic() - began


def sibling(name: str) -> Any:
    """Import the file of this name next to this one, which python -I does not find."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec
    assert spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Conversations:
    """The recorded conversations with the target's states, read from disk as they are needed.

    features.bin has the bfloat16 states of all tokens one after the other, [4, d] each: three
    layers and the final state. features.json has for each conversation the number of its first
    token there, its ids and the length of its prompt.
    """

    def __init__(self, folder: Path, hidden_size: int) -> None:
        self.all = json.loads((folder / "features.json").read_text("utf-8"))["conversations"]
        states = np.memmap(folder / "features.bin", np.uint16, "r")
        self._states = states.reshape(-1, 4 * hidden_size)
        self._hidden_size = hidden_size
        self.scale = torch.ones(3 * hidden_size)  # `batch` divides the layers' states by this
        self.likeliest: dict[int, Any] = {}  # of conversations, as in eagle3.Batch; zeros elsewhere

    def __len__(self) -> int:
        return len(self.all)

    def n_tokens(self, number: int) -> int:
        """Return the number of tokens of a conversation, the prompt's included."""
        return len(self.all[number]["ids"])

    def states(self, number: int) -> Any:
        """Return the states of a conversation, float32 [n, 4d]."""
        begin, n = self.all[number]["begin"], self.n_tokens(number)
        rows = np.array(self._states[begin : begin + n]).view(np.int16)
        return torch.from_numpy(rows).view(torch.bfloat16).float()

    def batch(self, numbers: Sequence[int], batch_type: Any, device: str) -> Any:
        """Return these conversations as an eagle3.Batch, padded on the right."""
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

    def find_likeliest(
        self, numbers: Sequence[int], output: Any, wait: Callable[[], float]
    ) -> None:  # fmt: skip
        """Note the tokens that the target finds likeliest in the answers of these conversations.

        output: the target's output matrix, [vocab_size, d], in the type in which logits are
        computed. wait: called before each conversation; returns how many seconds it has waited.
        """
        began = told = time.monotonic()
        for done, number in enumerate(numbers):
            began += wait()
            n_prompt = self.all[number]["n_prompt"]
            before = self.states(number)[n_prompt - 1 : -1, 3 * self._hidden_size :]
            pieces = before.to(output).split(_PIECE)
            chosen = [torch.nn.functional.linear(each, output).argmax(-1) for each in pieces]
            self.likeliest[number] = torch.cat(chosen).cpu()
            if (now := time.monotonic()) - told > TOLD_EVERY_S:
                told, left_s = now, (now - began) / (done + 1) * (len(numbers) - done - 1)
                tell(
                    progress=f"the target's choices: {done + 1} of {len(numbers)} answers, "
                    f"{left_s / 60:.0f} min left"
                )


def batches(
    lengths: Mapping[int, int], most_tokens: int, generator: np.random.Generator
) -> list[list[int]]:
    """Return conversations in batches of similar length, in random order.

    lengths: the number of tokens of each conversation. most_tokens: of a batch, padding included; a
    longer conversation is alone.
    """
    shuffled = generator.permutation(sorted(lengths))
    made: list[list[int]] = [[]]
    for number in sorted(shuffled.tolist(), key=lambda each: lengths[each] // 32):
        longest = max([lengths[number], *(lengths[each] for each in made[-1])])
        if made[-1] and longest * (len(made[-1]) + 1) > most_tokens:
            made.append([])
        made[-1].append(number)
    return [made[i] for i in generator.permutation(len(made)) if made[i]]


class Training:
    """A training run, which goes on where an earlier one was killed.

    All randomness is a function of the seed, the pass and the step, so that a run that was resumed
    ends with the same weights, bit for bit, as one that was not interrupted.
    """

    def __init__(self, job: dict[str, Any], parent: int) -> None:
        self._parent = parent
        self.job, self.folder = job, Path(job["folder"])
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.use_deterministic_algorithms(self.device == "cpu")
        self._eagle3 = sibling("eagle3")
        given = dict(job["sizes"]) | {"rotation": tuple(job["sizes"]["rotation"])}
        self.sizes = self._eagle3.Sizes(**given)
        self.conversations = Conversations(Path(job["features"]), self.sizes.hidden_size)
        held_out = set(job["held_out"])
        self._lengths = {
            i: self.conversations.n_tokens(i)
            for i in range(len(self.conversations)) if i not in held_out
        }  # fmt: skip
        self._held_out = sorted(held_out)[:_MOST_EVALUATED]
        self.drafted = torch.tensor(job["drafted"], device=self.device)
        embedding, output, start = target_weights(job)
        self._embedding = embedding.to(self.device)
        self._target_output = output.to(self.device)
        self._output = self._target_output[self.drafted]
        self._number_of = torch.full((len(embedding),), -1, device=self.device)
        self._number_of[self.drafted] = torch.arange(len(self.drafted), device=self.device)
        start["lm_head.weight"] = self._output
        self.conversations.scale = scale = self._taps_rms()
        weights = self._eagle3.initial(self.sizes, start | earlier(job), scale, job["seed"])
        self.weights = {
            name: each.detach().to(self.device).requires_grad_() for name, each in weights.items()
        }
        self._optimiser = torch.optim.AdamW(
            list(self.weights.values()), job["rate"], (0.9, 0.95), weight_decay=0.0
        )
        self.step, self.n_steps, self.bfloat16 = 0, 0, False
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}
        self._resume()

    def run(self) -> None:
        """Train from the current step to the end."""
        began, first = time.monotonic(), self.step
        told = saved = began
        for numbers in self._remaining():
            began += self._wait()
            reported = self._train(numbers)
            self.step += 1
            if self.step % max(1, self.n_steps // _N_EVALUATIONS) == 0 or self.step == self.n_steps:
                self._evaluate(reported)
                self._save()
                saved = time.monotonic()
            now = time.monotonic()
            if now - told > TOLD_EVERY_S:
                told, left_s = now, (now - began) / (self.step - first)
                left_s *= self.n_steps - self.step
                tell(progress=self._said(reported, left_s))
            if now - saved > SAVED_EVERY_S:
                self._save()
                saved = now

    def write(self) -> None:
        """Write the best weights as model.safetensors, and what was measured as result.json."""
        from safetensors.torch import save_file

        weights = {name: each.contiguous() for name, each in self.best["weights"].items()}
        weights["fc.weight"] = weights["fc.weight"] / self.conversations.scale
        ids = self.drafted.cpu()
        weights["d2t"] = ids - torch.arange(len(ids))
        weights["t2d"] = torch.zeros(len(self._embedding), dtype=torch.bool)
        weights["t2d"][ids] = True
        save_file(weights, self.folder / "model.safetensors", {"format": "pt"})
        result = {
            "n_steps": self.n_steps, "bfloat16": self.bfloat16, "best_step": self.best["step"],
            "history": self.history, "checked": self._measured_best(self.job["checked"]),
            "held_out": self._measured_best(self._held_out),
        }  # fmt: skip
        replace(self.folder / "result.json", json.dumps(result, indent=1).encode())

    def _wait(self) -> float:
        return wait(self.folder, self._parent)

    def _remaining(self) -> Iterator[list[int]]:
        """Yield the batches from the current step on."""
        step, number = 0, 0
        while step < self.n_steps:
            generator = np.random.default_rng([self.job["seed"], number])
            for each in batches(self._lengths, self.job["batch_tokens"], generator):
                if self.step <= step < self.n_steps:
                    yield each
                step += 1
            number += 1

    def _train(self, numbers: Sequence[int]) -> list[float]:
        """Take one optimiser step; return the divergence at each step of the training-time test."""
        for group in self._optimiser.param_groups:
            group["lr"] = self.job["rate"] * rate_at(self.step, self.n_steps)
        batch = self.conversations.batch(numbers, self._eagle3.Batch, self.device)
        with self._autocast():
            loss, reported = self._eagle3.loss_of(
                self.weights, self.sizes, self._embedding, self._output, self._number_of, batch,
                self.job["depth"],
            )  # fmt: skip
        if loss.requires_grad:
            self._optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(self.weights.values()), _CLIP)
            self._optimiser.step()
        return list(reported)

    def _evaluate(self, reported: list[float]) -> None:
        """Note how the weights guess the conversations that were held out; keep the best."""
        measured = self.measured(self._held_out)
        self.history.append({"step": self.step, "divergence": reported} | measured)
        length = measured["acceptance_length"][-1]
        if not self.best or length >= self.best["length"]:
            weights = {name: each.detach().cpu().clone() for name, each in self.weights.items()}
            self.best = {"length": length, "step": self.step, "weights": weights}

    def measured(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return how many drafted tokens are accepted in these conversations: what `walked` returns
        for drafts of 1 to N_DRAFTS tokens, as two lists.
        """
        hits = []
        lengths = {i: self.conversations.n_tokens(i) for i in numbers}
        order = batches(lengths, self.job["batch_tokens"], np.random.default_rng(0))
        for each in order:
            self._wait()
            batch = self.conversations.batch(each, self._eagle3.Batch, self.device)
            right = self._eagle3.hits_of(  # in float32, as the head is served
                self.weights, self.sizes, self._embedding, self.drafted, batch, N_DRAFTS
            ).numpy()
            for i, number in enumerate(each):
                own = self.conversations.all[number]
                hits.append(right[:, i, own["n_prompt"] - 1 : lengths[number] - 2])
        found = [walked(hits, k) for k in range(1, N_DRAFTS + 1)]
        return {
            "acceptance_length": [length for length, _ in found],
            "acceptance": [shares for _, shares in found],
        }

    def _measured_best(self, numbers: Sequence[int]) -> dict[str, Any]:
        with torch.no_grad():
            for name, each in self.weights.items():
                each.copy_(self.best["weights"][name])
        return self.measured(numbers)

    def _said(self, reported: Sequence[float], left_s: float) -> str:
        length = f", acceptance length {self.best['length']:.2f}" if self.best else ""
        return (
            f"training: step {self.step} of {self.n_steps}, divergence "
            f"{' '.join(f'{each:.2f}' for each in reported)}{length}, {left_s / 60:.0f} min left"
        )

    def _autocast(self) -> Any:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.bfloat16)

    def _taps_rms(self) -> Any:
        """Return the root mean square of each number of the layers' states, [3d], in some
        conversations; at least a tenth of its layer's. A few numbers are hundreds of times as large
        as the others. The first token, whose states are larger still, is left out.
        """
        d, numbers = self.sizes.hidden_size, sorted(self._lengths)[:16]
        squares = torch.cat([self.conversations.states(i)[1:, : 3 * d] for i in numbers]).square()
        each = squares.mean(0).view(3, d)
        least = 0.01 * each.mean(1, keepdim=True)
        return each.maximum(least).clamp(min=1e-12).sqrt().view(3 * d)

    def _resume(self) -> None:
        """Read the state of an earlier run, or decide how long to train."""
        path = self.folder / "state.pt"
        if path.exists():
            state = torch.load(path, map_location=self.device, weights_only=True)
            with torch.no_grad():
                for name, each in self.weights.items():
                    each.copy_(state["weights"][name])
            self._optimiser.load_state_dict(state["optimiser"])
            for name in ("step", "n_steps", "bfloat16", "history", "best"):
                setattr(self, name, state[name])
            self.conversations.likeliest = state["likeliest"]
            torch.set_num_threads(state["n_threads"])  # sums depend on it
            return
        self.bfloat16 = self.device != "cpu" or gains_by_bfloat16()
        output = self._target_output.to(torch.bfloat16 if self.bfloat16 else torch.float32)
        self.conversations.find_likeliest(sorted(self._lengths), output, self._wait)
        self.n_steps = self.job["n_steps"] or self._fitting_steps()
        self._save()

    def _fitting_steps(self) -> int:
        """Return how many steps the passes or the seconds of the job allow."""
        order = batches(self._lengths, self.job["batch_tokens"], np.random.default_rng(0))
        if self.job["passes"]:
            return int(self.job["passes"]) * len(order)
        before = {name: each.detach().clone() for name, each in self.weights.items()}
        self.n_steps, times = 1, []
        for numbers in (order * _TIMED)[: _TIMED + 1]:  # the first one is slower
            began = time.monotonic()
            self._train(numbers)
            times.append(time.monotonic() - began)
        with torch.no_grad():
            for name, each in self.weights.items():
                each.copy_(before[name])
        self._optimiser.state.clear()
        return max(1, int(self.job["seconds"] / np.mean(times[1:])))

    def _save(self) -> None:
        """Write the state, so that a run that is killed now can go on from here."""
        state = {
            "weights": {name: each.detach() for name, each in self.weights.items()},
            "optimiser": self._optimiser.state_dict(),
            "n_threads": torch.get_num_threads(),
            "likeliest": self.conversations.likeliest,
            **{n: getattr(self, n) for n in ("step", "n_steps", "bfloat16", "history", "best")},
        }
        path = self.folder / "state.pt"
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


def rate_at(step: int, n_steps: int) -> float:
    """Return the learning rate of a step as a share of the highest: it rises, then falls as a
    cosine.
    """
    rising = min(max(_LEAST_WARM_UP, _WARM_UP * n_steps), n_steps / 2)
    falling = 0.5 * (1 + math.cos(math.pi * step / n_steps))
    return min(1.0, (step + 1) / rising) * (_LOWEST_RATE + (1 - _LOWEST_RATE) * falling)


def walked(hits: Sequence[Any], n_drafted: int) -> tuple[float, list[float]]:
    """Simulate answers with drafts of a fixed length; return the mean acceptance length, and for
    each place of a draft the share of drafts of which its token was accepted.

    hits: for each conversation, bools [n_steps, rows], row 0 being the one that reads the first
    token of the answer. Like in inference, the next step begins after the accepted tokens and the
    target's own, which is not drafted at the end of an answer.
    """
    n_steps, accepted = 0, np.zeros(n_drafted, np.int64)
    for right in hits:
        at = 0
        while (n_left := right.shape[1] - at) > 1:
            n = int(right[: min(n_drafted, n_left - 1), at].cumprod().sum())
            accepted[:n] += 1
            n_steps += 1
            at += n + 1
    n_steps = max(1, n_steps)
    return 1 + float(accepted.sum()) / n_steps, (accepted / n_steps).tolist()


def gains_by_bfloat16() -> bool:
    """Return whether this processor multiplies matrices of bfloat16 clearly faster than of
    float32.
    """

    def seconds(dtype: Any) -> float:
        a, b = torch.ones(512, 512, dtype=dtype), torch.ones(2048, 512, dtype=dtype)
        times = []
        for _ in range(5):
            began = time.perf_counter()
            torch.nn.functional.linear(a, b)
            times.append(time.perf_counter() - began)
        return min(times)

    return seconds(torch.float32) > _GAIN * seconds(torch.bfloat16)


def target_weights(job: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return a target's embedding and output matrix, float32 [vocab_size, d], and the weights of
    its last layer by the names of the head's, as far as they are known.
    """
    path, sizes = Path(job["target"]), job["sizes"]
    read = runpy.run_path(job["target_weights"])
    from_file: Callable[[Path, str], Any] = (
        read["from_graph"] if path.suffix == ".onnx" else read["from_gguf"]
    )
    both = [torch.from_numpy(from_file(path, name)) for name in ("embed_tokens", "lm_head")]
    start = last_layer(path, sizes, job["rope"]) if path.suffix == ".gguf" else {}
    return both[0], both[1], start


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
    weights = {}
    for name, source in _IN_GGUF.items():
        tensor = tensors.get(source.replace("blk.", prefix))
        if tensor is not None:
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


_IN_GGUF = {
    "midlayer.self_attn.q_proj.weight": "blk.attn_q.weight",
    "midlayer.self_attn.k_proj.weight": "blk.attn_k.weight",
    "midlayer.self_attn.v_proj.weight": "blk.attn_v.weight",
    "midlayer.self_attn.o_proj.weight": "blk.attn_output.weight",
    "midlayer.mlp.gate_proj.weight": "blk.ffn_gate.weight",
    "midlayer.mlp.up_proj.weight": "blk.ffn_up.weight",
    "midlayer.mlp.down_proj.weight": "blk.ffn_down.weight",
    "midlayer.hidden_norm.weight": "blk.attn_norm.weight",
    "midlayer.post_attention_layernorm.weight": "blk.ffn_norm.weight",
    "norm.weight": "output_norm.weight",
}


def replace(path: Path, content: bytes) -> None:
    """Write a file completely or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)


if __name__ == "__main__":
    main()
