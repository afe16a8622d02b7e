"""Every option and argument of every command, and every variable, with extreme values."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import edgespec
import edgespec_cli
from tests.helpers import extremes, tiny_models
from tests.helpers.extremes import Case
from tests.helpers.selection import sample

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bounds memory as Linux does")

EVERY = 23  # of the 16,300 cases, each a process: 1 tries all of them, in an hour
MODEL = ["-m", "tiny.gguf", "--offline"]
NEEDED = {  # what a command needs to come to the use of its options
    ("run",): [*MODEL, "--raw", "-p", "abc", "-n", "2"],
    ("chat",): [*MODEL, "-n", "2"],
    ("serve",): [*MODEL, "--port", "0"],
    ("corpus", "add"): [*MODEL, "text.txt"],
    ("corpus", "list"): [],
    ("corpus", "clear"): [],
    ("cache", "list"): [],
    ("cache", "clear"): [],
    ("models",): [],
    ("default",): [],
    ("pull",): ["--offline", "tiny.gguf"],
    ("list",): [],
    ("rm",): ["tiny"],
    ("inspect",): ["tiny.gguf"],
    ("convert",): ["--offline", "missing", "out"],
    ("train",): ["--offline", "--plan", "--prompts", "text.txt", "-o", "out", "tiny.gguf"],
    ("doctor",): MODEL,
    ("tune",): MODEL,
    ("build",): ["-m", "missing.gguf"],  # so that nothing is compiled
    ("bench",): MODEL,
    ("bench", "peers"): MODEL,
    ("bench", "record"): [*MODEL, "out.jsonl"],
    ("bench", "replay"): [],
    ("completion",): ["bash"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("extremes")
    tiny_models.write(where, "llama", 2).rename(where / "tiny.gguf")
    (where / "text.txt").write_text("a text\n" * 20)
    (where / "binary").write_bytes(os.urandom(4096))
    (where / "no-entry").mkdir(mode=0)
    return where


def cases() -> Iterator[Case]:
    """Yield command lines with every value of every parameter; an option that an earlier command
    has too gets fewer of them.
    """
    known: set[str] = set()
    for words, command in extremes.commands():
        for i, parameter in enumerate(command.params):
            few = slice(i % 7, None, 7) if parameter.opts[0] in known else slice(None)
            for value in extremes.EXTREMES[few]:
                yield from _with(list(words), parameter, value)
        known |= {option.opts[0] for option in command.params if isinstance(option, click.Option)}


def _with(words: list[str], parameter: click.Parameter, value: str) -> Iterator[Case]:
    needed = NEEDED[tuple(words)]
    if isinstance(parameter, click.Argument):
        yield Case([*words, *itertools.takewhile("abc".__ne__, needed), "--", value], {})
    elif not parameter.is_flag:
        yield Case([*words, *needed, f"{max(parameter.opts, key=len)}={value}"], {})
    if parameter.envvar:
        typed = [i for i, word in enumerate(needed) if word in parameter.opts]
        end = typed[0] + 2 - parameter.is_flag if typed else 0
        rest = needed[: typed[0]] + needed[end:] if typed else needed
        yield Case([*words, *rest], {str(parameter.envvar): value})


def other_variables() -> Iterator[Case]:
    """Yield variables that are no options: every name in the sources."""
    options = {str(o.envvar) for _, command in extremes.commands() for o in command.params}
    found = set()
    for package in (edgespec, edgespec_cli):
        for path in Path(package.__file__).parent.rglob("*.py"):
            found |= set(re.findall(r"\b(?:EDGESPEC|HF)_[A-Z_]+[A-Z]\b", path.read_text("utf-8")))
    assert "EDGESPEC_METRICS_KEY" in found
    standard = {"NO_COLOR", "TERM", "XDG_STATE_HOME", "HOME", "SSL_CERT_FILE"}
    for name in sorted(found - options | standard):
        for value in extremes.EXTREMES:
            for words in (("run",), ("serve",), ("list",), ("corpus", "add")):
                yield Case([*words, *NEEDED[words]], {name: value})


def fault(outcome: extremes.Outcome) -> str:
    """Return what is wrong with the end of a command, "" for nothing."""
    if outcome.code not in (0, 1, 2):
        return f"exit code {outcome.code}"
    if "Traceback" in outcome.output or "This is a bug" in outcome.output:
        return "a bug"
    if outcome.peak > 1 << 30:
        return f"{outcome.peak >> 20} MB"
    lines = outcome.output.splitlines()
    errors = [line for line in lines if line.startswith("edgespec: error: ")]
    problems = [line for line in lines if line.startswith("problem ")]  # what doctor says
    if (errors and not outcome.code) or (outcome.code and not errors + problems):
        return f"{len(errors)} error lines with exit code {outcome.code}"
    return f"an error of {len(errors[0])} characters" if errors and len(errors[0]) > 2000 else ""


def test_every_option_argument_and_variable(folder: Path) -> None:
    """A command works or says in one line what is wrong."""
    some = itertools.islice(itertools.chain(cases(), other_variables()), 0, None, EVERY)
    tried = sample(some, 17)
    for case, outcome in zip(tried, extremes.run(tried, folder), strict=True):
        assert not fault(outcome), (fault(outcome), str(case)[-300:], outcome.output[-500:])
