"""`edgespec run`: prompts, output, JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

import edgespec


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_the_answer_goes_to_stdout_and_the_figures_to_stderr(edgespec_cli):
    result = edgespec_cli.run("hello")
    assert result.exit_code == 0
    assert result.stdout == "Hi, what can I do?\n"
    assert result.stderr.startswith("19 tokens · ")
    assert edgespec_cli.run("hello", "-q").stderr == ""


@pytest.fixture
def recommending(edgespec_cli, monkeypatch):
    """Return the CLI with a model whose makers recommend sampling."""
    load = edgespec.load

    def recommended(*args: Any, **options: Any) -> edgespec.Engine:
        engine = load(*args, **options)
        engine.sampling = type(engine.sampling)({"temperature": 0.5, "top_k": 9}, "published")
        return engine

    monkeypatch.setattr(edgespec, "load", recommended)
    return edgespec_cli


@pytest.mark.parametrize(("args", "said"), [
    (("hello",), "temperature 0.5, top_k 9 (published)"),
    (("hello", "--raw"), "temperature 0.5, top_k 9 (published)"),
    (("--prompt-ids", "104,105"), "temperature 0.5, top_k 9 (published)"),
    (("hello", "--top-k", "3"), "temperature 0.5, top_k 3 (top_k as asked, the rest published)"),
    (("hello", "--temp", "0"), "greedy (as asked)"),
])  # fmt: skip
def test_sampling_is_the_models_own(recommending, args, said):
    result = recommending.run(*args, "-n", "3")
    assert result.stderr.splitlines()[-1] == f"sampling: {said}"
    stats = lines(recommending.run(*args, "-n", "3", "--json").stdout)[-1]["stats"]
    assert stats["sampling"] == said.partition(" (")[0]
    assert "sampling" not in recommending.run(*args, "-q").stderr


def test_a_chat_says_its_sampling_once_and_in_its_stats(recommending):
    result = recommending.chat("hello", "again")
    assert result.stderr.count("sampling: temperature 0.5, top_k 9 (published)") == 1
    asked = recommending.chat("hello", "/stats", args=["-q", "--top-k", "0"])
    assert asked.stderr.count("sampling: temperature 0.5 (top_k as asked, the rest published)") == 1


def test_figures_say_what_was_drafted_or_why_nothing_was(edgespec_cli):
    assert "drafted tokens accepted" in edgespec_cli.run("again", *edgespec_cli.always).stderr
    off = edgespec_cli.run("again", "--spec-type", "none").stderr
    assert "speculation off: not asked for" in off
    cut = edgespec_cli.run("again", "-n", "3")
    assert cut.stdout == "one\n"
    assert "stopped at the token limit" in cut.stderr


def test_an_answer_that_repeats_itself_ends_unless_its_length_was_named(edgespec_cli):
    result = edgespec_cli.run("for ever", *edgespec_cli.always)
    assert result.exit_code == 0
    assert len(result.stdout) == 512 + len("\n")
    assert "stopped: it repeats itself" in result.stderr
    assert (
        "the answer repeated the same words without end; other words, --temp 0.7" in result.stderr
    )
    assert "drafted tokens accepted" in result.stderr
    assert "times as fast" not in result.stderr
    assert "× plain" not in result.stderr
    for named in ("600", "-1"):
        free = edgespec_cli.run("for ever", "-n", named)
        assert len(free.stdout) > 600
        assert "repeat" not in free.stderr
    assert len(edgespec_cli.run("--raw", "raw:").stdout) < 20


def test_json_says_that_an_answer_repeats_itself(edgespec_cli):
    done = lines(edgespec_cli.run("for ever", "--json").stdout)[-1]
    assert done["finish_reason"] == "repetition"
    assert done["stats"]["num_repeated_tokens"] == 512
    assert done["stats"]["speedup"] is None


def test_the_prompt_comes_from_argument_file_and_pipe(edgespec_cli):
    (edgespec_cli.folder / "file.txt").write_text("from file\n", encoding="utf-8")
    assert edgespec_cli.run(input="hello").stdout == "Hi, what can I do?\n"
    assert edgespec_cli.run("-f", "file.txt").stdout == "echo: from file\n"
    assert edgespec_cli.run("-f", "-", input="piped").stdout == "echo: piped\n"
    assert edgespec_cli.run("say", input="piped").stdout == "echo: say\n\npiped\n"
    both = edgespec_cli.run("say", "-f", "file.txt", input="not read")
    assert both.stdout == "echo: say\n\nfrom file\n"


def test_raw_and_ids_leave_the_template_out(edgespec_cli):
    assert edgespec_cli.run("--raw", "raw:").stdout == " and on\n"
    ids = ",".join(str(b) for b in b"raw:")
    assert edgespec_cli.run("--prompt-ids", ids, input="not read").stdout == " and on\n"
    assert edgespec_cli.run("system?", "--system", "Be brief.").stdout == "Be brief.\n"


def test_a_prediction_is_drafted_from_and_changes_nothing(edgespec_cli):
    (edgespec_cli.folder / "p.txt").write_text("Hi, what can I do?", encoding="utf-8")
    plain = edgespec_cli.run("hello", "--json", *edgespec_cli.always)
    done = edgespec_cli.run("hello", "--json", "--prediction", "p.txt", *edgespec_cli.always)
    before, after = (lines(result.stdout)[-1] for result in (plain, done))
    assert before["token_ids"] == after["token_ids"]
    assert before["stats"]["num_accepted_prediction_tokens"] == 0
    assert after["stats"]["num_accepted_prediction_tokens"] > 10
    assert edgespec_cli.run("hello", "--prediction", "none.txt").exit_code == 2


def test_json_lines_parse_and_the_last_is_done(edgespec_cli):
    result = edgespec_cli.run("again", "--json", "--logprobs", "2")
    events = lines(result.stdout)
    assert {e["type"] for e in events} == {"prefill", "token", "done"}
    assert [e["type"] for e in events].count("done") == 1
    done = events[-1]
    tokens = [e for e in events if e["type"] == "token"]
    assert done["type"] == "done"
    assert done["text"] == "".join(e["text"] for e in tokens)
    assert done["token_ids"] == [e["token"] for e in tokens]
    assert done["finish_reason"] == "stop"
    assert done["stats"]["num_accepted_draft_tokens"] == sum(e["from_draft"] for e in tokens)
    assert len(tokens[0]["logprob"]["top"]) == 2
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("args", "code", "name"),
    [
        (("hello", "--temp", "-1"), 2, "ConfigError"),
        (("boom",), 1, "RuntimeError"),
        (("--raw", "--system", "x", "hello"), 2, "UsageError"),
        (("-m", "nothing.gguf", "hello"), 1, "ModelNotFound"),
        (("-m", "interrupted.gguf", "hello"), 130, "KeyboardInterrupt"),
        ((), 2, "UsageError"),
    ],
)
def test_json_ends_with_the_error(edgespec_cli, args, code, name):
    result = edgespec_cli.run("--json", *args)
    last = lines(result.stdout)[-1]
    assert (result.exit_code, last["type"], last["error"]) == (code, "error", name)
    assert last["message"]
    assert result.stderr.startswith("edgespec: error: ")


def test_stop_strings_and_limits_reach_the_engine(edgespec_cli):
    events = lines(edgespec_cli.run("hello", "--json", "--stop", "can", "--stop", "xyz").stdout)
    assert events[-1]["text"] == "Hi, what "
    assert events[-1]["stop_reason"] == "can"
    long = lines(edgespec_cli.run("hello", "--json", "--ignore-eos", "-n", "30").stdout)
    assert len(long[-1]["token_ids"]) == 30
    forbidden = edgespec_cli.run("hello", "-q", "-n", "1", "--logit-bias", f"{ord('H')}=-inf")
    assert forbidden.stdout != "H\n"
    limited = lines(edgespec_cli.run("slow", "--json", "--time-limit", "0").stdout)
    assert limited[-1]["finish_reason"] == "time_limit"


def test_a_pipe_gets_the_bytes_of_the_model(edgespec_cli):
    assert "\x1b[31m" in edgespec_cli.run("escape").stdout


def test_a_full_context_is_an_error_that_says_so(edgespec_cli):
    result = edgespec_cli.run("x" * 400, "-c", "256")
    assert result.exit_code == 1
    assert "context of 256" in result.stderr


def test_an_answer_without_a_bound_of_the_users_has_one(edgespec_cli, monkeypatch):
    monkeypatch.setattr("edgespec_cli.run._MOST_TOKENS", 40)
    endless = ("hello", "--ignore-eos", "-c", "256")
    cut = edgespec_cli.run(*endless, "-q")
    assert cut.exit_code == 0
    assert "note: the answer was cut at 40 tokens, the bound of `edgespec run`" in cut.stderr
    assert "-n 80 allows more, -n -1 as many as the context holds" in cut.stderr
    events = lines(edgespec_cli.run(*endless, "--json").stdout)
    assert [e["type"] for e in events[-2:]] == ["notice", "done"]
    assert (events[-1]["finish_reason"], len(events[-1]["token_ids"])) == ("length", 40)
    for more in ((*endless, "-n", "60"), ("hello",)):  # named by the user, and not reached
        assert "was cut at" not in edgespec_cli.run(*more).stderr
    whole = lines(edgespec_cli.run(*endless, "--json", "-n", "-1").stdout)
    assert whole[-1]["finish_reason"] == "context_full"


def test_the_default_bound_takes_no_room_from_the_prompt(edgespec_cli):
    long = "x" * 1600  # tokens: more than three quarters of the context
    assert edgespec_cli.run(long, "-c", "2048").stdout.startswith("echo: xxx")
    refused = edgespec_cli.run(long, "-c", "2048", "-n", "2048")  # the user wants that room
    assert "the context of 2048 holds 1536 beside the answer" in refused.stderr
