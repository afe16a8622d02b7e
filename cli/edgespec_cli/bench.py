"""`edgespec bench`: what speculation gains here, and what a policy would gain elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import errors, options
from .loading import opened
from .render import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from edgespec.bench.traces import Trace
    from edgespec.bench.workloads import Question

T = TypeVar("T")

_json_option = click.option(
    "--json", "as_json", is_flag=True, cls=options.Option, section="Output",
    help="One JSON object a line.",
)  # fmt: skip

_n_predict = click.option(
    "-n", "--n-predict", default=256, cls=options.Option, section="Questions",
    help="Most tokens of an answer.  [default: 256]",
)  # fmt: skip
_output = click.option(
    "-o", "--output", type=click.Choice(["md", "json", "jsonl", "csv"]), default="md",
    cls=options.Option, section="Output", help="Format on stdout.  [default: md]",
)  # fmt: skip

_questions = options.shared(
    "Questions",
    ("--questions", {
        "type": click.Path(path_type=Path), "metavar": "FILE",
        "help": "Spec-Bench's question.jsonl, or a file like it; without it the two workloads "
        "that come with edgespec: file_editing and documents.",
    }),
    ("--per-category", {
        "type": click.IntRange(1), "metavar": "N",
        "help": "At most so many questions of each category.  [default: all]",
    }),
    ("--category", {
        "multiple": True, "help": "Only this category; repeatable.",
    }),
    ("--edge/--no-edge", {
        "default": True, "help": "With or without file_editing and documents.",
    }),
)  # fmt: skip


class BenchGroup(click.Group):
    """Runs the benchmark itself where no other command is named."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options in sections, then the commands."""
        options.Command.format_options(self, ctx, formatter)  # type: ignore[arg-type]
        self.format_commands(ctx, formatter)


@click.group(cls=BenchGroup, invoke_without_command=True)
@_questions
@click.option(
    "--temps", default="0", cls=options.Option, section="Questions", metavar="T,T",
    help="Temperatures; above 0 with top-k 40 and top-p 0.95.  [default: 0]",
)  # fmt: skip
@_n_predict
@click.option(
    "-r", "--repeats", type=click.IntRange(1), default=1, cls=options.Option, section="Questions",
    help="Rounds over all questions.  [default: 1]",
)  # fmt: skip
@_output
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), cls=options.Option,
    section="Output", metavar="PNG", help="Also draw a picture.",
)  # fmt: skip
@options.speculation_options
@options.verifier_options
@options.model_options
@options.pass_params
def bench(ctx: click.Context) -> int:
    """Measure speculation against plain decoding, answer by answer in turns.

    A prompt is read once and is in the cache for both, so that the figures are those of
    answering: all that a draft model has to read counts against it. Beside each speedup stands
    the interval that holds it with 95%, by a bootstrap over the answers (of three and more).
    """
    if ctx.invoked_subcommand:
        return 0
    from edgespec.bench import reports, runner

    params, code = ctx.params, 0
    questions, temperatures = _chosen(params), _temperatures(params["temps"])
    if params["plot"]:
        _check_writable(params["plot"])
        reports.check_picture(params["plot"])
    line, began = Status(), time.monotonic()

    def progress(done: int, total: int, question: Question) -> None:
        line.show(f"{done} of {total} questions, {_left(began, done, total)}: {question.category}")

    with opened(params) as engine:
        header = _header(engine.describe())
        running = runner.run(
            engine,
            questions,
            temperatures=temperatures,
            max_tokens=params["n_predict"],
            repeats=params["repeats"],
            progress=progress,
        )
        answers, code = _until_stopped(running, line)
    rows = runner.summary(answers)
    click.echo(reports.report(header, rows, params["output"]))
    if params["plot"]:
        reports.plot(params["plot"], header, rows)
    return code


@bench.command(cls=options.Command)
@_questions
@_n_predict
@_output
@click.option(
    "--peer-python", default=sys.executable, cls=options.Option, section="Peers", metavar="PATH",
    help="The Python that has xllamacpp or onnxruntime-genai installed.  [default: this one]",
)  # fmt: skip
@options.model_options
@options.pass_params
def peers(ctx: click.Context) -> int:
    """Measure other runtimes on the same prompts and weights, in the same run.

    For a GGUF llama.cpp's own server with each of its speculative modes (from the wheel
    xllamacpp) and llama-cpp-python's prompt lookup; for an ONNX model onnxruntime-genai, plain,
    with its own lookup and with a draft model. What does not run here is said and left out.
    """
    import edgespec
    from edgespec.bench import peers as others
    from edgespec.bench import reports, runner
    from edgespec.hub import catalogue
    from edgespec.loading.local import draft_path

    params = ctx.params
    questions, line, began = _chosen(params), Status(), time.monotonic()
    started: list[others.Peer] = []

    def progress(done: int, total: int, question: Question) -> None:
        line.show(f"{done} of {total} questions, {_left(began, done, total)}: {question.category}")

    with opened(params) as engine:
        about = engine.describe()
        reference = params["model"] or catalogue.default_model
        model = catalogue.resolve(reference)
        asked = options.engine_arguments(params)["draft"]
        config = edgespec.EngineConfig()
        draft = draft_path(reference, asked, config) if about["draft"] else None
        assert model is not None
        try:
            for mode in others.modes(model, draft):
                ours = mode.runtime == "llama-cpp-python"
                python = sys.executable if ours else params["peer_python"]
                try:
                    peer = others.Peer(
                        mode,
                        model,
                        draft,
                        n_ctx=engine.n_ctx,
                        threads=about["model"]["n_threads"],
                        python=python,
                    )
                except edgespec.EngineMissing as error:
                    click.echo(f"left out: {error}", err=True)
                else:
                    started.append(peer)
            header = _header(about) | {"peers": ", ".join(sorted({p.version for p in started}))}
            running = runner.run(
                engine,
                questions,
                max_tokens=params["n_predict"],
                progress=progress,
                peers=started,
            )
            answers, code = _until_stopped(running, line)
        finally:
            for peer in started:
                peer.close()
    settings = {mode.name: dict(mode.settings) for mode in others.modes(model, draft)}
    rows = [row | {"settings": settings.get(row["mode"])} for row in runner.summary(answers)]
    click.echo(reports.report(header, rows, params["output"]))
    return code


@bench.command(cls=options.Command)
@_json_option
@click.option(
    "--traces", type=click.Path(path_type=Path), cls=options.Option, metavar="FILE",
    help="Recorded answers, from `edgespec bench record`.  [default: those that come along]",
)  # fmt: skip
@click.option("--profile", multiple=True, cls=options.Option, help="Only this device; repeatable.")
@click.option(
    "--fixed/--no-fixed", default=True, cls=options.Option,
    help="With or without the best fixed setting in hindsight, which takes most of the time.",
)  # fmt: skip
def replay(as_json: bool, traces: Path | None, profile: tuple[str, ...], fixed: bool) -> None:
    """Replay policies over recorded answers, in virtual time on several devices.

    Exact and without noise: no model runs. Devices are measured CPUs and made-up GPUs.
    """
    from edgespec.bench import replay as replays
    from edgespec.bench import traces as recorded

    known = replays.shipped_profiles()
    for name in profile:
        if name not in known:
            raise click.UsageError(f"unknown profile {name!r}; known: {', '.join(known)}")
    chosen = {name: known[name] for name in profile or known}
    answers = recorded.load(traces) if traces else replays.shipped_traces()
    line, began = Status(), time.monotonic()

    def progress(done: int, total: int) -> None:
        line.show(f"{done} of {total} settings, {_left(began, done, total)}")

    try:
        found = list(replays.table(answers, chosen, fixed=fixed, progress=progress))
    finally:
        line.hide()
    if as_json:
        for row in found:
            click.echo(json.dumps(row))
    else:
        _matrix(found)


@bench.command(cls=options.Command)
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@_questions
@click.option(
    "-n", "--n-predict", default=160, cls=options.Option, section="Questions",
    help="Most tokens of an answer.  [default: 160]",
)  # fmt: skip
@options.model_options
@options.pass_params
def record(ctx: click.Context) -> int:
    """Record greedy answers and what a draft model would draft at every position of them.

    OUTPUT is a file for `edgespec bench replay --traces`; -m and -md name the two models.
    """
    from edgespec.bench import traces
    from edgespec.loading.local import pair

    params = ctx.params
    arguments = options.engine_arguments(params)
    if not params["model"] or arguments["draft"] in (None, "auto"):
        raise click.UsageError("recording needs two models: give -m and -md")
    _check_writable(params["output"])
    questions, line, began = _chosen(params), Status(), time.monotonic()
    arguments.pop("speculative_config")
    with pair(params["model"], **arguments) as (target, draft):

        def recording() -> Iterator[Trace]:
            for done, question in enumerate(questions):
                line.show(f"{done} of {len(questions)}, {_left(began, done, len(questions))}")
                yield from traces.record_question(target, draft, question, params["n_predict"])

        found, code = _until_stopped(recording(), line)
    traces.save(params["output"], found)
    click.echo(f"{len(found)} answers in {params['output']}", err=True)
    return code


def _chosen(params: dict[str, Any]) -> list[Question]:
    from edgespec.bench import workloads

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
                f"no questions of category {category!r}; there are: {', '.join(known)}"
            )
    if params["category"]:
        found = [question for question in found if question.category in params["category"]]
    return workloads.sample(found, params["per_category"])


def _until_stopped(running: Iterable[T], line: Status) -> tuple[list[T], int]:
    """The answers that there are, and the exit code: what Ctrl-C, SIGTERM (behind an answer) or
    an error ends keeps what it has. Raises where it has nothing, UsageError where nothing fits.
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
        debug = click.get_current_context().find_root().params.get("debug")
        code = errors.report(error, debug=bool(debug))
        errors.line("the answers until then are kept")
    finally:
        line.hide()
        signal.signal(signal.SIGTERM, before)
    if not answers:
        raise click.UsageError("no question fits the context; give more with -c")
    return answers, code


def _check_writable(path: Path) -> None:
    """Before anything is measured."""
    if not os.access(path.absolute().parent, os.W_OK):
        raise click.UsageError(f"{path} cannot be written: its folder is not there or not yours")


def _temperatures(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if min(found) < 0:
        raise click.UsageError(f"--temps takes numbers such as 0,0.8, got {text!r}")
    return found


def _left(began: float, done: int, total: int) -> str:
    if not done:
        return "time left not known yet"
    seconds = (time.monotonic() - began) / done * (total - done)
    return f"{seconds / 60:.0f} min left" if seconds > 90 else f"{seconds:.0f} s left"


def _header(about: dict[str, Any]) -> dict[str, Any]:
    draft, model = about.get("draft") or {}, about.get("model") or {}
    far = about.get("verifier")
    return {
        "model": f"{far['model']} at {far['url']}" if far else model["file"],
        "draft": draft.get("file", "none"),
        "speculation": about["speculation"],
        "threads": model.get("n_threads"),
        "processor": about["processor"],
        "versions": _versions(),
        "command": " ".join(["edgespec", *(Path(a).name if "/" in a else a for a in sys.argv[1:])]),
    }


def _versions() -> str:
    """Of edgespec, of the engines that are installed, of Python."""
    from importlib.metadata import PackageNotFoundError, version

    import edgespec

    found = [f"edgespec {edgespec.__version__}"]
    for package in ("llama-cpp-python", "onnxruntime", "onnxruntime-gpu"):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return ", ".join([*found, f"python {sys.version.split()[0]}"])


def _matrix(rows: list[dict[str, Any]]) -> None:
    """A table a policy: profiles down, categories across."""
    from statistics import geometric_mean

    categories = list(dict.fromkeys(row["category"] for row in rows))
    width = max(len(row["profile"]) for row in rows) + 12
    click.echo(" " * width + " ".join(f"{c[:12]:>12}" for c in categories) + f"{'mean':>13}")
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row["profile"], row["policy"]), []).append(row["speedup"])
    for (profile, policy), values in groups.items():
        if policy != "plain":
            figures = " ".join(f"{value:12.2f}" for value in values)
            click.echo(
                f"{profile} {policy:<11}".rjust(width) + figures + f"{geometric_mean(values):13.2f}"
            )
