"""Trains a draft for a target, from prompts to a registered file.

Every stage can be killed and goes on where it was: plan, answers, and those of the kind of draft.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import kept_files
from ..convert import tools
from ..errors import ConfigError, ConversionError, EdgeSpecError
from ..loading.models import Reference, model_path, target_path
from ..loading.trained import faster, register
from . import kinds, recordings
from .answers import prompt_ids
from .card import PICTURE, card, draw
from .comparisons import Agreement, PairedDraft, agreement, paired
from .formats import RESULT, WEIGHTS, acceptance
from .gently import Pauses
from .kinds.base import Kind
from .opening import N_CTX, opened
from .planning import TrainingPlan
from .prompts import Files, read_prompts
from .serving import DEPTH, ServedHead, serve
from .work import ADVICE, MOST_CHECKED, TrainOptions, Work

logger = logging.getLogger("edgespec.train")

_LEAST_FREE = 1 << 20  # bytes: a tool that failed with less than this had no room


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """A head or a draft model that was trained here.

    path: what drafts: a GGUF or a folder of ONNX graphs. checkpoint: the folder with the card; a
    head's has model.safetensors in SafeAILab's names and config.json, too. registered: the copy
    that loads of the target find, None if another draft is faster: then not_registered says which.
    simulated: the mean acceptance length computed in training and the acceptance at each place of a
    draft, for the conversations with which `served` was measured; 0 and () if none was computed.
    agreement: how both compare. paired: what a changed draft model gains over the one before.
    n_answers, n_tokens: the answers that were recorded, and their tokens. n_done, n_skipped,
    n_failed: what came of the prompts, which are as many; a prompt is skipped if it is too long,
    and if there were enough answers without it.
    """

    path: Path
    checkpoint: Path
    registered: Path | None
    plan: TrainingPlan
    n_tokens: int
    n_answers: int
    n_done: int
    n_skipped: int
    n_failed: int
    simulated_length: float
    simulated: tuple[float, ...]
    served: ServedHead
    paired: PairedDraft | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    not_registered: str = ""
    agreement: Agreement | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        known = asdict(self) | {"plan": self.plan.to_dict(), "served": self.served.to_dict()}
        registered = str(self.registered) if self.registered else None
        paths = {name: str(known[name]) for name in ("path", "checkpoint")}
        return known | paths | {"registered": registered}


def train_head(
    target: Reference,
    prompts: Files,
    out: str | os.PathLike[str],
    *,
    python: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = logger.info,
    without: Files = (),
    offline: bool = False,
    force: bool = False,
    gently: bool = False,
    from_corpus: bool = False,
    **options: Any,
) -> TrainedHead:
    """Train a head for a target from its own answers, and register it for later loads.

    target: the model as it will be used, a GGUF or an ONNX folder. prompts: files, as for
    `read_prompts`. out: the folder of the training; if one was begun there with the same target and
    prompts, it goes on, and more tokens may be asked for. without: files of prompts that are not
    trained with, because the head is to be judged with them. python: an interpreter that has the
    tools of `convert`; by default they are installed once, unless `offline`. force: train even if
    the plan says that no head can pay here. gently: pause while the machine runs on battery and
    while other programs use the cores. from_corpus: the user's own texts are prompts too, as for
    `own_prompts`; what is made of them is private: only this user can read the files of the draft,
    and `edgespec serve` uses it only by name. options: fields of TrainOptions. progress: called
    with a description of each stage, and every few seconds with how far it is.

    Raises ConfigError, ModelError and its subclasses, ConversionError if a tool fails, and
    EdgeSpecError if a head cannot pay here, or if too few prompts were answered.
    """
    folder = Path(out)
    with recordings.alone(folder), _writing(folder):
        work = Work(
            target, prompts, without, folder, TrainOptions(**options), progress,
            from_corpus=from_corpus, gently=gently,
        )  # fmt: skip
        kind = kinds.make(work)
        recordings.begin(folder, work.begun_with())
        recordings.begin(kind.folder, kind.begun_with())
        work.keep_own_prompts()
        interpreter = Path(python) if python else tools.interpreter(progress, offline=offline)
        return _trained(work, kind, interpreter, force)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Say what to do if a stage cannot write, for example because the disk is full, and after
    Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(ADVICE) from None
    except OSError as error:
        raise EdgeSpecError(f"{kept_files.unwritten(error, folder)}; then {ADVICE}") from error
    except ConversionError as error:
        if shutil.disk_usage(folder).free > _LEAST_FREE:
            raise
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        raise EdgeSpecError(f"{kept_files.unwritten(full, folder)}; then {ADVICE}") from error


def _trained(work: Work, kind: Kind, python: Path, force: bool) -> TrainedHead:
    """Take all stages of a training."""
    kind.prepare(python)
    plan = _plan_and_answer(work, kind, force)
    made = kind.make(python)
    if work.is_private:
        kept_files.protect(kind.folder)
    served = serve(work.path, made.path, work.asked, work.pauses, is_new=True)
    compared = None
    if made.before:
        work.progress("the draft model before")
        before = serve(work.path, made.before, work.asked, work.pauses)
        compared = paired(work.path, made.before, made.path, before, served)
    why_not = _why_not_registered(work, served, compared)
    n_done, n_failed = work.recordings.n_prompts("done"), work.recordings.n_prompts("failed")
    counts = made.simulated[DEPTH - 1] if made.simulated else ()
    simulated = acceptance(counts) if counts else (0.0, ())
    trained = TrainedHead(
        made.path, made.checkpoint,
        None if why_not else register(made.path, work.path, served.gain, private=work.is_private),
        plan, work.recordings.n_tokens, work.recordings.n_answers, n_done,
        len(work.prompts) - n_done - n_failed, n_failed, *simulated, served, compared,
        {step: round(s, 1) for step, s in work.times.items()}, why_not,
        agreement(counts, served) if counts else None,
    )  # fmt: skip
    picture = PICTURE if draw(kind.folder / RESULT, made.checkpoint / PICTURE) else ""
    text = card(trained, made, work.path, private=work.is_private, picture=picture)
    kept_files.replace(made.checkpoint / "README.md", [text.encode()])
    return trained


def _why_not_registered(work: Work, served: ServedHead, compared: PairedDraft | None) -> str:
    """Return why loads of the target go on with another draft, "" if they are to use this one."""
    if compared and compared.speed <= 1:
        return "the draft model that it was made from is as fast"
    return faster(served.gain_high, work.path, private=work.is_private)


def _plan_and_answer(work: Work, kind: Kind, force: bool) -> TrainingPlan:
    """Return the plan, and record the answers. The plan is made unless there is one for as many
    tokens; one that is not reliable counts once all answers are there. Raises EdgeSpecError if no
    draft can pay or the disk is too small.
    """
    path, n_tokens = kind.folder / recordings.PLAN, work.options.n_tokens
    plan, missing = _kept_plan(path, n_tokens), work.recordings.n_tokens < n_tokens
    if plan and plan.warning and missing:
        plan = None
    if plan is None or missing:
        with work.engine() as engine:
            if plan is None:
                plan = kind.plan(engine)
                kept_files.replace(path, [json.dumps(asdict(plan)).encode()])
            said = f"{plan.sentence} {plan.warning}".rstrip()
            if not plan.fits:
                raise EdgeSpecError(said)
            if not (plan.pays or force):
                raise EdgeSpecError(f"{said} To train all the same: --force (force=True)")
            work.progress(said)
            work.answer(engine)
    work.check_answers()
    work.answer_alone()
    return plan


def plan_training(
    target: Reference,
    prompts: Files,
    out: str | os.PathLike[str],
    *,
    progress: Callable[[str], None] = logger.info,
    without: Files = (),
    from_corpus: bool = False,
    **options: Any,
) -> TrainingPlan:
    """Measure this device and return what a training takes and what to expect of it; nothing is
    recorded. Arguments and errors are those of `train_head`.
    """
    chosen = TrainOptions(**options)
    work = Work(target, prompts, without, Path(out), chosen, progress, from_corpus=from_corpus)
    kind = kinds.make(work)
    with work.engine() as engine:
        return kind.plan(engine)


def check_head(
    target: Reference,
    prompts: Files,
    head: Reference,
    *,
    n_prompts: int = MOST_CHECKED,
    max_tokens: int = 128,
    progress: Callable[[str], None] = logger.info,
) -> ServedHead:
    """Answer prompts with a head that exists and without it, and return how it does.

    target: the model that is to use it. prompts: files, as for `read_prompts`. n_prompts: the most
    prompts that are asked; they are spread over all that fit a context of N_CTX tokens. max_tokens:
    the most tokens of an answer. Errors are those of `train_head`.
    """
    _refuse_checkpoint(Path(head))
    path, known = target_path(target), read_prompts(prompts)
    with opened(path, N_CTX) as model:
        encoded = [prompt_ids(model.tokenizer, messages) for messages in known]
    fitting = [ids for ids in encoded if len(ids) + max_tokens <= N_CTX]
    if not fitting:
        raise ConfigError(f"no prompt fits the context of {N_CTX} tokens; give shorter ones")
    n = min(n_prompts, len(fitting))
    asked = [(fitting[i * len(fitting) // n], max_tokens) for i in range(n)]
    return serve(path, model_path(head), asked, Pauses(progress, gently=False))


def _refuse_checkpoint(folder: Path) -> None:
    """Raise ConfigError for the checkpoint of a training, with the draft made of it next to it."""
    made = [*folder.parent.glob("*.gguf"), *folder.parent.glob("onnx")]
    if made and (folder / WEIGHTS).is_file():
        raise ConfigError(
            f"{folder} is a checkpoint: name the draft that was made of it, {made[0]}"
        )


def _kept_plan(path: Path, n_tokens: int) -> TrainingPlan | None:
    """Return the plan that was made in an earlier run for as many tokens, None if there is none."""
    if not path.exists():
        return None
    try:
        plan = TrainingPlan(**kept_files.read_json(path, dict))
    except (ValueError, TypeError):  # damaged, or of another version
        return None
    if plan.n_tokens != n_tokens:
        return None
    return replace(plan, free_disk=kept_files.free_disk(path.parent))
