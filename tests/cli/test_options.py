"""Options, environment variables, conflicts, and what reaches the library."""

from __future__ import annotations

import click
import pytest

import edgespec
from edgespec import policies
from edgespec.sampling import rules
from edgespec_cli.main import cli


def test_options_of_several_letters_are_told_apart(edgespec_cli):
    args = "-md draft.gguf -ngl 3 -ngld 4 -c 512 -cd 256 -t 1 -tb 2 -n 5 -ctk q8_0 -ctv q4_0 -fa on"
    args += " --max-cores 2 --no-dynamic-threads --prio low"
    assert edgespec_cli.run("hello", *args.split()).exit_code == 0
    assert edgespec_cli.loaded == {
        "model": str(edgespec_cli.model),
        "draft": "draft.gguf",
        "n_ctx": 512,
        "n_gpu_layers": 3,
        "n_threads": 1,
        "n_threads_batch": 2,
        "max_cores": 2,
        "dynamic_threads": False,
        "prio": "low",
        "flash_attn": "on",
        "type_k": "q8_0",
        "type_v": "q4_0",
        "draft_options": {"n_ctx": 256, "n_gpu_layers": 4},
        "speculative_config": {"method": "auto"},
    }


@pytest.mark.parametrize(
    ("args", "draft", "method"),
    [
        ((), "auto", "auto"),
        (("-md", "none"), None, "auto"),
        (("--spec-type", "none"), None, "none"),
        (("--spec-type", "ngram"), None, "suffix"),
        (("--spec-type", "suffix", "-md", "auto"), None, "suffix"),
        (
            ("--spec-type", "suffix,draft_model", "-md", "draft.gguf"),
            "draft.gguf",
            "suffix,draft_model",
        ),
        (("--spec-type", "ngram, draft-model"), "auto", "suffix,draft_model"),
    ],
)
def test_kinds_of_speculation(edgespec_cli, args, draft, method):
    result = edgespec_cli.run("hello", *args)
    assert result.exit_code == 0, result.stderr
    assert edgespec_cli.loaded["draft"] == draft
    assert edgespec_cli.loaded["speculative_config"]["method"] == method


def test_options_of_a_drafter_reach_it(edgespec_cli):
    given = ("n=3", "share=0.5", "fast=true", "kind=bigram")
    edgespec_cli.run("hello", *(word for one in given for word in ("--spec-option", one)))
    options = {"n": 3, "share": 0.5, "fast": True, "kind": "bigram"}
    assert edgespec_cli.loaded["speculative_config"] == {"method": "auto", "options": options}
    refused = edgespec_cli.run("hello", "--spec-option", "n=3")
    assert "unknown option 'n': the drafters that are used (" in refused.stderr


def test_a_draft_model_alone_and_its_limits(edgespec_cli):
    # the toy has no draft model, so the engine refuses: what it was given is what counts
    args = "--spec-type draft-model -md draft.gguf --spec-draft-n-max 3 --spec-draft-n-min 2"
    more = "--spec-draft-p-min 0.5 --acceptance coupled --draft-window 512"
    edgespec_cli.run("hello", *args.split(), *more.split())
    assert edgespec_cli.loaded["draft"] == "draft.gguf"
    assert edgespec_cli.loaded["speculative_config"] == {
        "method": "draft_model",
        "num_speculative_tokens": 3,
        "min_speculative_tokens": 2,
        "draft_p_min": 0.5,
        "acceptance": "coupled",
        "draft_window": 512,
    }


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--raw", "--system", "x"), "--raw and --system exclude each other"),
        (("--prompt-ids", "1,2"), "--prompt-ids and --prompt exclude each other"),
        (("--prompt-ids", "1,x"), "'1,x' is not a list of token ids"),
        (("--spec-type", "none", "-md", "x.gguf"), "uses no draft model, but -md x.gguf"),
        (("--spec-type", "suffix", "-md", "x.gguf"), "uses no draft model, but -md x.gguf"),
        (("--spec-type", "draft-model", "-md", "none"), "needs a draft model, but -md none"),
        (("--spec-type", "eagle"), "'eagle' is unknown; known: auto, none, draft-model"),
        (("--spec-type", "sufix"), "'sufix' is unknown; did you mean 'suffix'?"),
        (("--spec-type", "none,suffix"), "auto and none cannot be combined"),
        (("--spec-draft-n-max", "99"), "num_speculative_tokens must be between 0 and 31, got 99"),
        (("--draft-window", "-1"), "draft_window must be at least 0, got -1"),
        (("--logit-bias", "5"), "'5' is not ID=VALUE"),
        (("--logit-bias", "5=nan"), "VALUE is a number or -inf"),
        (("--logprobs", "3"), "--logprobs needs --json"),
        (("--temp", "-1"), "temperature must be between 0 and 100, got -1"),
        (("--top-p", "2"), "top_p must be between 0 and 1"),
        (("-n", "0"), "max_tokens must be at least 1, got 0"),
        (("-n", "five"), "'five' is not a valid integer"),
        (("-ctk", "q9"), "'q9' is not one of 'f32'"),
        (("-cd", "-2"), "n_ctx must be at least 0, got -2"),
        (("--tmep", "1"), "No such option"),
        (("-f", "missing.txt"), "missing.txt"),
        (("-p", "again"), "there are two prompts: an argument and -p; leave one out"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(edgespec_cli, args, says):
    result = edgespec_cli.run("hello", *args)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.startswith("edgespec: error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.fixture
def connected(edgespec_cli, monkeypatch):
    """`edgespec.connect` to the scripted model; the acceptance rules that it was given."""
    given = []

    def connect(**arguments):
        given.append(arguments["speculative_config"].get("acceptance"))
        arguments = {"speculative_config": arguments["speculative_config"]}
        return edgespec.load(str(edgespec_cli.model), **arguments)

    monkeypatch.setattr(edgespec, "connect", connect)
    return given


@pytest.mark.parametrize(("args", "why"), [
    (("--acceptance", "block"), "only token ids travel"),
    (("--spec-remember", "all"), "tokens of a target on another machine are not kept"),
])  # fmt: skip
def test_options_that_do_nothing_with_a_verifier_are_refused(edgespec_cli, connected, args, why):
    done = edgespec_cli.run("hello", "--verifier", "ws://127.0.0.1:9", *args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{args[0]} has no effect with --verifier: {why}" in done.stderr
    assert connected == []


def test_with_a_verifier_options_may_say_what_happens_anyway(edgespec_cli, connected):
    args = ("--verifier", "ws://127.0.0.1:9", "--acceptance", "coupled")
    for kept in ("rates", "nothing"):
        assert edgespec_cli.run("hello", *args, "--spec-remember", kept).exit_code == 0
    env = {"EDGESPEC_ACCEPTANCE": "block", "EDGESPEC_SPEC_REMEMBER": "all"}
    assert edgespec_cli.run("hello", *args[:2], env=env).exit_code == 0
    assert connected == ["coupled", "coupled", "block"]


def test_every_option_is_read_from_the_environment_under_its_flag():
    for name, command in cli.commands.items():
        for param in command.params:
            if isinstance(param, click.Option):
                flag = next(opt for opt in param.opts if opt.startswith("--"))
                expected = "EDGESPEC_" + flag[2:].upper().replace("-", "_")
                assert (param.envvar, param.show_envvar) == (expected, True), (name, flag)


def test_the_environment_is_used_and_the_command_line_wins(edgespec_cli):
    env = {
        "EDGESPEC_MODEL": str(edgespec_cli.model),
        "EDGESPEC_N_GPU_LAYERS": "7",
        "EDGESPEC_N_PREDICT": "2",
        "EDGESPEC_QUIET": "1",
        "EDGESPEC_STOP": '["w h", "x y"]',
    }
    result = edgespec_cli("run", "hello", "-ngl", "1", env=env)
    assert (result.stdout, result.stderr) == ("Hi\n", "")
    assert edgespec_cli.loaded["n_gpu_layers"] == 1
    assert edgespec_cli("chat", env=env, input="hello\n").stdout == "Hi\n"
    assert edgespec_cli.loaded["n_gpu_layers"] == 7


def test_what_is_typed_wins_over_a_contradiction_in_the_environment(edgespec_cli):
    assert edgespec_cli.run("--raw", "raw:", env={"EDGESPEC_SYSTEM": "x"}).exit_code == 0
    env = {"EDGESPEC_DRAFT_MODEL": "draft.gguf"}
    assert edgespec_cli.run("hello", "--spec-type", "none", env=env).exit_code == 0
    assert edgespec_cli.run("hello", env={"EDGESPEC_LOGPROBS": "2"}).exit_code == 0


def test_a_stop_string_from_the_environment_keeps_its_blanks(edgespec_cli):
    assert edgespec_cli.run("hello", env={"EDGESPEC_STOP": "what can"}).stdout == "Hi, \n"
    env = {"EDGESPEC_LOGIT_BIAS": f"{ord('H')}=-inf,300=1", "EDGESPEC_N_PREDICT": "x"}
    broken = edgespec_cli.run("hello", env=env)
    assert broken.exit_code == 2
    assert "EDGESPEC_N_PREDICT" in broken.stderr


@pytest.mark.parametrize(
    ("name", "known"), [("acceptance", rules.names()), ("policy", ["auto", *policies.names()])]
)
def test_names_are_those_that_the_library_knows(edgespec_cli, name, known):
    option = next(p for p in cli.commands["run"].params if p.name == name)
    assert option.type.get_metavar(option, None) == f"[{'|'.join(known)}]"
    for each in known:
        assert edgespec_cli.run("hello", f"--{name}", each).exit_code == 0
        assert edgespec_cli.loaded["speculative_config"][name] == each
    wrong = edgespec_cli.run("hello", f"--{name}", known[0][:-1])
    assert wrong.exit_code == 2
    assert f"did you mean '{known[0]}'" in wrong.stderr


def test_an_error_names_the_variable_only_where_the_value_came_from_it(edgespec_cli):
    typed = edgespec_cli.run("--temp", "warm", "hello")
    assert (typed.exit_code, "env var" in typed.stderr) == (2, False)
    assert "'--temp': 'warm'" in typed.stderr
    assert "EDGESPEC_TEMP" in edgespec_cli.run("hello", env={"EDGESPEC_TEMP": "warm"}).stderr
