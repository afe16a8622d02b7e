"""The form of a model's answers, as its template tells it: how they reason and call tools."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError
from . import call_forms, templates
from .call_forms.base import CallForm, NotUnderstood
from .grammar import AnswerGrammar, Thought
from .markers import ReasoningMarkers
from .options import AnswerOptions
from .probes import Probe, wrapping
from .reader import Reader
from .reasoning import learn_reasoning


class AnswerFormat:
    """The form of a model's answers, learned from its chat template.

    tools: how it writes calls, None if it knows none, and then `why_no_tools` says why. reasoning:
    how it sets reasoning apart, None if it does not.
    """

    def __init__(
        self,
        reasoning: ReasoningMarkers | None,
        tools: CallForm | None,
        why_no_tools: str = "",
    ) -> None:
        self.reasoning = reasoning
        self.tools = tools
        self.why_no_tools = why_no_tools

    @staticmethod
    def of(template: str | None, special: Mapping[str, str]) -> AnswerFormat:
        """Return the form of a model's answers; None is a model without a template."""
        if not template:
            return AnswerFormat(None, None, "it has no chat template")
        return _learned(template, tuple(sorted(special.items())))

    @functools.cached_property
    def texts(self) -> str:
        """All markers in one text, to see what stands in them."""
        known = [each for each in (self.reasoning, self.tools) if each]
        return "\n".join(text for each in known for text in each.texts())

    def check(self, options: AnswerOptions) -> None:
        """Raise ConfigError for options that a model with this form cannot follow."""
        taken = [name for name in templates.RESERVED if name in options.template_kwargs]
        if taken:
            raise ConfigError(f"{taken[0]} cannot be set for the template; it is given by edgespec")
        if options.tools and options.tool_choice != "none" and not self.tools:
            raise ConfigError(
                f"this model cannot call tools: {self.why_no_tools}; leave tools out, or use a "
                "model that was trained with them"
            )
        for tool in options.callable_tools if self.tools else ():
            if self.tools and tool.strict:  # others lose what cannot be followed
                self.tools.arguments.check(tool)

    def grammar(
        self,
        options: AnswerOptions,
        rendered: str,
        form: str | None = None,
        control: Mapping[str, int | None] | None = None,
    ) -> str | None:
        """Return the grammar of an answer in llguidance's form of Lark; None if it is free.

        rendered: the prompt's text, which says whether reasoning is open. form: the rule that the
        answer follows after its reasoning. control: ids of control tokens by their texts,
        None for one that ends answers.
        """
        thought = self._thought(options, rendered)
        limits = options.reasoning_budget is not None and thought != "none"
        if not (self.tools and options.tools) and not form and not limits:
            return None
        return AnswerGrammar(self.tools, self.reasoning, control or {}).write(
            options, thought, form
        )

    def beginnings(self, options: AnswerOptions, rendered: str) -> list[str]:
        """Return the markers with which a form must not begin: nobody could tell whether reasoning
        or a call begins, or the form.
        """
        if options.must_call:
            return []
        thinks = self.reasoning and self.beginning(rendered) == "optional"
        begins = [self.reasoning.begin] if self.reasoning and thinks else []
        return [*begins, self.tools.trigger] if self.tools and options.callable_tools else begins

    def reader(self, options: AnswerOptions, rendered: str, *, has_form: bool = False) -> Reader:
        """Return what reads an answer to the prompt `rendered`; has_form: as the grammar has it."""
        tools = options.callable_tools if self.tools else ()
        thought = self.beginning(rendered)
        return Reader(
            self.tools if tools else None,
            self.reasoning if thought != "none" else None,
            tools=tools,
            is_open=thought == "open",
            has_form=has_form,
        )

    def variables(self, options: AnswerOptions) -> dict[str, Any]:
        """Return what the template is told: its variables, tools and whether to reason."""
        variables = dict(options.template_kwargs)
        switch = self.reasoning.switch if self.reasoning else None
        if options.reasoning_budget == 0 and switch and switch[0] not in variables:
            variables[switch[0]] = switch[1]
        if options.tools:
            variables["tools"] = [tool.to_dict() for tool in options.tools]
        return variables

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages as the template reads them: calls and reasoning in the form it wants."""
        return [self._message(message) for message in messages]

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        rendered = dict(message)
        key = self.reasoning.key if self.reasoning else ""
        if key and "reasoning_content" in rendered:
            rendered[key] = rendered.pop("reasoning_content")
        if rendered.get("tool_calls"):
            rendered["tool_calls"] = [self._call(call) for call in rendered["tool_calls"]]
        return rendered

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        arguments = function.get("arguments")
        takes_text = bool(self.tools and self.tools.takes_text)
        if isinstance(arguments, str) and not takes_text:
            function["arguments"] = _object_of(arguments)
        elif takes_text and not isinstance(arguments, str):
            function["arguments"] = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": function}

    def _thought(self, options: AnswerOptions, rendered: str) -> Thought:
        thought = self.beginning(rendered)
        if options.reasoning_budget == 0 and thought == "optional":
            return "forbidden"
        return thought

    def beginning(self, rendered: str) -> Thought:
        """Return how an answer begins after a prompt."""
        markers = self.reasoning
        prompt = rendered.rstrip()
        if not markers or prompt.endswith(markers.end):
            return "none"
        return "open" if not markers.begin or prompt.endswith(markers.begin) else "optional"


def _object_of(text: str) -> Any:
    """Return arguments as an object; a call that was cut stays text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


@functools.lru_cache(maxsize=8)
def _learned(template: str, special: tuple[tuple[str, str], ...]) -> AnswerFormat:
    probe = Probe(template, dict(special))
    reasoning = learn_reasoning(template, probe)
    wrapped = wrapping(probe, reasoning)
    if wrapped:
        return AnswerFormat(None, None, f"its chat template wraps answers in {wrapped!r:.40}")
    try:
        return AnswerFormat(reasoning, call_forms.form_of(probe, reasoning))
    except NotUnderstood as error:
        return AnswerFormat(reasoning, None, str(error))
