"""Models that can think answer at once, unless the user wants them to think."""

from __future__ import annotations

import pytest

import edgespec


def test_a_model_that_can_think_answers_at_once(edgespec_cli):
    model = ("-m", "thinks.gguf")
    assert edgespec_cli("run", *model, "-q", "think").stdout == "at once\n"
    assert edgespec_cli("chat", *model, "-q", input="think\nthink\n").stdout == "at once\n" * 2


@pytest.mark.parametrize("budget", ["-1", "100"])
def test_a_budget_that_is_named_lets_it_think(edgespec_cli, budget):
    args = ("-m", "thinks.gguf", "-q", "--reasoning-budget", budget)
    assert edgespec_cli("run", *args, "think").stdout == "three\n"
    assert edgespec_cli("chat", *args, input="think\n").stdout == "three\n"


def test_think_turns_it_on_and_off(edgespec_cli):
    lines = "think\n/think\nthink\n/think off\nthink\n/think on\nthink\n"
    talk = edgespec_cli("chat", "-m", "thinks.gguf", "-q", input=lines)
    assert talk.stdout.splitlines() == ["at once", "three", "at once", "three"]
    assert "thinking is on" in talk.stderr
    assert "thinking is off: the model answers at once" in talk.stderr


def test_a_model_without_a_switch_stays_as_it_is(edgespec_cli):
    talk = edgespec_cli.tools("think", "/think off", "/think maybe", "think", args=["-q"])
    assert talk.stdout.splitlines() == ["three", "three"]
    assert "this model has no switch for thinking" in talk.stderr
    assert "/think takes on or off, got 'maybe'" in talk.stderr
    assert talk.exit_code == 2


def test_only_a_template_with_a_switch_may_skip_reasoning(edgespec_cli):
    may = {}
    for model in ("toy.gguf", "tools.gguf", "thinks.gguf"):
        with edgespec.load(model, speculative_config={}) as engine:
            may[model] = engine.chat().may_skip_reasoning
    assert may == {"toy.gguf": False, "tools.gguf": False, "thinks.gguf": True}


def test_a_model_that_cannot_think_says_so(edgespec_cli):
    for line in ("/think", "/think off"):
        said = edgespec_cli.chat(line)
        assert (said.exit_code, said.stdout) == (2, "")
        assert "this model answers without thinking, so /think changes nothing" in said.stderr
