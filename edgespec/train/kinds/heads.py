"""The part that all kinds of heads share: features of the target, training, and export."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ... import backends
from ...backends import files
from ...backends.heads import KINDS
from ...convert.heads.checkpoint import HeadCheckpoint
from ...convert.heads.config import read_config
from ...convert.heads.conversion import HeadPrecision, convert_head
from ...convert.heads.reading import read_head
from ...costs.governed import GovernedModel
from ...costs.threads import governor_of
from ...device import LoadMeter
from ...engine import Engine
from ...errors import ConfigError, ModelError
from .. import planning
from ..draft_models import rival
from ..features import bytes_a_token, extract
from ..formats import WEIGHTS
from ..opening import N_CTX, opened
from ..planning import TrainingPlan, make_plan
from ..shape import shape_for
from ..sizes import SHAPES
from ..work import Work
from .base import Kind, MadeDraft

_OF_NO_WEIGHT = ("license", "max_position_embeddings", "draft_vocab_size")
_AS_GOOD = 0.98  # of the accepted tokens of a draft in float32
_IN_ONNX: dict[str, HeadPrecision] = {"F32": "fp32", "Q8_0": "int8", "Q4_0": "int4"}


class HeadKind(Kind):
    """Makes heads that read hidden states of the target.

    A head is trained further from the folder `head` of an earlier training, if the options name
    one. name: that of the file in edgespec/train with the head in torch, too. title: the name of
    the kind in cards. shape: the shape of the head.
    """

    rate = 2e-3
    title: ClassVar[str]

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        start = work.options.start
        self.start = _earlier_head(Path(start)) if start else None
        if self.is_graph:
            backends.get("onnx")  # raises now what the export would raise after the training
        n_drafted = self.start.head_vocab_size if self.start else work.options.vocabulary
        self.shape = shape_for(work.path, n_drafted, work.options.depth)
        if self.start:
            _check_same(self.start, self.config())

    @property
    def is_graph(self) -> bool:
        """True if the head is written as ONNX graphs."""
        return True

    def begun_with(self) -> dict[str, Any]:
        """Return the identity of the earlier head, None if there is none."""
        return {"start": list(files.identity(self.start.path)) if self.start else None}

    def plan(self, engine: Engine) -> TrainingPlan:
        """Measure this device and return the plan."""
        o, path, target = self.work.options, self.work.path, self.shape.target
        n_states = self.work.longer(engine.tokenizer) * o.n_tokens
        n_output = target.vocab_size * target.hidden_size
        needs = planning.Needs(
            int(n_states * bytes_a_token(target.hidden_size)),
            planning.TRAINED_BYTES * self.n_weights + 12 * n_output,
            "hidden states", planning.PASS_FLOPS * o.depth * self.n_weights, once=2 * n_output,
        )  # fmt: skip
        return make_plan(
            engine, self.work, needs, lambda curve: planning.head_curve(curve, path, self.n_read),
            lambda: planning.expected_length(o.n_tokens), self.shape.layers,
            lambda curve: rival(self.work, curve),
        )  # fmt: skip

    def make(self, python: Path) -> MadeDraft:
        """Extract the features, train, and write the head."""
        self._extract()
        result = self.train(python, self._job())
        self._write_checkpoint()
        path = self.export(python, precision_of(result["precisions"]))
        return MadeDraft(
            path, self.checkpoint, self.title, self.shape.license, self._facts(result),
            result["checked"]["counts"],
        )  # fmt: skip

    @property
    def reads(self) -> str:
        """The states of the target that the head reads, in words."""
        return "the final hidden state"

    @property
    def n_weights(self) -> int:
        """The number of weights that are trained."""
        return sum(map(math.prod, SHAPES[self.name](self.shape.sizes).values()))

    @property
    def n_read(self) -> float:
        """The number of weights that are read for one guess."""
        return self.n_weights

    def config(self) -> dict[str, Any]:
        """Return the config.json of a checkpoint."""
        target, sizes = self.shape.target, self.shape.sizes
        return {
            "hidden_size": sizes.hidden_size, "vocab_size": target.vocab_size,
            "draft_vocab_size": sizes.n_drafted, "torch_dtype": "float32",
            "license": self.shape.license,
        }  # fmt: skip

    @property
    def checkpoint(self) -> Path:
        """The folder of the exported checkpoint."""
        return self.folder / "head"

    def _extract(self) -> None:
        """Write the target's hidden states for the recorded answers."""
        work = self.work
        work.progress("hidden states")
        meter = LoadMeter()
        with opened(work.path, N_CTX) as model:
            governor = governor_of(model, [model], meter)  # fewer threads while others run
            governed = GovernedModel(model, governor) if governor else model
            extract(
                governed, self.shape.layers, work.recordings.done, work.folder, work.pauses,
                exact=work.checked,
            )  # fmt: skip

    def _job(self) -> dict[str, Any]:
        """Return what head_task.py reads of a job. The tokens to draft are the most frequent ones,
        then those of an earlier head.
        """
        d2t = self.start.d2t if self.start else None
        known = [] if d2t is None else d2t.tolist()
        drafted = self.work.frequent(
            self.shape.sizes.n_drafted, self.shape.target.vocab_size, rather=known
        )
        return {
            "task": "head_task", "network": self.name,
            "target": str(self.work.path.resolve()), "paired": self.shape.paired,
            "sizes": self.shape.sizes._asdict(), "drafted": drafted,
            "start": str(self.start.path.resolve()) if self.start else "", "known": known,
        }  # fmt: skip

    def _write_checkpoint(self) -> None:
        """Write the folder that other engines load."""
        self.checkpoint.mkdir(exist_ok=True)
        shutil.copyfile(self.folder / WEIGHTS, self.checkpoint / WEIGHTS)
        config = json.dumps(self.config(), indent=1)
        (self.checkpoint / "config.json").write_text(config, "utf-8")

    def export(self, python: Path, precision: str) -> Path:
        """Write the checkpoint's head in a format that drafts, ONNX graphs; return its path.

        precision: that of its matrices, by a GGUF's name.
        """
        folder = self.folder / "onnx"
        shutil.rmtree(folder, ignore_errors=True)
        return convert_head(
            self.checkpoint, self.work.path, folder, precision=_IN_ONNX[precision], python=python,
            progress=self.work.progress,
        ).path  # fmt: skip

    def _facts(self, result: Mapping[str, Any]) -> dict[str, str]:
        """Return what is special about the head, for its card."""
        shape, precisions = self.shape, result["precisions"]
        lengths = ", ".join(f"{length:.3f} in {name}" for name, length in precisions.items())
        return {
            "precision": f"{precision_of(precisions)}; acceptance length {lengths}, simulated over "
            "at most 100 conversations that were held out",
            "reads": self.reads,
            "drafts": f"{shape.sizes.n_drafted} of {shape.target.vocab_size} tokens",
            "weights": f"{self.n_weights / 1e6:.1f} million",
            "training": f"{result['n_steps']} steps for drafts of {self.work.options.depth} "
            f"tokens, best at step {result['best_step']}",
        }


def precision_of(lengths: Mapping[str, float]) -> str:
    """Return the smallest precision in which a head guesses about as well as in float32.

    lengths: the acceptance length in each precision, the largest precision first.
    """
    exact = lengths["F32"] - 1
    return [name for name, length in lengths.items() if length - 1 >= _AS_GOOD * exact][-1]


def _earlier_head(folder: Path) -> HeadCheckpoint:
    """Return the head in the folder `head` of an earlier training. Raises ConfigError if there is
    none, or one that does not say which tokens it drafts.
    """
    try:
        head = read_head(folder)
    except ModelError as error:
        raise ConfigError(
            f"{folder} has no head to train further: {error}; give the folder `head` of an earlier "
            "training"
        ) from None
    if head.d2t is None:
        raise ConfigError(f"{head.path} has no d2t, which says which tokens the head drafts")
    return head


def _check_same(head: HeadCheckpoint, config: Mapping[str, Any]) -> None:
    """Raise ConfigError unless a head has this config."""
    known = read_config(head.path.parent)
    for name, wanted in config.items():
        stated = getattr(known, name, wanted)
        if name == "architectures" and stated != wanted:
            raise ConfigError(
                f"{head.path.parent} holds a head of another kind ({KINDS[head.kind].title}); name "
                "its kind (--kind), or another head"
            )
        if name not in _OF_NO_WEIGHT and stated != wanted:
            raise ConfigError(
                f"the head in {head.path.parent} is for another target: its {name} is "
                f"{stated!s:.40}, and this target needs {wanted}"
            )
