"""Trains a head for a target, from prompts to a registered GGUF or ONNX head.

Every stage can be killed and goes on where it was: plan, answers, hidden states, training, export.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from .. import kept_files
from ..backends import files
from ..config import EngineConfig
from ..convert import tools
from ..convert.heads.conversion import convert_head
from ..costs.governed import GovernedModel
from ..costs.threads import governor_of
from ..device import LoadMeter
from ..engine import Engine
from ..errors import ConfigError, ConversionError, EdgeSpecError
from ..loading.load import load
from ..loading.models import Reference, model_path, open_model
from ..loading.trained import register
from . import recordings
from .answers import LOOP, N_CTX, N_SLOTS, record
from .card import card
from .earlier import earlier_head
from .features import extract
from .planning import TrainingPlan, make_plan
from .prompts import Messages, fingerprint, read_prompts
from .recordings import Recordings
from .serving import ServedHead, serve
from .shape import Shape, shape_for

logger = logging.getLogger("edgespec.train")

TrainedKind = Literal["eagle3"]
_Files = Sequence[str | os.PathLike[str]]

WORKER = Path(__file__).with_name("worker.py")
GGUF_FILE = Path(__file__).with_name("gguf_file.py")
_TARGET_WEIGHTS = Path(tools.__file__).with_name("heads") / "target_weights.py"
_ADVICE = "run the same command again, which goes on from here"
_MOST_CHECKED = 24  # conversations with which the head is served
_LEAST_FREE = 1 << 20  # bytes: a tool that failed with less than this had no room
_PASSES = 8  # over the answers
_HELD_OUT = 20  # one prompt of so many is held out


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of a training.

    kind: the kind of head. n_tokens: tokens of answers to train with. minutes: the time of the
    training itself; 0 for eight passes over the answers. vocabulary: most tokens that the head may
    draft; the most frequent ones are taken. seed: of all random numbers. depth: steps of the
    training-time test. batch_tokens: most tokens of a batch. rate: the highest learning rate.
    n_steps: optimiser steps in place of passes or minutes, 0 for these. start: the folder `head` of
    an earlier training for the same target, whose head is trained further, with the tokens that it
    drafts.
    """

    kind: TrainedKind = "eagle3"
    n_tokens: int = 100_000
    minutes: float = 0.0
    vocabulary: int = 8192
    seed: int = 0
    depth: int = 3
    batch_tokens: int = 1024
    rate: float = 2e-3
    n_steps: int = 0
    start: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(TrainedKind):
            raise ConfigError(
                f"unknown kind {self.kind!r}; known: {', '.join(get_args(TrainedKind))}"
            )
        for name in ("n_tokens", "vocabulary", "depth", "batch_tokens", "rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be more than 0, got {getattr(self, name)!r:.40}")
        for name in ("minutes", "seed", "n_steps"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be at least 0, got {getattr(self, name)!r:.40}")

    @property
    def passes(self) -> int:
        """The passes over the answers, 0 if the minutes decide."""
        return 0 if self.minutes else _PASSES


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """A head that was trained here.

    path: the head that drafts: a GGUF or a folder of ONNX graphs. checkpoint: the folder with
    model.safetensors in SafeAILab's names, config.json and the card. registered: the copy that
    loads of the target find. simulated: the mean acceptance length computed in training and the
    acceptance at each place of a draft, for the conversations with which `served` was measured.
    n_answers, n_tokens: the answers that were recorded, and their tokens. n_done, n_skipped,
    n_failed: what came of the prompts, which are as many; a prompt is skipped if it is too long,
    and if there were enough answers without it.
    """

    path: Path
    checkpoint: Path
    registered: Path
    plan: TrainingPlan
    n_tokens: int
    n_answers: int
    n_done: int
    n_skipped: int
    n_failed: int
    simulated_length: float
    simulated: tuple[float, ...]
    served: ServedHead
    seconds: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        known = asdict(self) | {"plan": self.plan.to_dict()}
        return known | {name: str(known[name]) for name in ("path", "checkpoint", "registered")}


def train_head(
    target: Reference,
    prompts: _Files,
    out: str | os.PathLike[str],
    *,
    python: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = logger.info,
    without: _Files = (),
    offline: bool = False,
    force: bool = False,
    **options: Any,
) -> TrainedHead:
    """Train a head for a target from its own answers, and register it for later loads.

    target: the model as it will be used, a GGUF or an ONNX folder. prompts: files, as for
    `read_prompts`. out: the folder of the training; if one was begun there with the same target and
    prompts, it goes on, and more tokens may be asked for. without: files of prompts that are not
    trained with, because the head is to be judged with them. python: an interpreter that has the
    tools of `convert`; by default they are installed once, unless `offline`. force: train even if
    the plan says that no head can pay here. options: fields of TrainOptions. progress: called with
    a description of each stage, and every few seconds with how far it is.

    Raises ConfigError, ModelError and its subclasses, ConversionError if a tool fails, and
    EdgeSpecError if a head cannot pay here, or if too few prompts were answered.
    """
    chosen, folder = TrainOptions(**options), Path(out)
    with recordings.alone(folder), _writing(folder):
        work = _Work(target, prompts, without, folder, chosen, progress)
        interpreter = Path(python) if python else tools.interpreter(progress, offline=offline)
        return _trained(work, interpreter, force)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Say what to do if a stage cannot write, for example because the disk is full."""
    try:
        yield
    except OSError as error:
        raise EdgeSpecError(f"{kept_files.unwritten(error, folder)}; then {_ADVICE}") from error
    except ConversionError as error:
        if shutil.disk_usage(folder).free > _LEAST_FREE:
            raise
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        raise EdgeSpecError(f"{kept_files.unwritten(full, folder)}; then {_ADVICE}") from error


def _trained(work: _Work, python: Path, force: bool) -> TrainedHead:
    """Take all stages of a training."""
    progress = work.progress
    plan = work.plan_and_answer(force)
    progress("hidden states")
    meter = LoadMeter()
    with contextlib.closing(open_model(work.path, EngineConfig(n_ctx=N_CTX))) as model:
        governor = governor_of(model, [model], meter)  # fewer threads while other programs run
        governed = GovernedModel(model, governor) if governor else model
        extract(governed, work.shape.layers, work.recordings.done, work.folder, progress)
    work.train(python)
    head = work.export(python)
    result = kept_files.read_json(work.folder / "result.json", dict)
    served = serve(work.path, head, work.asked, progress, loop=LOOP)
    n_done, n_failed = work.recordings.n_prompts("done"), work.recordings.n_prompts("failed")
    simulated, n = result["checked"], len(served.acceptance)
    made = TrainedHead(
        head, work.checkpoint, register(head, work.path), plan, work.recordings.n_tokens,
        len(work.recordings.done), n_done, len(work.prompts) - n_done - n_failed, n_failed,
        simulated["acceptance_length"][n - 1], tuple(simulated["acceptance"][n - 1]), served,
        {step: round(s, 1) for step, s in work.times.items()},
    )  # fmt: skip
    text = card(made, work.shape, work.path, work.options.depth, result)
    kept_files.replace(work.checkpoint / "README.md", [text.encode()])
    return made


def plan_training(
    target: Reference,
    prompts: _Files,
    out: str | os.PathLike[str],
    *,
    progress: Callable[[str], None] = logger.info,
    without: _Files = (),
    **options: Any,
) -> TrainingPlan:
    """Measure this device and return what a training takes and what to expect of it; nothing is
    recorded. Arguments and errors are those of `train_head`.
    """
    chosen = TrainOptions(**options)
    work = _Work(target, prompts, without, Path(out), chosen, progress, begins=False)
    with work.engine() as engine:
        return work.plan(engine)


def check_head(
    target: Reference,
    prompts: _Files,
    head: Reference,
    *,
    n_prompts: int = _MOST_CHECKED,
    max_tokens: int = 128,
    progress: Callable[[str], None] = logger.info,
) -> ServedHead:
    """Answer some prompts with a head that exists and without it, and return how it does."""
    from ..chat.encoder import ConversationEncoder

    path, known = model_path(target), read_prompts([Path(each) for each in prompts])
    with contextlib.closing(open_model(path, EngineConfig(n_ctx=N_CTX))) as model:
        encoder = ConversationEncoder(model.tokenizer)
        texts = [encoder.render(messages) for messages in known]
        encoded = [encoder.encode(text, continues=True) for text in texts]
    fitting = [ids for ids in encoded if len(ids) + max_tokens <= N_CTX]
    if not fitting:
        raise ConfigError(f"no prompt fits the context of {N_CTX} tokens; give shorter ones")
    asked = [(ids, max_tokens) for ids in fitting[:n_prompts]]
    return serve(path, model_path(head), asked, progress, loop=LOOP)


class _Work:
    """A training in its folder."""

    def __init__(
        self, target: Reference, prompts: _Files, without: _Files, folder: Path,
        options: TrainOptions, progress: Callable[[str], None], *, begins: bool = True,
    ) -> None:  # fmt: skip
        self.options, self.folder, self.progress = options, folder, progress
        self.path: Path = model_path(target)
        self.start = earlier_head(Path(options.start)) if options.start else None
        n_drafted = len(self.start.drafted) if self.start else options.vocabulary
        self.shape: Shape = shape_for(self.path, n_drafted)
        if self.start:
            self.start.check(self.shape)
        self.prompts: list[Messages] = read_prompts(map(Path, prompts), map(Path, without))
        self.times: dict[str, float] = {}
        if begins:
            recordings.begin(folder, {
                "target": files.identity(self.path), "prompts": fingerprint(self.prompts),
                "kind": options.kind, "start": self.start and self.start.identity,
            })  # fmt: skip
        self.recordings = Recordings(folder)

    @property
    def checkpoint(self) -> Path:
        """The folder of the exported checkpoint."""
        return self.folder / "head"

    @property
    def held_out(self) -> list[int]:
        """The numbers of the conversations that are only evaluated: all of some prompts."""
        prompts = [each.prompt for each in self.recordings.done]
        chosen = {n for n in prompts if zlib.crc32(b"%d" % n) % _HELD_OUT == 0}
        chosen = chosen or {prompts[0]}
        return [i for i, n in enumerate(prompts) if n in chosen]

    @property
    def checked(self) -> list[int]:
        """The numbers of the conversations with which the head is served: greedy ones."""
        done, held_out = self.recordings.done, self.held_out
        greedy = [i for i in held_out if not done[i].drawn]
        return (greedy or held_out)[:_MOST_CHECKED]

    @property
    def asked(self) -> list[tuple[list[int], int]]:
        """The prompts of these conversations, each with the length of its answer."""
        checked = [self.recordings.done[i] for i in self.checked]
        return [(each.ids[: each.n_prompt], each.n_answer) for each in checked]

    @contextlib.contextmanager
    def engine(self) -> Iterator[Engine]:
        """Load the target with slots, and without drafts: with several answers at once, they are
        evaluated together.
        """
        self.progress("loading the target")
        config = {"method": "none"}
        with load(
            self.path, None, speculative_config=config, n_slots=N_SLOTS, n_ctx=N_CTX
        ) as engine:  # fmt: skip
            yield engine

    def plan(self, engine: Engine) -> TrainingPlan:
        """Measure this device and return the plan."""
        self.progress("measuring what this device needs and takes")
        o = self.options
        return make_plan(
            engine, self.path, self.shape, self.folder, o.n_tokens, self.recordings.n_tokens,
            o.passes, 60 * o.minutes, o.depth, matrix_flops(),
        )  # fmt: skip

    def plan_and_answer(self, force: bool) -> TrainingPlan:
        """Return the plan, which is made unless there is one for as many tokens, and record the
        answers. Raises EdgeSpecError if no head can pay or the disk is too small.
        """
        path = self.folder / "plan.json"
        plan = _kept_plan(path, self.options.n_tokens)
        if plan is None or self.recordings.n_tokens < self.options.n_tokens:
            with self.engine() as engine:
                if plan is None:
                    plan = self.plan(engine)
                    kept_files.replace(path, [json.dumps(asdict(plan)).encode()])
                self.progress(plan.sentence)
                if not plan.fits or not (plan.pays or force):
                    raise EdgeSpecError(plan.sentence)
                self.progress("answers")
                record(engine, self.prompts, self.recordings, self.options.n_tokens, self.progress)
        if len({each.prompt for each in self.recordings.done}) < 2:
            why = next((each.why for each in self.recordings.all if each.why), "no prompts")
            raise EdgeSpecError(
                "fewer than two prompts were answered, and one is held out for evaluation: "
                f"{why}; give more prompts"
            )
        return plan

    def train(self, python: Path) -> None:
        """Train in the tools' environment, or go on with it."""
        job = json.dumps(self._job()).encode()
        path = self.folder / "job.json"
        if not path.exists() or path.read_bytes() != job:
            for name in ("state.pt", "result.json"):
                (self.folder / name).unlink(missing_ok=True)
            kept_files.replace(path, [job])
        if (self.folder / "result.json").exists():
            return
        tools.run_worker(
            python, {"job": str(path)}, self.folder, self.progress, self.times, WORKER,
            advice=_ADVICE,
        )  # fmt: skip

    def _job(self) -> dict[str, Any]:
        o = self.options
        return {
            "target": str(self.path.resolve()), "target_weights": str(_TARGET_WEIGHTS),
            "rope": "pairs" if self.shape.paired else "halves", "sizes": self.shape.sizes(),
            "folder": str(self.folder.resolve()), "drafted": self._drafted(),
            "n_conversations": len(self.recordings.done),  # more of them: it begins anew
            "start": str(self.start.path.resolve()) if self.start else "",
            "held_out": self.held_out, "checked": self.checked, "depth": o.depth,
            "n_steps": o.n_steps, "passes": o.passes, "seconds": 60 * o.minutes,
            "batch_tokens": o.batch_tokens, "rate": o.rate, "seed": o.seed,
        }  # fmt: skip

    def _drafted(self) -> list[int]:
        """Return the tokens that the head can draft: those of an earlier head, or the most frequent
        ones of the answers that are trained with, then those with the lowest ids, which
        vocabularies made first.
        """
        if self.start:
            return self.start.drafted
        held_out, done = set(self.held_out), self.recordings.done
        answers = [each.ids[each.n_prompt :] for i, each in enumerate(done) if i not in held_out]
        n = self.shape.target.vocab_size
        counts = np.bincount(np.concatenate(answers), minlength=n)
        order = np.argsort(-counts, kind="stable")
        return sorted(order[: self.shape.n_drafted].tolist())

    def export(self, python: Path) -> Path:
        """Write the checkpoint, and the head in the target's format; return the latter."""
        self.checkpoint.mkdir(exist_ok=True)
        shutil.copyfile(self.folder / "model.safetensors", self.checkpoint / "model.safetensors")
        config = json.dumps(self.shape.config(), indent=1)
        (self.checkpoint / "config.json").write_text(config, "utf-8")
        if files.has_folder(self.path):
            folder = self.folder / "onnx"
            shutil.rmtree(folder, ignore_errors=True)
            return convert_head(
                self.checkpoint, self.path, folder, python=python, progress=self.progress
            ).path  # fmt: skip
        path = self.folder / f"eagle3-{self.path.stem}.gguf"
        job = {
            "checkpoint": str(self.checkpoint / "model.safetensors"), "target": str(self.path),
            "sizes": self.shape.sizes(), "rope_base": self.shape.rope_base,
            "layers": self.shape.layers, "n_ctx": self.shape.n_ctx_train, "type": "Q8_0",
            "name": f"EAGLE-3 head for {self.path.stem}", "license": self.shape.license,
            "out": str(path),
        }  # fmt: skip
        tools.run_worker(
            python, job, self.folder, self.progress, self.times, GGUF_FILE, advice=_ADVICE
        )
        return path


def _kept_plan(path: Path, n_tokens: int) -> TrainingPlan | None:
    """Return the plan that was made in an earlier run for as many tokens, None if there is none."""
    if not path.exists():
        return None
    plan = TrainingPlan(**kept_files.read_json(path, dict))
    return plan if plan.n_tokens == n_tokens else None


def matrix_flops() -> float:
    """Measure how many operations a second this device does in products of float32 matrices."""
    a, b = np.ones((512, 576), np.float32), np.ones((576, 4096), np.float32)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - began)
    return float(2 * a.size * b.shape[1] / min(times))
