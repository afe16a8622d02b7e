"""Options of requests that cannot be, and templates that take too long to learn from."""

import pytest

from edgespec import ConfigError
from edgespec.chat import probes, templates
from edgespec.chat.format import AnswerFormat
from edgespec.chat.options import AnswerOptions
from edgespec.chat.tools import Tool
from tests.helpers.formats import TEMPLATES

TOOLS = (Tool("get"), Tool("now"))


def test_options_that_cannot_be():
    with pytest.raises(ConfigError, match="two tools are named 'get'"):
        AnswerOptions((Tool("get"), Tool("get")))
    for name in ("none", "auto", "required"):
        with pytest.raises(ConfigError, match=f"a tool is named '{name}', .* tool_choice"):
            AnswerOptions((Tool("get"), Tool(name)), name)
    with pytest.raises(ConfigError, match="tool_choice is 'set'"):
        AnswerOptions(TOOLS, "set")
    with pytest.raises(ConfigError, match="no tools were given"):
        AnswerOptions((), "required")
    for budget in (-1, 1.5, True):
        with pytest.raises(ConfigError, match="reasoning_budget"):
            AnswerOptions(reasoning_budget=budget)
    with pytest.raises(ConfigError, match="messages cannot be set"):
        AnswerFormat.of(TEMPLATES["object"], {}).check(
            AnswerOptions(template_kwargs={"messages": []})
        )
    for name in ("", "a b", "x" * 129, 5):
        with pytest.raises(ConfigError, match="a tool's name"):
            Tool(name)
    with pytest.raises(ConfigError, match="the schema of an object"):
        Tool("a", "", {"type": "string"})


def test_a_template_is_asked_a_bounded_number_of_times(monkeypatch):
    asked = []
    render = templates.render

    def counted(*args, **named):
        asked.append(1)
        return render(*args, **named)

    monkeypatch.setattr(templates, "render", counted)
    variables = "".join(f"{{% if think_{i} %}}{{% endif %}}" for i in range(2000))
    assert AnswerFormat.of(TEMPLATES["object"] + variables, {}).tools
    assert len(asked) < 100
    monkeypatch.setattr(probes, "_MOST_RENDERINGS", 5)
    asked.clear()
    assert AnswerFormat.of(TEMPLATES["object"] + "{# once more #}", {}).tools is None
    assert len(asked) == 5
