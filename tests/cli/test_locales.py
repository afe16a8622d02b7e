"""Programs read our pipes as UTF-8, whatever the locale says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers.selection import first

TEXT = "Grüße, 你好 🙂"
LOCALES = first(1, [{"LC_ALL": "C"}, {"LC_ALL": "POSIX", "LANG": "de_DE.ISO-8859-1"}], "more")


@pytest.fixture(params=LOCALES, ids=lambda given: given["LC_ALL"])
def environment(request: pytest.FixtureRequest, edgespec_cli) -> dict[str, str]:
    """Return a locale whose encoding is ASCII, for a Python that does not help itself to UTF-8."""
    left_out = ("LC_", "LANG", "PYTHONIOENCODING", "PYTHONUTF8")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    path = os.pathsep.join(filter(None, sys.path))
    plain = {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONPATH": path}
    return kept | plain | request.param


def run(program, environment, *arguments: str, input: str = "") -> subprocess.CompletedProcess:
    return subprocess.run(
        [*program, *arguments], env=environment, input=input.encode(), capture_output=True,
        timeout=60,
    )  # fmt: skip


def test_an_answer_and_a_chat(program, environment):
    done = run(program, environment, "run", "-m", "toy.gguf", input=TEXT)
    assert done.stdout.decode() == f"echo: {TEXT}\n"
    done = run(program, environment, "chat", "-m", "toy.gguf", "-q", input=f"{TEXT}\n")
    assert done.stdout.decode() == f"echo: {TEXT}\n"


def test_what_is_said_on_stderr(environment):
    code = (
        f"from edgespec_cli import render; render.prepare_streams(); render.say({TEXT!a}, err=True)"
    )
    done = run([sys.executable], environment, "-c", code)
    assert done.stderr.decode() == f"{TEXT}\n"


def test_another_encoding_may_be_named(program, environment):
    named = environment | {"PYTHONIOENCODING": "latin-1"}
    done = run(program, named, "run", "-m", "toy.gguf", input="Grüße 🙂")
    assert done.stdout == "echo: Grüße ?\n".encode("latin-1")
