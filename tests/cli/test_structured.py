"""`edgespec run` with a form of the answer."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("llguidance")

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"action": {"enum": ["go", "stop"]}, "sure": {"type": "boolean"}},
        "required": ["action", "sure"],
        "additionalProperties": False,
    }
)


def test_an_answer_follows_a_schema_of_the_command_line_or_a_file(edgespec_cli):
    found = json.loads(edgespec_cli.run("hello", "-j", SCHEMA, "-n", "80").stdout)
    assert found["action"] in ("go", "stop")
    (edgespec_cli.folder / "schema.json").write_text(SCHEMA, encoding="utf-8")
    again = edgespec_cli.run("hello", "-jf", "schema.json", "-n", "80")
    assert again.exit_code == 0
    assert json.loads(again.stdout) == found


def test_other_forms(edgespec_cli):
    assert edgespec_cli.run("hello", "--choice", "yes", "--choice", "no").stdout in (
        "yes\n",
        "no\n",
    )
    assert edgespec_cli.run("hello", "--regex", "[0-9]{3}").stdout.strip().isdigit()
    assert edgespec_cli.run("hello", "--grammar", 'root ::= "left"').stdout == "left\n"
    (edgespec_cli.folder / "a.gbnf").write_text('root ::= "right"', encoding="utf-8")
    assert edgespec_cli.run("hello", "--grammar-file", "a.gbnf").stdout == "right\n"


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_cut_answer_is_a_failure_and_is_shown(edgespec_cli, more):
    result = edgespec_cli.run("hello", "-j", SCHEMA, "-n", "4", *more)
    assert result.exit_code == 1
    assert "{" in result.stdout
    assert "cut after 4 tokens (length) and is not complete" in result.stderr + result.stdout


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("-j", "{"), 2, "schema is no JSON"),
        (("-j", SCHEMA, "--regex", "a"), 2, "one form"),
        (("--regex", "(a"), 2, "regex cannot be followed"),
        (("-jf", "missing.json"), 2, "missing.json"),
        (("--grammar", "root ::= ("), 2, "grammar cannot be followed"),
    ],
)
def test_what_cannot_be_followed_is_one_line(edgespec_cli, options, code, says):
    result = edgespec_cli.run("hello", *options)
    assert result.exit_code == code
    assert says in result.stderr
    assert "Traceback" not in result.stderr
