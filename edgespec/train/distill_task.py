"""The task of distilling: the student, its loss and its files (see worker.py).

DistillSpec (arXiv 2310.08461): a small model is trained on the target's own answers with the
target's distributions. Only its last layers and its final norm are trained here. What the first of
them reads is computed once and kept, so a pass over the answers costs these layers and the output
matrix only.

It needs transformers and gguf. The job has, in addition to the fields that `worker.py` reads,

    recorded      the folder with the answers and the target's likeliest tokens
    start         the student, a GGUF or the folder of a checkpoint
    n_layers      how many layers are trained
    out, name     the student's new file or folder, and the name in the file
"""

from __future__ import annotations

import copy
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..convert.program import replacing, tell
from ..convert.worker import load_model
from .formats import LIKELIEST, ROW, STATES, TOLD_EVERY_S, WEIGHTS, conversations
from .gguf_file import (
    FLOATS,
    as_in_file,
    copy_fields,
    finish,
    rounded,
    stored,
    tensor_names,
    writable,
)
from .worker import DEVICE

_SAME = 1e-3  # of the largest logit: the most by which two ways to compute rows may differ
_LEAST_SHARE = 0.98  # of the accepted tokens that the old types have to keep
_UNSEEN = -1e30
_NOT_COPIED = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture",
               "general.name")  # fmt: skip


class Task:
    """The training of a student; its methods are described in worker.py."""

    has_learnt, prepared = True, None

    def __init__(self, job: dict[str, Any]) -> None:
        self._job, folder = job, Path(job["recorded"])
        self._conversations = conversations(folder)
        self.lengths = [len(each["ids"]) for each in self._conversations]
        n_answers = [len(each["ids"]) - each["n_prompt"] for each in self._conversations]
        ends = np.cumsum(n_answers)[:-1]
        self._rows = np.split(np.memmap(folder / LIKELIEST, ROW, "r"), ends)
        model = load_model(Path(job["start"]))
        self._model = model.eval().requires_grad_(False).to(DEVICE)
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

    def loss_of(self, numbers: Sequence[int]) -> tuple[Any, list[float]]:
        """Return the divergence of the student from the target, the mean over all tokens of
        answers.

        The target's likeliest tokens count one by one, and all others together as one more token.
        """
        logits, rows = self._logits(numbers), np.concatenate([self._rows[i] for i in numbers])
        ids = torch.from_numpy(rows["ids"].astype(np.int64)).to(DEVICE)
        true = torch.from_numpy(rows["logs"].astype(np.float32)).to(DEVICE)
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
        save_file(dict(weights), Path(job["folder"]) / WEIGHTS, {"format": "pt"})
        if Path(job["start"]).is_dir():
            return self._write_checkpoint(weights, Path(job["start"]), out)
        file = StudentFile(Path(job["start"]), self._start, weights, self._config)
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
        model = load_model(start)
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
            begin, end = self._begins[number : number + 2]
            states[i, : end - begin] = torch.from_numpy(np.array(self._states[begin:end]))
        final = self._inner(inputs_embeds=states.to(DEVICE), use_cache=False)[0]
        wanted = [
            final[i, own["n_prompt"] - 1 : len(own["ids"]) - 1]
            for i, own in enumerate(self._conversations[number] for number in numbers)
        ]
        return self._model.lm_head(torch.cat(wanted)).float()

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
                if (now := time.monotonic()) - told > TOLD_EVERY_S:
                    told, n = now, len(self.lengths)
                    tell(progress=f"the student's states: answer {number + 1} of {n}")
            file.flush()
            os.fsync(file.fileno())
        self._states = np.memmap(path, np.float32, "r").reshape(-1, size)
        config, first_guess = self._inner.config, self._conversations[0]["n_prompt"] - 1
        with torch.no_grad():
            expected = self._whole(0)[first_guess:-1].float()
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
        ids = torch.tensor([self._conversations[number]["ids"]], device=DEVICE)
        return self._model(ids, use_cache=False).logits[0]


class _Read(Exception):
    """Raised when the input of the first trained layer is known: the rest need not run."""


class StudentFile:
    """A GGUF whose trained tensors are replaced.

    start, weights: these tensors before and after the training, by transformers' names. config: the
    student's configuration.
    """

    def __init__(
        self, path: Path, start: Mapping[str, Any], weights: Mapping[str, Any], config: Any
    ) -> None:
        import gguf

        self._reader = gguf.GGUFReader(path)
        self._architecture = self._reader.fields["general.architecture"].contents()
        tensors = {each.name: each for each in self._reader.tensors}
        name_of = tensor_names(self._architecture, config.num_hidden_layers)
        self._trained: dict[str, tuple[str, Any, Any]] = {}  # by its name in the file
        for given, weight in weights.items():
            tensor = tensors.get(name_of(given))
            if tensor is None:
                raise SystemExit(f"{path} has no tensor for {given}; give the student's checkpoint")
            before, after = (
                as_in_file(given, each[given].numpy(), self._architecture, config)
                for each in (start, weights)
            )
            data = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            if not np.allclose(before, data, atol=1e-6):
                raise SystemExit(
                    f"the file has {given} in another form than the model; give the student's "
                    "checkpoint"
                )
            self._trained[tensor.name] = given, weight.numpy(), after

    def rounded(self, kind: str) -> dict[str, Any]:
        """Return the trained tensors with the precision that a file of this kind has, by
        transformers' names.
        """
        types = {each.name: each.tensor_type.name for each in self._reader.tensors}
        return {
            given: torch.from_numpy(rounded(weight, _type(types[name], kind)))
            for name, (given, weight, _) in self._trained.items()
        }

    def write(self, kind: str, out: Path, name: str) -> None:
        """Write the file.

        kind: "old" for the types of the tensors that are replaced, or the type of all trained
        matrices.
        """
        import gguf

        with replacing(out) as partial:
            writer = gguf.GGUFWriter(partial, self._architecture)
            copy_fields(writer, self._reader, lambda key: key not in _NOT_COPIED)
            writer.add_name(name)
            for tensor in self._reader.tensors:
                data, wanted = tensor.data, tensor.tensor_type
                if tensor.name in self._trained:
                    data, wanted = stored(self._trained[tensor.name][2], _type(wanted.name, kind))
                writer.add_tensor(tensor.name, data, raw_dtype=wanted)
            finish(writer)


def _type(old: str, kind: str) -> str:
    """Return the type in which a trained tensor is written that had the type `old`."""
    return writable(old) if kind == "old" or old in FLOATS else kind


def _rest(logs: Any) -> Any:
    """Return the probability that is left besides the listed tokens; at least a millionth."""
    return (1 - logs.exp().sum(1)).clamp(min=1e-6)
