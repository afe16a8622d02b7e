"""Chat templates: the model's own, rendered in a sandbox."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from ..errors import TemplateError

Message = Mapping[str, str]

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, ensure_ascii=False, **options
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise TemplateError(
            f"the model's chat template cannot be read: {error}; use the model with raw prompts"
        ) from error


def render(
    template: str,
    messages: Sequence[Message],
    special: Mapping[str, str],
    *,
    add_generation_prompt: bool = True,
) -> str:
    """Return the conversation as text for the tokenizer. Raises TemplateError."""
    try:
        text: str = _compiled(template).render(
            messages=[dict(m) for m in messages],
            add_generation_prompt=add_generation_prompt,
            **special,
        )
    except Exception as error:  # a template is a program of the model's
        raise TemplateError(
            f"the model's chat template refused the conversation: {error}"
        ) from error
    return text


def _refuse(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)
