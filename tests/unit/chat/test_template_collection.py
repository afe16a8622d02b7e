"""Published chat templates write what they write in Jinja without bounds."""

import hashlib

import jinja2
import pytest

from edgespec import TemplateError
from edgespec.chat import template_limits, templates
from tests.helpers.chat_templates import (
    CONVERSATIONS,
    PUBLISHED,
    SPECIAL,
    FixedDate,
    listed,
    plain,
    published,
)
from tests.helpers.selection import every


def outcome(render, *args):
    """Return the text, or what the template itself, or else Jinja, has against a conversation."""
    try:
        return render(*args)
    except TemplateError as error:
        cause = error.__cause__
    except Exception as error:
        cause = error
    return str(cause)[:500] if type(cause) is jinja2.TemplateError else "an error"


def bounded(template, messages, variables, generation):
    return templates.render(
        template, messages, SPECIAL, add_generation_prompt=generation, variables=variables
    )


@pytest.mark.parametrize(
    "path", every(4, published(), "more published templates"), ids=lambda path: path.stem
)
def test_templates_write_what_they_write_without_bounds(path, monkeypatch):
    monkeypatch.setattr(template_limits, "datetime", FixedDate)
    template = path.read_text("utf-8")
    texts = 0
    for name, (messages, variables) in CONVERSATIONS.items():
        for generation in (True, False):
            args = (template, messages, variables, generation)
            expected = outcome(plain, *args)
            assert outcome(bounded, *args) == expected, name
            texts += expected != "an error"
    assert texts >= 2, "nothing was written, so nothing was compared"


def test_the_files_are_those_of_the_list():
    files = {path.stem: path.read_bytes() for path in PUBLISHED.glob("*.jinja")}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert hashes == {name: listed()[name] for name in files}
    assert len(set(listed().values())) >= 60
