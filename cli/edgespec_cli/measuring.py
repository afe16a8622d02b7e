"""Questions, progress and stopping: the parts that the benchmark commands share."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import errors
from .options import FILE, option
from .render import Status, confirm, is_terminal

if TYPE_CHECKING:
    from edgespec.bench.workloads import Question

T = TypeVar("T")
_INSTALL = "pip install 'edgespec[bench]'"

question_options = (
    option(
        "--questions", type=FILE, metavar="FILE",
        help="Spec-Bench's question.jsonl or a file like it. Without it the questions are those "
        "that come with edgespec: file_editing and documents.",
    ),
    option(
        "--per-category", type=click.IntRange(1), metavar="N", show_default="all",
        help="Largest number of questions from each category.",
    ),
    option("--category", multiple=True, help="Only this category; can be given several times."),
    option("--edge/--no-edge", default=True, help="Use file_editing and documents, or do not."),
)  # fmt: skip

output_option = option(
    "-o", "--output", type=click.Choice(["md", "json", "jsonl", "csv"]), default="md",
    help="Format of the report on stdout.",
)  # fmt: skip


def n_predict_option(default: int) -> Callable[[T], T]:
    """Return the option for the length of the answers."""
    return option(
        "-n", "--n-predict", default=default, help="Largest number of tokens in an answer."
    )


def chosen_questions(params: dict[str, Any]) -> list[Question]:
    """Return the questions that the options ask for. Raises UsageError if there are none."""
    from edgespec.bench import workloads
    from edgespec.config import did_you_mean

    found = workloads.spec_bench(params["questions"]) if params["questions"] else []
    if params["edge"]:
        found = [*found, *workloads.edge()]
    if not found:
        raise click.UsageError(
            f"{params['questions'] or '--no-edge'} leaves no questions; give a file of them with "
            "--questions"
        )
    known = sorted({question.category for question in found})
    for category in params["category"]:
        if category not in known:
            raise click.UsageError(
                f"there are no questions of category {category!r}; {did_you_mean(category, known)}"
            )
    if params["category"]:
        found = [question for question in found if question.category in params["category"]]
    return workloads.sample(found, params["per_category"])


def progress_of(
    line: Status, what: str, clock: Callable[[], float] = time.monotonic
) -> Callable[..., None]:
    """Return a function that shows on `line` how many are done and how long the rest will take.

    It may be told parts, such as 0.5 of the first one.
    """
    began: float | None = None

    def show(done: float, total: int, question: Question | None = None) -> None:
        nonlocal began
        began = clock() if began is None else began
        if done > 0:
            left = f"about {_duration((clock() - began) / done * (total - done))} left"
        else:
            left = "the time left follows"
        category = f": {question.category}" if question else ""
        line.show(f"{int(done)} of {total} {what}, {left}{category}")

    return show


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def need_matplotlib() -> None:
    """Offer to install what draws pictures, if it is missing and the user can be asked. Raises
    UsageError if it is not there then.
    """
    if _is_installed("matplotlib"):
        return
    question = "--plot needs matplotlib, which is not installed; install it now?"
    if is_terminal(sys.stdin) and is_terminal(sys.stderr) and confirm(question):
        command = [sys.executable, "-m", "pip", "install", "matplotlib"]
        subprocess.run(command, check=False, stdout=sys.stderr)
        importlib.invalidate_caches()
    if not _is_installed("matplotlib"):
        raise click.UsageError(
            f"--plot needs matplotlib, which is not installed; install it with: {_INSTALL}"
        )


def tell_missing() -> None:
    """Say before anything is measured if the report will have no intervals."""
    if not _is_installed("scipy"):
        errors.note(f"speedups are shown without intervals: install scipy with: {_INSTALL}")


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def until_stopped(running: Iterable[T], line: Status) -> tuple[list[T], int]:
    """Collect answers; return them and the exit code.

    Ctrl-C, an error, or SIGTERM (after the answer that is running) end the collection, and the
    answers until then are kept. Raises if there are none, UsageError if no question fits.
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
        code = errors.report(error, debug=errors.wants_debug())
        errors.note("the answers until then are kept")
    finally:
        line.hide()
        signal.signal(signal.SIGTERM, before)
    if not answers:
        raise click.UsageError("no question fits the context; make it longer with -c")
    return answers, code


@contextmanager
def beside_others() -> Iterator[None]:
    """Say before and after a measurement if other programs use the CPUs."""
    from edgespec.device import BUSY, LoadMeter, other_load

    if (busy := other_load() or 0.0) > BUSY:
        errors.note(f"other programs use {busy:.1f} cores: what is measured now says little")
    meter = LoadMeter()
    yield
    load = meter.look()
    if load and load.others > BUSY:
        errors.note(f"other programs used {load.others:.1f} cores while this was measured")


def check_writable(path: Path) -> None:
    """Raise UsageError if a file cannot be written there, before anything is measured."""
    if not os.access(path.absolute().parent, os.W_OK):
        raise click.UsageError(
            f"{path} cannot be written: its folder does not exist, or you may not write there"
        )


def header(about: dict[str, Any]) -> dict[str, Any]:
    """Return what a report says about the engine, the machine and the command."""
    draft, model = about.get("draft") or {}, about.get("model") or {}
    remote = about.get("verifier")
    return {
        "model": f"{remote['model']} at {remote['url']}" if remote else model["file"],
        "draft": draft.get("file", "none"),
        "speculation": about["speculation"],
        "threads": model.get("n_threads"),
        "processor": about["processor"],
        "versions": _versions(model, draft),
        "command": " ".join(["edgespec", *map(_without_folder, sys.argv[1:])]),
    }


def _without_folder(argument: str) -> str:
    """Return the name of a file without its folder, and every other argument as it is."""
    return Path(argument).name if os.path.dirname(argument) else argument


def _versions(*models: dict[str, Any]) -> str:
    """Return the versions of edgespec, of what the models run on, and of Python."""
    import edgespec

    found = {"edgespec": edgespec.__version__}
    for model in models:
        found |= model.get("versions", {})
    found["python"] = sys.version.split()[0]
    return ", ".join(f"{name} {version}" for name, version in found.items())
