"""What people type who know Ollama, llama.cpp or llm."""

from __future__ import annotations

import json

import click
import pytest

from edgespec_cli import habits
from edgespec_cli.main import cli

OPTIONS = {name for command in cli.commands.values() for p in command.params for name in p.opts}


@pytest.mark.parametrize(
    "args",
    [
        ("run", "toy.gguf", "hello"),
        ("run", "-q", "toy.gguf", "hello"),
        ("run", "-p", "hello", "-m", "toy.gguf"),
        ("run", "toy.gguf", "-p", "hello"),
        ("toy.gguf", "hello"),
        ("-m", "toy.gguf", "hello"),
        ("-m", "toy.gguf", "-p", "hello", "--gpu-layers", "0", "--predict=64"),
        ("--debug", "-m", "toy.gguf", "hello"),
    ],
)
def test_the_model_and_the_prompt_in_every_order(edgespec_cli, args):
    result = edgespec_cli(*args)
    assert (result.exit_code, result.stdout) == (0, "Hi, what can I do?\n"), result.stderr
    assert edgespec_cli.loaded["model"] == "toy.gguf"


def test_a_text_alone_is_a_prompt_for_the_default_model(edgespec_cli):
    env = {"EDGESPEC_MODEL": "toy.gguf"}
    for text in ("What is in toy.gguf?", "hello!", "你好"):
        result = edgespec_cli(text, "-q", env=env)
        assert result.stdout == f"echo: {text}\n"
        assert edgespec_cli.loaded["model"] == "toy.gguf"
    assert edgespec_cli("draft.gguf", "hello", env=env).exit_code == 0  # what is typed wins
    assert edgespec_cli.loaded["model"] == "draft.gguf"
    assert edgespec_cli("run", "toy.gguf", "say", "it").stdout == "echo: say it\n"
    assert edgespec_cli("run", "toy.gguf", input="hello").stdout == "Hi, what can I do?\n"


def test_a_bare_word_is_a_prompt_only_with_a_text(edgespec_cli):
    env = {"EDGESPEC_MODEL": "toy.gguf"}
    (edgespec_cli.folder / "f.txt").write_text("a text")
    assert edgespec_cli("summarise", "-q", input="a text", env=env).stdout == (
        "echo: summarise\n\na text\n"
    )
    assert edgespec_cli("summarise", "-f", "f.txt", env=env).exit_code == 0
    assert edgespec_cli("run", "hello", env=env).stdout == "Hi, what can I do?\n"
    assert edgespec_cli("-m", "toy.gguf", "hello").stdout == "Hi, what can I do?\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("update",), "no such command 'update': `pip install --upgrade edgespec` updates the"),
        (("login", "-q"), "no such command 'login': there is no account"),
        (("upgrad",), "no such command 'upgrad': `pip install --upgrade"),
        (("xyzzy",), "'xyzzy': `edgespec --help` lists them; as a prompt: edgespec run xyzzy"),
        (("Tuning",), "'Tuning': did you mean `edgespec tune`?"),
        (("runn", "x"), "No such command 'runn'. Did you mean 'run'?"),
        (("modles",), "Did you mean 'models'?"),
        (("llama3.2:1b",), "no model is called 'llama3.2'; close to it: llama-3.2-3b"),
        (("run", "qwen3-40b", "hi"), "no model is called 'qwen3-40b'; close to it: qwen3-4b"),
        (("run", "Name", "a", "colour"), "put the whole prompt in quotes after -p"),
        (("run", "toy.gguf"), "there is no prompt: give one as an argument, with -p TEXT"),
        (("ps",), "there is no command ps: a model is in memory only while"),
        (("show", "x"), "`edgespec inspect MODEL` shows"),
        (("run", "-i"), "`edgespec run` has no -i: leave it out"),
        (("chat", "--mlock"), "`edgespec chat` has no --mlock: the system decides"),
        (("chat", "-p", "hi"), "`edgespec run -p TEXT` answers once"),
        (("run", "--lora", "x.gguf", "hi"), "has no --lora: adapters are not applied"),
        (("run", "--no-mmproj", "hi"), "has no --no-mmproj: --mmproj none lets a model read"),
        (("chat", "--audio", "x.wav"), "has no --audio: models read text and pictures here"),
        (("run", "--prompt-cache", "x", "hi"), "'x' is not one of 'off', 'memory', 'disk'"),
        (("run", "--prompt-cache-all", "hi"), "--prompt-cache disk keeps prompts"),
        (("run", "-ot", "exps=CPU", "hi"), "has no -ot: -ngl N puts"),
        (("run", "--override-tensor", "exps=CPU", "hi"), "has no --override-tensor: -ngl N"),
        (("run", "--mirostat", "2", "hi"), "has no --mirostat: --temp, --top-k"),
        (("serve", "--rope-scaling", "yarn"), "has no --rope-scaling: how positions are scaled"),
        (("serve", "--embedding"), "has no --embedding: edgespec writes answers"),
        (("serve", "--metrics"), "has no --metrics: `edgespec serve` always has /metrics"),
        (("serve", "-mg", "0"), "has no -mg: --device names the GPUs to use"),
        (("serve", "-cb"), "has no -cb: `edgespec serve --slots N` gives N answers"),
        (("run", "-np", "4", "hi"), "has no -np: `edgespec run` gives one answer"),
        (
            ("run", "--lookup-ngram-min", "2", "hi"),
            "--lookup-ngram-min: the longest earlier",
        ),
        (("run", "--verbose-prompt", "hi"), "has no --verbose-prompt: `edgespec -vv run` logs"),
        (("run", "-ngl", "most", "hi"), "'most' is neither a number of layers nor all or auto"),
        (("llama-cli", "-m", "x"), "there is no command llama-cli: `edgespec chat` keeps a"),
        (("llama-server",), "there is no command llama-server: `edgespec serve` serves a model"),
        (("pull", "--predict", "3"), "No such option '--predict'"),
    ],
)
def test_what_does_not_work_says_what_does(edgespec_cli, args, says):
    result = edgespec_cli(*args)
    assert says in result.stderr
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_spellings_of_others_reach_the_library(edgespec_cli):
    args = "--n-ctx 512 --model-draft draft.gguf --num-thread=1 --draft-max 3 --temperature 0.5"
    assert edgespec_cli.run("hello", *args.split()).exit_code == 0
    loaded = edgespec_cli.loaded
    assert (loaded["n_ctx"], loaded["draft"], loaded["n_threads"]) == (512, "draft.gguf", 1)
    assert loaded["speculative_config"]["num_speculative_tokens"] == 3
    assert edgespec_cli("run", "-hf", "org/r", "--offline", "x").stderr.startswith(
        "edgespec: error: hf:org/r is not on this device"
    )
    assert edgespec_cli.run("--", "--predict").stdout == "echo: --predict\n"


@pytest.mark.parametrize("value", ["all", "auto", "-1"])
def test_all_layers_on_the_gpu(edgespec_cli, value):
    assert edgespec_cli.run("hello", "-ngl", value).exit_code == 0
    assert edgespec_cli.loaded["n_gpu_layers"] == -1


@pytest.mark.parametrize("theirs", habits.SPEC_TYPES)
def test_speculative_methods_of_llama_cpp(edgespec_cli, theirs):
    from edgespec_cli.parameters import spec_types

    ours = habits.SPEC_TYPES[theirs][0]
    assert theirs not in spec_types()
    assert set(ours.split(",")) <= spec_types().keys()
    result = edgespec_cli.run("hello", "--spec-type", theirs)
    assert f"note: for llama.cpp's {theirs} edgespec takes {ours}, which " in result.stderr


def test_more_threads_than_cores_are_warned_of(edgespec_cli, monkeypatch):
    monkeypatch.setattr("edgespec.device.usable_cpus", lambda: 2)
    warned = edgespec_cli.run("hello", "-t", "64")
    assert (warned.exit_code, warned.stdout) == (0, "Hi, what can I do?\n")
    assert "warning: -t 64 is more than the 2 cores that this process may use" in warned.stderr
    assert "warning" not in edgespec_cli.run("hello", "-t", "2").stderr


def test_flash_attention_without_a_value_is_on(edgespec_cli):
    for args in (("hello", "-fa"), ("-fa", "-q", "hello"), ("-fa", "on", "hello")):
        assert edgespec_cli.run(*args).stdout == "Hi, what can I do?\n"
        assert edgespec_cli.loaded["flash_attn"] == "on"
    assert "'-fa'" in edgespec_cli.run("-fa", "hello").stderr


def test_the_tables_name_what_there_is():
    assert not (habits.COMMANDS.keys() | habits.ALONE.keys()) & cli.commands.keys()
    assert not habits.COMMANDS.keys() & habits.ALONE.keys()
    assert not habits.SPELLINGS.keys() & habits.HINTS.keys()
    for ours in habits.SPELLINGS.values():
        assert ours.partition(" ")[0] in OPTIONS, ours
    variables = {p.envvar for command in cli.commands.values() for p in command.params}
    for ours in habits.VARIABLES.values():
        name = ours.partition(" ")[0].partition("=")[0]
        assert name in variables | {"EDGESPEC_API_KEY", "EDGESPEC_MODELS"}, ours


def test_variables_of_other_servers_are_remarked(edgespec_cli):
    env = {"OLLAMA_HOST": "0.0.0.0", "LLAMA_ARG_PORT": "1", "EDGESPEC_PORT": "2"}
    result = edgespec_cli("serve", "-m", "no.gguf", env=env)
    note = "note: OLLAMA_HOST is set and is not read; here it is EDGESPEC_HOST and EDGESPEC_PORT"
    first = result.stderr.splitlines()[0]
    assert json.loads(first)["message"] == note  # no terminal: the log has one format
    assert "LLAMA_ARG_PORT" not in result.stderr
    assert "OLLAMA" not in edgespec_cli("models", env=env).stderr


def test_np_says_on_a_terminal_what_it_counts(edgespec_cli, monkeypatch):
    quiet = edgespec_cli("serve", "-m", "no.gguf", "-np", "4")
    monkeypatch.setattr(habits, "is_terminal", lambda stream: True)
    note = "note: -np is the number of devices whose drafts are verified together"
    assert note in edgespec_cli("serve", "-m", "no.gguf", "-np", "4").stderr
    assert note not in edgespec_cli("serve", "-m", "no.gguf", "--parallel", "4").stderr
    assert note not in quiet.stderr


def test_completion_knows_nothing_of_them():
    with click.Context(cli, resilient_parsing=True) as ctx:
        assert cli.resolve_command(ctx, ["ps"])[1] is None


def test_an_option_that_means_something_else_to_one_command(edgespec_cli):
    result = edgespec_cli("convert", "source", "-o", "out")
    assert result.exit_code == 2
    assert "the second argument: `edgespec convert SOURCE OUT`" in result.stderr
    assert "--temp" in edgespec_cli("run", "-o", "x").stderr
