"""The line of figures below an answer."""

from __future__ import annotations

import os

import click
import pytest

import edgespec
from edgespec.costs.online import Costs
from edgespec.policies.adaptive import Adaptive
from edgespec.types import Budget
from edgespec_cli import render
from edgespec_cli.render import _wrapped, figures, say


def completion(reason):
    stats = edgespec.Stats(num_emitted_tokens=9, speculation=f"off: {reason}")
    return edgespec.Completion("text", tuple(range(9)), "stop", None, stats, None)


def test_beside_other_programs_it_says_what_to_do_instead_of_going_in_a_circle():
    policy = Adaptive(Costs(None))
    policy.limits(Budget(8, 5, 0, 100))
    assert "`edgespec tune` measures them now" in figures(completion(policy.reason))
    busy = figures(completion(policy.reason), 1.5)
    assert "cannot be measured while other programs use 1.5 cores" in busy
    assert "`edgespec tune --busy`" in busy
    assert "off: no match" in figures(completion("no match"), 1.5)


@pytest.mark.parametrize(("given", "named"), [
    ({}, ""), ({"model": "qwen3-4b"}, " -m qwen3-4b"),
    ({"model": "my models/a.gguf", "draft_model": "none"}, " -m 'my models/a.gguf' -md none"),
])  # fmt: skip
@pytest.mark.skipif(os.name == "nt", reason="other quotes")
def test_the_advice_is_for_the_model_that_the_user_has_named(given, named):
    with click.Context(click.Command("run")) as context:
        context.params = given
        idle = figures(completion("costs are not measured yet"))
        busy = figures(completion("costs are not measured yet"), 1.5)
    assert f"; `edgespec tune{named}` measures them now" in idle
    assert f"`edgespec tune{named} --busy`" in busy


def test_where_nothing_can_be_kept_the_figures_say_that(tmp_path, monkeypatch):
    (tmp_path / "profiles").touch()  # where a folder has to be
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    line = figures(completion("costs are not measured yet"))
    assert f"cannot be kept: {tmp_path / 'profiles'} cannot be written: " in line
    assert "`edgespec tune`" not in line


def test_every_answer_says_what_became_of_drafts():
    assert " · nothing drafted · " in figures(completion("no match"), why=False)
    stats = edgespec.Stats(num_emitted_tokens=1)
    bare = edgespec.Completion("a", (1,), "cancelled", None, stats, None)
    assert figures(bare) == "1 token · nothing drafted · first token after 0.00 s · cancelled"


def test_notices_are_wrapped_at_words_on_a_terminal(capsys, monkeypatch):
    text = "no model was named: a small one answers, which is only for trying out"
    say(text)
    monkeypatch.setattr(render, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "40")
    say(text, err=True)
    said = capsys.readouterr()
    assert said.out == f"{text}\n"
    assert all(len(line) <= 40 for line in said.err.splitlines())
    assert said.err.split() == text.split()


def drafted(ending):
    stats = edgespec.Stats(
        num_emitted_tokens=40, num_spec_steps=20, num_draft_steps=15, num_draft_tokens=30,
        num_accepted_draft_tokens=20, time_to_first_token_s=0.2, decode_s=2.0, plain_s=4.2,
    )  # fmt: skip
    return edgespec.Completion("text", tuple(range(40)), ending, None, stats, None)


def test_the_gain_is_said_in_plain_words():
    assert figures(drafted("stop")) == (
        "40 tokens · 19.5 tokens/s, 2.10 times as fast as without speculation · 2.00 tokens a "
        "step, 67% of 30 drafted tokens accepted · first token after 0.20 s"
    )


def test_an_answer_that_repeats_itself_is_not_praised():
    line = figures(drafted("repetition"))
    assert line.startswith("40 tokens · 19.5 tokens/s · 2.00 tokens a step, 67% of 30 drafted")
    assert "times" not in line


def test_an_answer_that_never_began_has_no_figures():
    nothing = edgespec.Completion("", (), "cancelled", None, edgespec.Stats(), None)
    assert figures(nothing) == "cancelled before its first token"


def test_lines_are_wrapped_at_words_and_names_stay_whole():
    text = "first token after 0.20 s · " + "x" * 30
    assert _wrapped(text, 20, 2).split("\n") == ["first token after", "  0.20 s ·", "  " + "x" * 30]
