"""The task of distilling: the student, its loss and its files (see worker.py).

DistillSpec (arXiv 2310.08461): a small model is trained on the target's own answers with the
target's distributions. Only its last layers and its final norm are trained here. What the first of
them reads is computed once and kept, so a pass over the answers costs these layers and the output
matrix only.

It needs transformers and gguf. The job has, in addition to the fields that
`worker.py` reads,

    likeliest     the folder with likeliest.bin and likeliest.json, and n_likeliest, the number of
                  tokens in a row of the former (see likeliest.py)
    start         the student, a GGUF or the folder of a checkpoint
    n_layers      how many layers are trained
    converter     the program whose `load_model` reads the student
    out, name     the student's new file or folder, and the name in the file
"""

from __future__ import annotations

import copy
import json
import os
import runpy
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

STATES = "states.bin"
_TOLD_EVERY_S = 5.0
_SAME = 1e-3  # of the largest logit: the most by which two ways to compute rows may differ
_LEAST_SHARE = 0.98  # of the accepted tokens that the old types have to keep
_UNSEEN = -1e30
_NOT_COPIED = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture",
               "general.name")  # fmt: skip


class Task:
    """The training of a student; its methods are described in worker.py."""

    def __init__(self, job: dict[str, Any], worker: Any) -> None:
        self._job, self._worker, self._device = job, worker, worker.DEVICE
        folder = Path(job["likeliest"])
        known = json.loads((folder / "likeliest.json").read_text("utf-8"))["conversations"]
        self._conversations: list[dict[str, Any]] = known
        self.lengths = [len(each["ids"]) for each in known]
        n = job["n_likeliest"]
        row = np.dtype([("ids", "<i4", n), ("logs", "<f2", n)])
        self._rows = np.memmap(folder / "likeliest.bin", row, "r")
        model = runpy.run_path(job["converter"])["load_model"](Path(job["start"]))
        self._model = model.eval().requires_grad_(False).to(self._device)
        self._inner, self._config = model.base_model, copy.deepcopy(model.config)
        layers = self._inner.layers
        self._n_layers = len(layers)
        self._first = max(0, self._n_layers - job["n_layers"])
        trained = {f"layers.{i}." for i in range(self._first, self._n_layers)}
        self.weights = {  # by the names in the whole model
            name: each for name, each in model.named_parameters()
            if any(part in name for part in trained) or each is self._inner.norm.weight
        }  # fmt: skip
        self._start = {name: each.clone() for name, each in self.weights.items()}
        self._keep_states(job)
        for each in self.weights.values():
            each.requires_grad_()

    def prepare(self, bfloat16: bool, wait: Callable[[], float]) -> None:
        """Do nothing."""

    def go_on(self, prepared: None) -> None:
        """Do nothing."""

    def loss_of(self, numbers: Sequence[int]) -> tuple[Any, list[float]]:
        """Return the divergence of the student from the target, the mean over all tokens of
        answers.

        The target's likeliest tokens count one by one, and all others together as one more token.
        """
        logits, rows = self._logits(numbers), self._rows_of(numbers)
        ids = torch.from_numpy(rows["ids"].astype(np.int64)).to(self._device)
        true = torch.from_numpy(rows["logs"].astype(np.float32)).to(self._device)
        is_listed = (ids < logits.shape[1]) & true.isfinite()
        true = true.masked_fill(~is_listed, _UNSEEN)
        own = logits.gather(1, ids.masked_fill(~is_listed, 0)) - logits.logsumexp(1, keepdim=True)
        own = own.masked_fill(~is_listed, _UNSEEN)
        listed = (true.exp() * (true - own)).sum(1)
        rest = _rest(true)
        apart = (listed + rest * (rest.log() - _rest(own).log())).mean()
        return apart, [float(apart.detach())]

    def hits_of(self, numbers: Sequence[int], n_drafts: int) -> list[Any]:
        """Return which guesses are right. A guess after right ones reads the recorded tokens, so
        one pass tells those of all places of a draft.
        """
        hits, begin = [], 0
        with torch.no_grad():
            guesses = self._logits(numbers).argmax(1).cpu().numpy()
        for number in numbers:
            own = self._conversations[number]
            answer = np.array(own["ids"][own["n_prompt"] :])
            right = (guesses[begin : begin + len(answer)] == answer)[1:]
            begin += len(answer)
            padded = np.concatenate([right, np.zeros(n_drafts, bool)])
            hits.append(np.stack([padded[s : s + len(right)] for s in range(n_drafts)]))
        return hits

    def write(
        self, weights: Mapping[str, Any], measured: Callable[[Sequence[int]], Any]
    ) -> dict[str, Any]:
        """Write the student, in the types of the file that it came from, unless these lose too much
        of what it has learnt: then in 8 bits.
        """
        from safetensors.torch import save_file

        job, out = self._job, Path(self._job["out"])
        save_file(dict(weights), Path(job["folder"]) / "model.safetensors", {"format": "pt"})
        if Path(job["start"]).is_dir():
            return self._write_checkpoint(weights, Path(job["start"]), out)
        file = StudentFile(Path(job["start"]), self._start, weights, self._config, self._worker)
        lengths = {}
        for kind in ("old", "Q8_0"):
            with torch.no_grad():
                for name, each in file.rounded(kind).items():
                    self.weights[name].copy_(each)
            lengths[kind] = measured(job["held_out"])["acceptance_length"][-1]
        enough = lengths["old"] - 1 >= _LEAST_SHARE * (lengths["Q8_0"] - 1)
        kind = "old" if enough else "Q8_0"
        file.write(kind, out, job["name"])
        return {"types": kind, "lengths": lengths}

    def _write_checkpoint(
        self, weights: Mapping[str, Any], start: Path, out: Path
    ) -> dict[str, Any]:
        """Write the student as a checkpoint, with all that lies next to the one that it was."""
        model = runpy.run_path(self._job["converter"])["load_model"](start)
        model.load_state_dict(dict(weights), strict=False)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(start, out, ignore=shutil.ignore_patterns("*.safetensors*"))
        model.save_pretrained(out)
        return {"types": ""}

    def _logits(self, numbers: Sequence[int]) -> Any:
        """Return the logits that guess the tokens of some answers, [rows, vocab_size]."""
        n, longest = len(numbers), max(self.lengths[i] for i in numbers)
        states = torch.zeros(n, longest, self._states.shape[1])
        for i, number in enumerate(numbers):
            states[i, : self.lengths[number]] = self._states_of(number)
        final = self._inner(inputs_embeds=states.to(self._device), use_cache=False)[0]
        wanted = [
            final[i, own["n_prompt"] - 1 : len(own["ids"]) - 1]
            for i, own in enumerate(self._conversations[number] for number in numbers)
        ]
        return self._model.lm_head(torch.cat(wanted)).float()

    def _rows_of(self, numbers: Sequence[int]) -> Any:
        """Return the target's rows for some answers, one after the other."""
        rows = []
        for own in (self._conversations[number] for number in numbers):
            n = len(own["ids"]) - own["n_prompt"]
            rows.append(self._rows[own["begin"] : own["begin"] + n])
        return np.concatenate(rows)

    def _states_of(self, number: int) -> Any:
        begin = self._begins[number]
        return torch.from_numpy(np.array(self._states[begin : begin + self.lengths[number]]))

    def _keep_states(self, job: Mapping[str, Any]) -> None:
        """Compute what the first trained layer reads, as far as an earlier run has not, and leave
        out the layers before it.
        """
        path, size = Path(job["folder"]) / STATES, self._inner.config.hidden_size
        self._begins = np.cumsum([0, *self.lengths])
        n_there = path.stat().st_size // (4 * size) if path.exists() else 0
        first = int(np.searchsorted(self._begins, n_there, "right")) - 1
        with path.open("ab") as file:
            file.truncate(int(self._begins[first]) * 4 * size)
            told = time.monotonic()
            for number, states in self._new_states(first):
                file.write(states.numpy().tobytes())
                if (now := time.monotonic()) - told > _TOLD_EVERY_S:
                    told, n = now, len(self.lengths)
                    self._worker.tell(progress=f"the student's states: answer {number + 1} of {n}")
            file.flush()
            os.fsync(file.fileno())
        self._states = np.memmap(path, np.float32, "r").reshape(-1, size)
        config, expected = self._inner.config, self._whole_rows(0)
        self._inner.layers = self._inner.layers[self._first :]
        config.num_hidden_layers = self._n_layers - self._first
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[self._first :]
        with torch.no_grad():
            apart = (self._logits([0]) - expected).abs().max() / expected.abs().max()
        if not apart <= _SAME:
            raise SystemExit(
                f"the last layers of {Path(job['start']).name} cannot be trained alone: their rows "
                f"differ by {float(apart):.3g} of the largest logit"
            )

    def _new_states(self, first: int) -> Iterator[tuple[int, Any]]:
        """Yield the numbers of the conversations from `first` on, and what the first trained layer
        reads in them.
        """
        read: list[Any] = []

        def keep(_: Any, positional: Sequence[Any], named: Mapping[str, Any]) -> None:
            read.append(positional[0] if positional else named["hidden_states"])
            raise _Read

        hook = self._inner.layers[self._first].register_forward_pre_hook(keep, with_kwargs=True)
        try:
            for number in range(first, len(self.lengths)):
                with torch.no_grad():
                    try:
                        self._whole(number)
                    except _Read:
                        yield number, read.pop()[0].float().cpu()
        finally:
            hook.remove()

    def _whole(self, number: int) -> Any:
        ids = torch.tensor([self._conversations[number]["ids"]], device=self._device)
        return self._model(ids, use_cache=False).logits[0]

    def _whole_rows(self, number: int) -> Any:
        with torch.no_grad():
            return self._whole(number)[self._conversations[number]["n_prompt"] - 1 : -1].float()


class _Read(Exception):
    """Raised when the input of the first trained layer is known: the rest need not run."""


class StudentFile:
    """A GGUF whose trained tensors are replaced.

    start, weights: these tensors before and after the training, by transformers' names. config: the
    student's configuration.
    """

    def __init__(
        self, path: Path, start: Mapping[str, Any], weights: Mapping[str, Any], config: Any,
        worker: Any,
    ) -> None:  # fmt: skip
        import gguf

        self._gguf, self._files = gguf, worker.sibling("gguf_file")
        self._reader = gguf.GGUFReader(path)
        self._architecture = self._reader.fields["general.architecture"].contents()
        by_name = {each.name: each for each in self._reader.tensors}
        known = {name: each for each, name in gguf.MODEL_ARCH_NAMES.items()}
        names = gguf.get_tensor_name_map(known[self._architecture], config.num_hidden_layers)
        self._trained: dict[str, tuple[str, Any, Any]] = {}
        for given, weight in weights.items():
            name = names.get_name(given, try_suffixes=(".weight", ".bias"))
            if name not in by_name:
                raise SystemExit(f"{path} has no tensor for {given}; give the student's checkpoint")
            tensor = by_name[name]
            data = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            n_heads = self._n_heads(given, start[given].numpy(), data, config)
            self._trained[name] = given, weight.numpy(), (n_heads, tensor.tensor_type)

    def rounded(self, kind: str) -> dict[str, Any]:
        """Return the trained tensors with the precision that a file of this kind has, by
        transformers' names.
        """
        quants, rounded = self._gguf.quants, {}
        for given, weight, (_, old) in self._trained.values():
            wanted = self._type(weight, old, kind)
            data = quants.quantize(weight, wanted)
            rounded[given] = torch.from_numpy(np.array(quants.dequantize(data, wanted), np.float32))
        return rounded

    def write(self, kind: str, out: Path, name: str) -> None:
        """Write the file.

        kind: "old" for the types of the tensors that are replaced, or the type of all trained
        matrices.
        """
        partial = out.with_suffix(".partial")
        writer = self._gguf.GGUFWriter(partial, self._architecture)
        self._files.copy_fields(writer, self._reader, lambda key: key not in _NOT_COPIED)
        writer.add_name(name)
        for tensor in self._reader.tensors:
            data, wanted = tensor.data, tensor.tensor_type
            if tensor.name in self._trained:
                _, weight, (n_heads, old) = self._trained[tensor.name]
                wanted = self._type(weight, old, kind)
                ordered = self._files.paired(weight, n_heads) if n_heads else weight
                data = self._gguf.quants.quantize(ordered, wanted)
            writer.add_tensor(tensor.name, data, raw_dtype=wanted)
        self._files.finish(writer)
        partial.replace(out)

    def _n_heads(self, given: str, start: Any, data: Any, config: Any) -> int:
        """Return into how many heads the rows of a tensor are divided, so that rotated numbers are
        neighbours in the file; 0 if they are not.
        """
        if np.allclose(start, data, atol=1e-6):
            return 0
        for n_heads in (config.num_attention_heads, config.num_key_value_heads):
            if start.ndim == 2 and np.allclose(self._files.paired(start, n_heads), data, atol=1e-6):
                return int(n_heads)
        raise SystemExit(
            f"the file has {given} in another form than the model; give the student's checkpoint"
        )

    def _type(self, weight: Any, old: Any, kind: str) -> Any:
        """Return the type in which a trained tensor is written."""
        if weight.ndim == 1 or old.name in self._files.FLOATS:
            return old
        name = self._files.writable(old.name) if kind == "old" else kind
        return self._gguf.GGMLQuantizationType[name]


def _rest(logs: Any) -> Any:
    """Return the probability that is left besides the listed tokens; at least a millionth."""
    return (1 - logs.exp().sum(1)).clamp(min=1e-6)
