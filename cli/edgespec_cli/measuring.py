"""Shared parts of the benchmark commands: questions, progress, stopping early, and reports."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import errors
from .arguments import is_typed
from .options import FILE, option
from .render import Status, confirm, is_terminal, say_lines

if TYPE_CHECKING:
    import edgespec
    from edgespec.bench.answers import Answer
    from edgespec.bench.workloads import Question

T = TypeVar("T")

question_options = (
    option(
        "--questions", type=FILE, metavar="FILE",
        help="A file of further questions, in the format of Spec-Bench's question.jsonl: each line "
        "is a JSON object with question_id, category and turns (a list of texts).",
    ),
    option(
        "--per-category", type=click.IntRange(1), metavar="N", show_default="all",
        help="Largest number of questions from each category.",
    ),
    option(
        "--category", multiple=True,
        help="Ask only questions of this category; can be given several times.",
    ),
    option(
        "--edge/--no-edge", default=True,
        help="Ask the questions that come with edgespec (file_editing, documents, chat, prose, "
        "arithmetic), or leave them out.",
    ),
)  # fmt: skip

output_options = (
    option(
        "-o", "--output", type=click.Choice(["md", "json", "jsonl", "csv"]), default="md",
        help="Format of the report on stdout.",
    ),
    option("--json", "as_json", is_flag=True, help="Print a JSON object, as -o json does."),
)  # fmt: skip


def output_form(ctx: click.Context) -> str:
    """Return the format of the report. Raises UsageError for --json with a different -o."""
    if not ctx.params["as_json"]:
        return str(ctx.params["output"])
    if is_typed(ctx, "output") and ctx.params["output"] != "json":
        raise click.UsageError(
            f"--json and -o {ctx.params['output']} exclude each other; leave one out"
        )
    return "json"


def n_predict_option(default: int) -> Callable[[T], T]:
    """Return the option for the length of the answers."""
    return option(
        "-n", "--n-predict", default=default, help="Largest number of tokens in an answer."
    )


def chosen_questions(params: dict[str, Any]) -> list[Question]:
    """Return the questions that the options ask for. Raises UsageError if there are none."""
    from edgespec.bench import workloads
    from edgespec.config import did_you_mean

    questions = workloads.spec_bench(params["questions"]) if params["questions"] else []
    if params["edge"]:
        questions = [*questions, *workloads.edge()]
    if not questions:
        raise click.UsageError(
            f"{params['questions'] or '--no-edge'} leaves no questions; give a file of them with "
            "--questions"
        )
    known = sorted({question.category for question in questions})
    for category in params["category"]:
        if category not in known:
            raise click.UsageError(
                f"there are no questions of category {category!r}; {did_you_mean(category, known)}"
            )
    if params["category"]:
        questions = [question for question in questions if question.category in params["category"]]
    return workloads.sample(questions, params["per_category"])


class Progress:
    """Shows in a status line how many items are done and how long the rest will take.

    what: the noun for the items, such as "questions". so_far: a text such as "3 of 10 questions".
    stopped: if the run ended early, the reason and `so_far`; otherwise "".
    """

    def __init__(
        self, line: Status, what: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._line, self._what, self._clock = line, what, clock
        self._began: float | None = None
        self.so_far, self.stopped = f"no {what}", ""

    def __call__(
        self, done: float, total: int, question: Question | None = None, share: float | None = None
    ) -> None:
        """Show that `done` of `total` items are done.

        done: may be a fraction, such as 0.5 for half of the first item. question: the question that
        is being answered. share: the share of all the work that is done; `done` / `total` by
        default.
        """
        self._began = self._clock() if self._began is None else self._began
        self.so_far = f"{int(done)} of {total} {self._what}"
        share = done / max(1, total) if share is None else share
        left = "reading the first prompt"
        if share > 0:
            seconds = (self._clock() - self._began) / share * (1 - share)
            left = f"{'about' if done >= 1 else 'at most'} {_duration(seconds)} left"
        category = f": {question.category}" if question else ""
        self._line.show(f"{self.so_far}, {left}{category}")


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def need_matplotlib() -> None:
    """Offer to install matplotlib if it is missing and the user can be asked. Raises UsageError if
    it is still missing then.
    """
    if _is_installed("matplotlib"):
        return
    from edgespec.advice import install

    question = "--plot needs matplotlib, which is not installed; install it now?"
    if is_terminal(sys.stdin) and is_terminal(sys.stderr) and confirm(question):
        command = [sys.executable, "-m", "pip", "install", "matplotlib"]
        subprocess.run(command, check=False, stdout=sys.stderr)
        importlib.invalidate_caches()
    if not _is_installed("matplotlib"):
        raise click.UsageError(
            f"--plot needs matplotlib, which is not installed; install it with {install('bench')}"
        )


def tell_missing() -> None:
    """Say that the report will have no intervals, if scipy is not installed."""
    from edgespec.advice import install

    if not _is_installed("scipy"):
        errors.note(f"speedups are shown without intervals: install scipy with {install('bench')}")


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def until_stopped(running: Iterable[T], line: Status, progress: Progress) -> tuple[list[T], int]:
    """Collect the results of a run, such as answers; return them and the exit code.

    Ctrl-C, an error, or SIGTERM (after the running answer) ends the run early. The results so far
    are then returned, and `progress.stopped` says why it ended and how many questions are done.
    If there is no answer yet, the error is raised instead. Raises UsageError if no question fits
    the context.
    """
    answers: list[T] = []
    code, stopped = 0, False

    def stop(*_: Any) -> None:
        nonlocal stopped
        stopped = True

    before = signal.signal(signal.SIGTERM, stop)
    try:
        for answer in running:
            answers.append(answer)
            if stopped:
                raise KeyboardInterrupt
    except (KeyboardInterrupt, Exception) as error:
        if not answers:
            raise
        line.hide()
        if isinstance(error, KeyboardInterrupt):
            code, how = errors.INTERRUPTED, "interrupted"
        else:
            code, how = errors.report(error, debug=errors.wants_debug()), "ended by an error"
        progress.stopped = f"{how}, {progress.so_far}"
        errors.note(progress.stopped)
    finally:
        line.hide()
        signal.signal(signal.SIGTERM, before)
    if not answers:
        raise click.UsageError("no question fits the context; make it longer with -c")
    return answers, code


@contextmanager
def whole_report(form: str) -> Iterator[None]:
    """Write a report without rows if Ctrl-C comes before the first answer and the format is for
    programs, so that a file with the output is never empty. KeyboardInterrupt is raised all the
    same.
    """
    from edgespec.bench import reports

    try:
        yield
    except KeyboardInterrupt:
        if form != "md":
            stopped = "interrupted before the first answer"
            say_lines(reports.report({"stopped": stopped}, [], form))
        raise


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C while a report is computed and written, so that the report is complete."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def beside_others() -> Iterator[Callable[[], dict[str, float | None]]]:
    """Warn before a measurement if other programs use the CPUs. Yield a function that returns how
    many cores they have used since then, as a field of a report: None if the system does not tell.
    """
    from edgespec.device import LoadMeter

    tell_load()
    meter = LoadMeter()

    def used() -> dict[str, float | None]:
        load = meter.look()
        return {"other_programs_cores": round(load.others, 2) if load else None}

    yield used


def tell_load() -> None:
    """Warn if other programs use the CPUs."""
    from edgespec.device import BUSY, other_load

    if (busy := other_load() or 0.0) > BUSY:
        errors.note(f"other programs use {busy:.1f} cores: what is measured now says little")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that the user named, completely or not at all, with the permissions that the
    umask gives to new files. Raises ClickException.
    """
    from edgespec import kept_files

    target = path.resolve()  # so that a link stays a link
    umask = os.umask(0o077)
    os.umask(umask)
    try:
        kept_files.replace(target, [data])
        target.chmod(0o666 & ~umask)
    except OSError as error:
        why = kept_files.obstacle(error, "name a file")
        raise click.ClickException(f"{path} cannot be written: {why}") from None


def check_writable(path: Path) -> None:
    """Raise UsageError if no file can be written at this path. Called before the measurement."""
    if path.exists() and not path.is_file():
        raise click.UsageError(f"{path} is not a file; name one to write to")
    if not os.access(path.absolute().parent, os.W_OK):
        why = "you may not write there" if path.absolute().parent.is_dir() else "it is not there"
        raise click.UsageError(f"{path} cannot be written to its folder: {why}")


def header(engine: edgespec.Engine) -> dict[str, Any]:
    """Return the header of a report: facts about the engine, the machine, the command and the
    date.
    """
    from edgespec.bench.model_file import file_of

    about = engine.describe()
    draft, model = about.get("draft") or {}, about.get("model") or {}
    remote = about.get("verifier")
    return {
        "date": time.strftime("%Y-%m-%d %H:%M %z"),
        "model": f"{remote['model']} at {remote['url']}" if remote else model["file"],
        **file_of(engine),
        "draft": draft.get("file", "none"),
        "speculation": about["speculation"],
        "threads": model.get("n_threads"),
        "processor": about["processor"],
        "versions": _versions(model, draft),
        "command": " ".join(["edgespec", *map(_without_folder, sys.argv[1:])]),
    }


def results(
    engine: edgespec.Engine, answers: Sequence[Answer], progress: Progress, line: Status
) -> dict[str, Any]:
    """Return the fields of a report about all answers: their number, how many greedy texts are the
    same with and without drafts, and why others differ.

    Only the engine can tell why texts differ; after a run that was stopped, it is not asked.
    """
    from edgespec.bench import parting

    pairs = list(parting.greedy_pairs(answers))
    of, equal = len(pairs), sum(plain.text == drafted.text for plain, drafted in pairs)
    texts = {"equal_texts": f"{equal} of {of} greedy answers, with and without drafts"}
    if equal < of and not progress.stopped:
        line.show("looking where texts with and without drafts part")
        try:
            texts["unequal_texts"] = parting.in_words(parting.partings(engine, answers))
        except KeyboardInterrupt:  # the measurements are reported all the same
            texts["unequal_texts"] = "interrupted before it was known why"
        line.hide()
    stopped = {"stopped": progress.stopped} if progress.stopped else {}
    return {"questions": progress.so_far, "answers": len(answers)} | stopped | (texts if of else {})


def _without_folder(argument: str) -> str:
    """Return an argument without its folder if it is a path, else unchanged."""
    return Path(argument).name if os.path.dirname(argument) else argument


def _versions(*models: dict[str, Any]) -> str:
    """Return the versions of edgespec, of the engines that run the models, and of Python."""
    import edgespec

    versions = {"edgespec": edgespec.__version__}
    for model in models:
        versions |= model.get("versions", {})
    versions["python"] = sys.version.split()[0]
    return ", ".join(f"{name} {version}" for name, version in versions.items())
