"""ONNX draft models whose output layer is cut to frequent tokens (VocabTrim, arXiv 2506.22694)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import kept_files
from ...backends import files
from ...backends.files import DRAFTED_IDS
from ...convert.heads.fitting import target_sizes
from ...convert.upgrade import MOST_APART, apart, rows_of
from ...engine import Engine
from ...errors import ConfigError, ConversionError
from ...loading.models import served_name
from ..draft_models import draft_model, plan_of_draft
from ..opening import opened
from ..planning import Needs, TrainingPlan
from ..shape import known_of, weights_of_layer
from ..work import Work
from . import register
from .base import Kind, MadeDraft

_COMPANIONS = ("*.json", "*.jinja", "*.model", "*.txt", "*.md")


@register("trim", "an ONNX draft model that knows fewer tokens")
class Trim(Kind):
    """Cuts the output layer of a draft model to the tokens that are frequent in the answers.

    Nothing is trained. The options name the draft model, the folder of an ONNX graph; by default it
    is the one on this disk with which a load of the target would draft.
    """

    name = "trim"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.start: Path = draft_model(work, ".onnx", (
            "llama.cpp refuses models whose output layer has fewer tokens than their vocabulary, "
            "so only ONNX models are trimmed; convert it first with edgespec convert"
        ))  # fmt: skip
        self._sizes = target_sizes(self.start)

    def begun_with(self) -> dict[str, Any]:
        """Return the identity of the draft model."""
        return {"start": files.identity(self.start)}

    def plan(self, engine: Engine) -> TrainingPlan:
        """Measure this device and return the plan. A trimmed draft model is expected to be faster
        in proportion to the weights that a token reads.
        """
        sizes, known = self._sizes, known_of(self.start)
        layers = sizes.n_layer * weights_of_layer(known, sizes.hidden_size)
        read = [layers + n * sizes.hidden_size for n in (self._n_drafted, sizes.vocab_size)]
        size = files.size_of(self.start)
        return plan_of_draft(
            engine, self.work, self.start, Needs(size, 2 * size), share=read[0] / read[1]
        )  # fmt: skip

    def make(self, python: Path) -> MadeDraft:
        """Write the folder of the trimmed graph."""
        work, folder = self.work, self.folder / f"trimmed-{self._name}"
        ids = self._ids()
        partial = folder.with_name(f"{folder.name}.partial")
        for each in (partial, folder):
            shutil.rmtree(each, ignore_errors=True)
        self._copy_companions(partial)
        np.save(partial / DRAFTED_IDS, ids)
        job = {
            "graph": str(self.start), "out": str(partial / self.start.name),
            "ids": str(partial / DRAFTED_IDS),
        }  # fmt: skip
        self.run(python, job, "trim_file")
        work.progress("checking that the kept logits are as before")
        self._check(partial / self.start.name, ids)
        partial.replace(folder)
        checkpoint = self.folder / "draft"
        checkpoint.mkdir(exist_ok=True)
        return MadeDraft(
            folder, checkpoint, "Draft model with fewer tokens",
            known_of(self.start)["license"], self._facts(ids), before=self.start,
        )  # fmt: skip

    @property
    def _name(self) -> str:
        return served_name(str(self.start))

    @property
    def _n_drafted(self) -> int:
        return min(self.work.options.vocabulary, self._sizes.vocab_size)

    def _ids(self) -> npt.NDArray[np.int64]:
        """Return the tokens to keep: those that end an answer, and the most frequent ones."""
        n = self._sizes.vocab_size
        with opened(self.start) as model:
            if model.vocab_size != n or files.find(self.start.parent, DRAFTED_IDS):
                raise ConfigError(f"{self.start} is trimmed already; name the whole model")
            ends = [token for token in range(n) if model.tokenizer.is_eog(token)]
        return np.array(self.work.frequent(self._n_drafted, n, ends), np.int64)

    def _copy_companions(self, folder: Path) -> None:
        """Copy the configurations and the tokenizer, and the embedding if it is another graph."""
        folder.mkdir()
        copied = [
            path for path in files.parts(self.start) if not path.name.startswith(self.start.name)
        ]
        for each in files.folders_of(self.start):  # the graph's own folder first
            copied += kept_files.matching(each, *_COMPANIONS)
        for path in reversed(copied):  # so that its own files replace those above
            shutil.copyfile(path, folder / path.name)

    def _check(self, path: Path, ids: npt.NDArray[np.int64]) -> None:
        """Raise ConversionError unless a graph gives the same logits for the tokens that it has."""
        rows = []
        for each in (self.start, path):
            with opened(each, provider="cpu") as model:
                rows.append(rows_of(model)[:, ids])
        if not (difference := apart(*rows)) <= MOST_APART:
            raise ConversionError(
                f"{self.start}: without the other tokens its logits differ by {difference:.2g} "
                "standard deviations; it cannot be trimmed"
            )

    def _facts(self, ids: npt.NDArray[np.int64]) -> dict[str, str]:
        """Return what is special about the draft model, for its card."""
        done = self.work.recordings.done
        held_out = [done[i].ids[done[i].n_prompt :] for i in self.work.held_out]
        covered = np.isin(np.concatenate(held_out), ids).mean()
        return {
            "made from": self._name,
            "drafts": f"{len(ids)} of {self._sizes.vocab_size} tokens, which are {covered:.1%} of "
            "those in the answers that were held out",
        }
