"""`edgespec bench` and its commands, on the scripted toy model."""

import contextlib
import csv
import importlib
import io
import itertools
import json
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

import edgespec
from edgespec.bench import peers, reports, runner, traces, workloads
from edgespec.bench.replay import shipped_traces
from edgespec.errors import DecodeError
from edgespec.loading import drafts
from edgespec_cli import measuring, replay

QUESTIONS = [
    {"question_id": 1, "category": "writing", "turns": ["hello", "again"]},
    {"question_id": 2, "category": "qa", "turns": ["again"]},
    {"question_id": 3, "category": "qa", "turns": ["hello"]},
]


@pytest.fixture
def bench(edgespec_cli):
    path = edgespec_cli.folder / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, QUESTIONS)))

    def run(*args):
        return edgespec_cli(
            "bench", "-m", str(edgespec_cli.model), "--questions", str(path), "--no-edge", *args
        )

    return run


def rows_of(done):
    assert done.exit_code == 0, done.output
    return {(r["category"], r["mode"]): r for r in json.loads(done.stdout)["rows"]}


def test_both_modes_of_every_turn(bench):
    rows = rows_of(bench("-o", "json"))
    assert {category for category, _ in rows} == {"mt_bench", "qa", "all"}
    assert rows["mt_bench", "plain"]["answers"] == rows["mt_bench", "auto"]["answers"] == 2
    assert rows["all", "auto"]["answers"] == 4
    for row in rows.values():
        assert row["tokens_per_second"] > 0
        assert row["itl_p50_ms"] <= row["itl_p95_ms"] <= row["itl_p99_ms"]
        assert sum(row["acceptance_histogram"]) > 0
    assert all(rows[key]["speedup"] == 1 for key in rows if key[1] == "plain")
    assert rows["qa", "plain"]["tokens"] == rows["qa", "auto"]["tokens"]
    assert rows["qa", "plain"]["draft_acceptance_rate"] is None


def test_other_programs_are_told(bench, busy_machine):
    done = bench("--category", "qa")
    said = "other programs used 1.5 cores while this was measured"
    assert done.stdout.splitlines()[-1] == said
    assert said in reports.title_of({"model": "m", "other_programs_cores": 1.5})
    assert said not in reports.title_of({"model": "m", "other_programs_cores": 0.1})
    assert json.loads(bench("--category", "qa", "-o", "json").stdout)["other_programs_cores"] == 1.5


def test_choosing_questions(bench):
    rows = rows_of(bench("-o", "json", "--category", "qa", "--per-category", "1"))
    assert rows["all", "auto"]["answers"] == 1
    rows = rows_of(bench("-o", "json", "--category", "qa", "--temps", "0,0.8", "-r", "2"))
    assert rows["qa", "auto"]["temperature"] == 0.8
    assert rows["qa", "auto"]["answers"] == 4


def test_formats(bench):
    header, *table = bench("-o", "md", "--category", "qa").stdout.split("\n\n")
    assert "model: " in header
    assert re.search(r"\| qa +\| speculation \| ", table[0])
    assert re.match(r"[\d.]+ times as fast( \([\d.]+–[\d.]+\))?", table[1])
    lines = [json.loads(line) for line in bench("-o", "jsonl").stdout.splitlines()]
    assert all("versions" in line and "speedup" in line for line in lines)
    table = list(csv.DictReader(io.StringIO(bench("-o", "csv").stdout)))
    assert {row["mode"] for row in table} == {"plain", "auto"}


@pytest.mark.parametrize(("args", "said"), [
    (("--category", "poetry"), "no questions of category 'poetry'; known: mt_bench, qa"),
    (("--temps", "hot"), "'hot' is not a list of temperatures such as 0,0.8"),
    (("--questions", "nowhere"), "cannot read questions from nowhere: No such file"),
    (("--plot", "no/such/out.png"), "no/such/out.png cannot be written"),
    (("-r", "0"), "'--repeats'"),
])  # fmt: skip
def test_what_is_wrong_is_said_before_anything_is_measured(bench, args, said):
    done = bench(*args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize(("args", "said"), [
    (("-m", "other.gguf", "peers"), "--model must come after `peers`, which does not see it"),
    (("-n", "32", "replay", "--no-fixed"), "--n-predict must come after `replay`"),
    (("--no-edge", "record", "out.gz"), "--edge must come after `record`"),
])  # fmt: skip
def test_options_before_a_subcommand_are_refused(edgespec_cli, args, said):
    done = edgespec_cli("bench", *args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.fixture
def replay_few(edgespec_cli):
    """Run `bench replay` for a few of the recorded answers."""
    few = [trace for trace in shipped_traces() if trace.category in ("qa", "file_editing")]
    (edgespec_cli.folder / "few.gz").write_bytes(traces.packed(few[:2] + few[-2:]))

    def run(*args, **options):
        given = ("--no-fixed", "--traces", "few.gz", *args)
        return edgespec_cli("bench", "replay", *given, **options)

    return run


def test_the_environment_may_set_options_that_a_subcommand_has_not(replay_few):
    env = {"EDGESPEC_MODEL": "toy.gguf", "EDGESPEC_N_PREDICT": "9"}
    done = replay_few("--profile", "gpu-flat", env=env)
    assert done.exit_code == 0, done.stderr


@pytest.fixture
def installed(monkeypatch):
    """Return the set of the optional packages that are there, which a test may change."""
    found = {"matplotlib", "scipy"}
    monkeypatch.setattr(measuring, "_is_installed", found.__contains__)
    return found


def test_a_picture_needs_matplotlib_which_is_said_before_anything_is_read(bench, installed):
    installed.remove("matplotlib")
    done = bench("--plot", "out.png", "--questions", "nowhere")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--plot needs matplotlib, which is not installed" in done.stderr
    assert "pip install '.[bench]'" in done.stderr


@pytest.mark.parametrize(("agrees", "works"), [(True, True), (True, False), (False, False)])
def test_on_a_terminal_matplotlib_is_offered(monkeypatch, installed, agrees, works):
    installed.remove("matplotlib")
    commands, asked = [], []

    def run(command, **_):
        commands.append(command[1:])
        if works:
            installed.add("matplotlib")

    monkeypatch.setattr(measuring, "is_terminal", lambda stream: True)
    monkeypatch.setattr(measuring, "confirm", lambda question: asked.append(question) or agrees)
    monkeypatch.setattr(measuring.subprocess, "run", run)
    if works:
        measuring.need_matplotlib()
    else:
        with pytest.raises(click.UsageError, match=r"pip install '\.\[bench"):
            measuring.need_matplotlib()
    assert commands == ([["-m", "pip", "install", "matplotlib"]] if agrees else [])
    assert "install it now?" in asked[0]


def test_missing_intervals_are_told_before_anything_is_measured(bench, installed):
    installed.remove("scipy")
    done = bench("--category", "poetry")
    assert done.exit_code == 2
    assert "without intervals: install scipy with `pip install" in done.stderr


def test_the_time_left_is_known_from_the_first_answer_on():
    shown, now = [], [0.0]
    line = SimpleNamespace(show=shown.append)
    show = measuring.Progress(line, "questions", lambda: now[0])
    question = SimpleNamespace(category="qa")
    now[0] = 100.0  # loading is no part of it
    show(0, 4, question)
    for done, seconds in ((0.05, 10), (1, 110), (4, 400)):
        now[0] = 100.0 + seconds
        show(done, 4, question)
    assert shown == [
        "0 of 4 questions, reading the first prompt: qa",
        "0 of 4 questions, at most 13 min left: qa",
        "1 of 4 questions, about 6 min left: qa",
        "4 of 4 questions, about 0 s left: qa",
    ]


def test_a_long_answer_tells_how_far_it_is(bench, monkeypatch):
    told = []
    monkeypatch.setattr(runner, "_REPORT_S", 0.0)
    command = importlib.import_module("edgespec_cli.bench")

    class Told(measuring.Progress):
        def __call__(self, done, *rest):
            told.append(done)

    monkeypatch.setattr(command, "Progress", Told)
    assert bench("--category", "qa", "-n", "8").exit_code == 0
    assert told == sorted(told)
    assert told[0] == 0
    assert 0 < told[1] < 0.2
    assert told[-1] == 2


def bench_row(**fields):
    known = {
        "category": "qa", "temperature": 0.0, "mode": "auto", "answers": 10, "speedup": 1.2345,
        "speedup_low": 1.04, "speedup_high": 1.44, "tokens_per_second": 123.45,
        "mean_acceptance_length": 2.5, "draft_acceptance_rate": 0.5, "ttft_ms": 1234.0,
        "itl_p50_ms": 12.0, "itl_p99_ms": 120.0, "joules_per_token": 1.5,
    }  # fmt: skip
    return known | fields


@pytest.mark.parametrize("temperatures", [[0.0], [0.0, 0.8]])
@pytest.mark.parametrize("name", ["qa", "summarization", "x" * 90])
@pytest.mark.parametrize("missing", [{}, {"draft_acceptance_rate": None, "speedup_low": None}])
def test_the_table_has_the_same_columns_always_and_cuts_no_name(name, temperatures, missing):
    rows = [
        bench_row(category=category, temperature=t, mode=mode) | missing
        for t in temperatures for category in (name, "all") for mode in ("plain", "auto")
    ]  # fmt: skip
    report = reports.report({"model": "m"}, rows, "md")
    table = [line for line in report.splitlines() if line.startswith("|")]
    titles = [title.strip() for title in table[0].strip("|").split("|")]
    temperature = ["temp."] if len(temperatures) > 1 else []
    assert titles == [
        "category", *temperature, "mode", "tokens/s", "times as fast", "accepted"
    ]  # fmt: skip
    assert len(table) == 2 + len(rows)
    assert len({len(line) for line in table}) == 1
    assert len(table[0]) <= max(80, len(name) + 68)
    assert f"| {name} " in report
    assert "plain" not in report


def test_a_report_ends_with_what_speculation_gained():
    rows = [bench_row(category="all"), bench_row()]
    assert reports.report({}, rows, "md").splitlines()[-1] == "1.23 times as fast (1.04–1.44)"
    rows[0]["speedup_low"] = None
    assert reports.conclusions(rows) == ["1.23 times as fast"]
    rows[0]["speedup_low"] = 0.9
    assert reports.conclusions(rows) == ["1.23 times as fast (0.90–1.44): no clear difference"]
    both = [bench_row(category="all"), bench_row(category="all", temperature=0.8)]
    assert reports.conclusions(both)[1] == "At temperature 0.8: 1.23 times as fast (1.04–1.44)"
    assert reports.conclusions([]) == []


def test_the_names_in_a_picture_say_the_temperature():
    assert reports.label_of(bench_row()) == "qa, temperature 0"
    peer = bench_row(temperature=0.8, mode="llama.cpp")
    assert reports.label_of(peer) == "qa, temperature 0.8, llama.cpp"


@pytest.mark.parametrize(("lines", "said"), [
    ("", "questions"), ('{"question_id": 1, "category": "qa", "turns": []}', "questions"),
    ('{"text": 1}', "every line is an object with question_id, category and turns"),
])  # fmt: skip
def test_files_without_questions(bench, edgespec_cli, lines, said):
    (edgespec_cli.folder / "empty.jsonl").write_text(lines)
    done = bench("--questions", "empty.jsonl")
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_no_file_of_questions(edgespec_cli):
    done = edgespec_cli("bench", "-m", str(edgespec_cli.model), "--no-edge")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "questions" in done.stderr


def test_categories_of_ones_own(bench, edgespec_cli):
    question = {"question_id": 1, "category": "my robot", "turns": ["hello"]}
    (edgespec_cli.folder / "own.jsonl").write_text(json.dumps(question))
    assert ("my robot", "auto") in rows_of(bench("--questions", "own.jsonl", "-o", "json"))


def test_a_turn_that_does_not_fit_is_said(bench, edgespec_cli):
    question = {"question_id": 7, "category": "qa", "turns": ["hello", "x" * 600]}
    (edgespec_cli.folder / "long.jsonl").write_text(json.dumps(question))
    given = ("--questions", "long.jsonl", "-c", "512")
    done = bench(*given, "-o", "json")
    assert rows_of(done)["qa", "plain"]["answers"] == 1
    assert "question 7 ends before turn 2" in done.stderr
    question["turns"].reverse()
    (edgespec_cli.folder / "long.jsonl").write_text(json.dumps(question))
    done = bench(*given)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no question fits" in done.stderr


@pytest.mark.parametrize("n_answers", [0, 5])
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (DecodeError("the verifier is gone"), 1, "the verifier is gone"),
        (ZeroDivisionError(), 1, "a bug in edgespec"),
    ],
)
def test_what_was_measured_is_kept(bench, monkeypatch, n_answers, error, code, said):
    run = runner.run

    def stopped(*args, **options):
        yield from itertools.islice(run(*args, **options), n_answers)
        raise error

    monkeypatch.setattr(runner, "run", stopped)
    done = bench("-o", "json")
    assert done.exit_code == code
    assert said in done.stderr
    assert "kept" not in done.stderr
    if code == 130 and not n_answers:
        report = {"stopped": "interrupted before the first answer", "rows": []}
        assert json.loads(done.stdout) == report
    else:
        assert bool(done.stdout) == bool(n_answers)
    if n_answers:
        how = "interrupted" if code == 130 else "ended by an error"
        assert f"{how}, 1 of 3 questions" in done.stderr
        assert json.loads(done.stdout)["questions"] == "1 of 3 questions"
        assert json.loads(done.stdout)["stopped"] == f"{how}, 1 of 3 questions"
        rows = json.loads(done.stdout)["rows"]
        answers = {row["mode"]: row["answers"] for row in rows if row["category"] == "all"}
        assert answers == {"plain": 2, "auto": 2}  # the fifth has nothing to compare it with


@pytest.mark.parametrize("form", ["json", "jsonl", "csv"])
def test_ctrl_c_while_costs_are_measured_leaves_a_whole_report(
    bench, monkeypatch, busy_machine, form
):
    @contextlib.contextmanager
    def opened(*args, **options):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(importlib.import_module("edgespec_cli.bench"), "opened", opened)
    done = bench("-o", form)
    assert "other programs use 1.5 cores: what is measured now says little" in done.stderr
    assert done.exit_code == 130
    assert "interrupted before the first answer" in done.stdout
    if form == "json":
        assert json.loads(done.stdout)["rows"] == []


def test_ctrl_c_while_the_report_is_computed_waits(bench, monkeypatch):
    summary = importlib.import_module("edgespec.bench.summary")
    computed = summary.summary

    def interrupted(answers):
        signal.raise_signal(signal.SIGINT)
        return computed(answers)

    monkeypatch.setattr(summary, "summary", interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert rows_of(bench("-o", "json", "--category", "qa"))
    assert signal.getsignal(signal.SIGINT) is before


def test_json_is_the_report_of_o_json(bench):
    assert rows_of(bench("--json", "--category", "qa")).keys() >= {("qa", "auto")}
    assert bench("--json", "-o", "json", "--category", "qa").exit_code == 0
    done = bench("--json", "-o", "csv")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--json and -o csv exclude each other" in done.stderr


def test_an_interrupted_run_says_so_in_the_report_and_its_picture():
    row = bench_row(speedup_low=None, acceptance_histogram=[3, 1])
    about = {"model": "m", "stopped": "interrupted, 1 of 5 questions"}
    rows = [row, row | {"category": "all"}]
    assert reports.report(about, rows, "md").splitlines()[-1] == "interrupted, 1 of 5 questions"
    assert "interrupted, 1 of 5 questions" in reports.title_of(about)
    assert [each["category"] for each in reports._drawn(rows)] == ["qa"]
    several = [*rows, row | {"category": "rag"}]
    assert [each["category"] for each in reports._drawn(several)] == ["qa", "all", "rag"]
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        drawn = reports.plot("svg", about, rows).decode()
    assert "interrupted, 1 of 5 questions" in drawn
    assert "95%" not in drawn


def test_sigterm_keeps_what_was_measured(bench, monkeypatch):
    run, before = runner.run, signal.getsignal(signal.SIGTERM)

    def terminated(*args, **options):
        for i, answer in enumerate(run(*args, **options)):
            if i == 1:
                signal.raise_signal(signal.SIGTERM)
            yield answer

    monkeypatch.setattr(runner, "run", terminated)
    done = bench("-o", "json")
    assert done.exit_code == 130
    assert sum(row["answers"] for row in json.loads(done.stdout)["rows"]) == 4  # two, and all
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_picture():
    matplotlib = pytest.importorskip("matplotlib")
    row = {
        "category": "qa", "temperature": 0.0, "mode": "auto", "speedup": 1.2,
        "acceptance_histogram": [3, 2, 1], "draft_share": 0.2, "verify_share": 0.7,
    }  # fmt: skip
    known = row | {"category": "rag", "speedup_low": 1.1, "speedup_high": 1.4}
    interrupted = row | {"category": "math_reasoning", "speedup": None}
    long = row | {"category": "qa", "temperature": 0.8, "acceptance_histogram": [1] * 32}
    rows = [row, known, interrupted, long]
    assert reports.plot("png", {"model": "toy"}, rows).startswith(b"\x89PNG")
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        drawn = reports.plot("svg", {"model": "toy", "draft": "none"}, rows).decode()
    for text in ("toy · no draft model", "8 or more", "% of steps", "times as fast as without"):
        assert text in drawn


def test_replay(edgespec_cli, replay_few):
    done = replay_few("--json", "--profile", "gpu-flat")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["policy"] for row in rows} == {"plain", "auto"}
    assert all(set(row) == {"profile", "category", "policy", "speedup"} for row in rows)
    done = replay_few("--profile", "gpu-flat")
    assert done.stdout.startswith(
        "Times as fast as without speculation; mean is the geometric mean.\n"
    )
    assert "gpu-flat auto" in done.stdout
    done = edgespec_cli("bench", "replay", "--profile", "abacus")
    assert done.exit_code == 2
    assert "unknown profile 'abacus'; known: cpu-q4, " in done.stderr


def test_recording_keeps_what_it_has(edgespec_cli, monkeypatch):
    one = traces.Trace("1.1", "qa", [1], [2, 3], [[(2, 0.5)], [(3, 0.5)]], {})

    def record_question(target, draft, question, n_tokens):
        if question.id != first[0].id:
            raise KeyboardInterrupt
        return [one]

    first = workloads.edge()
    monkeypatch.setattr(drafts, "pair", lambda *_, **__: contextlib.nullcontext((None, None)))
    monkeypatch.setattr(traces, "record_question", record_question)
    done = edgespec_cli("bench", "record", "out.gz", "-m", "a.gguf", "-md", "b.gguf")
    assert done.exit_code == 130
    assert "1 answers in out.gz" in done.stderr
    assert [found.id for found in traces.load(edgespec_cli.folder / "out.gz")] == ["1.1"]


def test_recording_needs_two_models(edgespec_cli):
    done = edgespec_cli("bench", "record", "out.gz", "-m", str(edgespec_cli.model))
    assert done.exit_code == 2
    assert "recording needs two models" in done.stderr


def test_a_peer_that_is_not_there_says_so(tmp_path):
    mode = peers.Mode("other", "no-such-runtime")
    with pytest.raises(edgespec.EngineMissing, match=r"other does not run here; .*KeyError"):
        peers.Peer(mode, peers.Weights(tmp_path, None, 64, 1), sys.executable)


def test_peers_run_the_formats_of_their_own_engine(monkeypatch):
    gguf, graph = Path("a.gguf"), Path("b/model.onnx")
    assert peers.modes(gguf, None) == peers.modes(gguf, graph) == peers.LOOKUP
    assert peers.modes(graph, graph) == (*peers.GENAI, *peers.GENAI_DRAFT)
    monkeypatch.setattr(peers.backends, "name_of", lambda path: "other")
    assert peers.modes(gguf, gguf) == ()


def test_a_report_says_what_was_measured_and_when(bench, edgespec_cli, monkeypatch):
    about = json.loads(bench("-o", "json").stdout)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d [+-]\d{4}", about["date"])
    assert (about["questions"], about["answers"]) == ("3 of 3 questions", 8)
    assert about["equal_texts"] == "4 of 4 greedy answers, with and without drafts"
    assert "joules_per_token" not in about["rows"][0]
    assert [(row["category"], row["mode"]) for row in about["rows"]] == [
        (category, mode) for category in ("mt_bench", "qa", "all") for mode in ("plain", "auto")
    ]  # fmt: skip
    assert "4 of 4 greedy answers" in bench().stdout


def test_without_speculation_only_plain_answers_are_measured(bench):
    assert {mode for _, mode in rows_of(bench("-o", "json", "--spec-type", "none"))} == {"plain"}
    said = bench("--spec-type", "none").stdout
    assert "| speculation" not in said
    assert "times as fast as" not in said
    done = bench("--spec-type", "none", "--plot", "out.png")
    assert (done.exit_code, done.stdout) == (2, "")


def test_a_picture_that_cannot_be_written_leaves_the_one_before(bench, edgespec_cli, monkeypatch):
    picture = edgespec_cli.folder / "out.png"
    picture.write_bytes(b"before")
    command = importlib.import_module("edgespec_cli.bench")
    monkeypatch.setattr(command, "need_matplotlib", lambda: None)
    monkeypatch.setattr(reports, "check_picture", lambda path: None)
    monkeypatch.setattr(reports, "plot", lambda *_: b"after")
    assert bench("--plot", "out.png").exit_code == 0
    assert picture.read_bytes() == b"after"
    if os.name == "posix":
        (edgespec_cli.folder / "new").touch()
        assert picture.stat().st_mode == (edgespec_cli.folder / "new").stat().st_mode

    def full(handle):
        raise OSError(28, "No space left on device")

    picture.write_bytes(b"before")
    monkeypatch.setattr("os.fsync", full)
    done = bench("--plot", "out.png")
    assert done.exit_code == 1
    assert "out.png cannot be written: the disk is full (No space left on" in done.stderr
    assert "| speculation" in done.stdout
    assert [path.name for path in edgespec_cli.folder.glob("*out.png*")] == ["out.png"]
    assert picture.read_bytes() == b"before"


def test_a_drafter_that_never_drafts_is_named(capsys):
    rows = [{"profile": "gpu-flat", "category": category, "policy": policy, "speedup": 1.0}
            for category in ("summarization", "qa") for policy in ("plain", "mine")]  # fmt: skip
    replay._matrix(rows)
    said = capsys.readouterr().out
    assert "mine never drafted" in said
    assert "summarization" in said
    replay._matrix([row | {"speedup": 1.1} for row in rows])
    assert "never" not in capsys.readouterr().out


def test_each_prompt_is_read_unless_it_is_asked_otherwise(bench, edgespec_cli):
    for given, place in (((), "off"), (("--prompt-cache", "memory"), "memory")):
        assert bench("--category", "qa", *given).exit_code == 0
        assert edgespec_cli.loaded["prompt_cache"] == place
