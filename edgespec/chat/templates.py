"""The model's own chat template, rendered in a sandbox with limits on time and size."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import TemplateError
from .template_budget import Budget, TooMuch, weighed

Message = Mapping[str, Any]

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s\"{]+\]|<[^<>\s=]+=")
"""A pattern for most markers that templates write around calls and reasoning."""
RESERVED = ("messages", "add_generation_prompt", "tools")
"""Template variables that only edgespec sets."""
_MAX_SOURCE = 1 << 17  # characters of a template


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    from .template_limits import BoundedEnvironment

    if len(template) > _MAX_SOURCE:
        raise TemplateError(
            f"the model's chat template has {len(template)} characters; up to "
            f"{_MAX_SOURCE} are taken; use the model with raw prompts"
        )
    try:
        with Budget().used():
            return BoundedEnvironment().bounded_template(template)
    except Exception as error:  # for example, it is nested too deeply
        raise TemplateError(
            f"the model's chat template cannot be read: {_short(error)}; use the model with raw "
            "prompts"
        ) from error


def variables_of(template: str) -> list[str]:
    """Return the names of the variables that a template expects. Raises TemplateError."""
    from .template_limits import BoundedEnvironment

    _compiled(template)  # which checks it
    return sorted(BoundedEnvironment().variables_of(template))


@functools.lru_cache(maxsize=8)
def keys_of(template: str) -> frozenset[str]:
    """Return the keys that a template looks up by name. Raises TemplateError."""
    from jinja2 import nodes

    from .template_limits import BoundedEnvironment

    _compiled(template)  # which checks it
    tree = BoundedEnvironment().parse(template)
    texts = [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    attributes = (part for text in texts for part in text.split("."))  # as in map("a.b")
    return frozenset([node.attr for node in tree.find_all(nodes.Getattr)]).union(texts, attributes)


@functools.lru_cache(maxsize=8)
def _writes_parts_only(template: str, special: tuple[tuple[str, str], ...]) -> bool:
    """Return True if a template writes contents that are lists of parts, and leaves out texts, as
    that of SmolVLM does.
    """
    question = {"role": "user", "content": "A question 7141."}
    text, parts = "", ""
    with contextlib.suppress(TemplateError):
        text = _rendered(template, [question], dict(special))
        if question["content"] not in text:
            parts = _rendered(template, [in_parts(question)], dict(special))
    return question["content"] in parts


def in_parts(message: Message) -> Message:
    """Return a message whose content is a list with one part of text, if it is a text."""
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


class Refused(TemplateError):
    """The template refuses the conversation. reason: what it, or else Jinja, says."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the model's chat template refused the conversation: {reason}; if there are tools or "
            "variables of the template, leave them out one by one"
        )
        self.reason = reason

    def about(self, index: int, role: str) -> Refused:
        """Return an error that names the message which the template refuses."""
        error = Refused(self.reason)
        error.index = index
        rule = _RULES.get(role, "change it, or leave it out")
        error.args = (
            f"the model's chat template refused messages[{index}], of the role {role!r:.40}: "
            f"{self.reason}; {rule}",
        )
        return error


_RULES = {
    "tool": "a result comes after the message that calls the tool; send both, or neither",
    "user": "send text, and let the assistant answer before the user speaks again",
}
"""What to do about a message of each role that a template refuses."""


def render(
    template: str,
    messages: Sequence[Message],
    special: Mapping[str, str],
    *,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Return a conversation as text for the tokenizer.

    messages: a content that is a text becomes a list of parts if the template needs that. special:
    the texts of special tokens by name. variables: further variables for the template, such as
    tools.

    Raises Refused if the template refuses the conversation, and TemplateError for a template that
    cannot be read, takes longer than 5 s or makes texts of more than 64 million characters.
    """
    if _writes_parts_only(template, tuple(sorted(special.items()))):
        messages = [*map(in_parts, messages)]
    told = {**(variables or {}), "add_generation_prompt": add_generation_prompt}
    return _rendered(template, messages, special, told)


def _rendered(
    template: str,
    messages: Sequence[Message],
    special: Mapping[str, str],
    variables: Mapping[str, Any] | None = None,
) -> str:
    compiled = _compiled(template)
    try:
        with Budget().used():
            told = {**special, **{name: weighed(each) for name, each in (variables or {}).items()}}
            told["messages"] = weighed([dict(m) for m in messages])
            text: str = compiled.render(told)
    except TooMuch as error:
        raise TemplateError(
            f"the model's chat template was stopped: {_short(error)}; shorten the conversation, or "
            "use the model with raw prompts"
        ) from error
    except Exception as error:  # a template is a program and can raise anything
        raise Refused(_short(error)) from error
    return text


def _short(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:500]
