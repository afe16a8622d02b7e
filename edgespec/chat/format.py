"""The form of a model's answers, learned from its template: how it reasons and calls tools."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from ..backends.base import Tokenizer
from ..errors import ConfigError
from . import call_forms, templates
from .call_forms.base import CallForm, NotUnderstood
from .grammar import AnswerGrammar, Thought
from .markers import ContentMarkers, ReasoningMarkers
from .options import AnswerOptions
from .probes import Probe, wrapping
from .reader import Reader
from .reasoning import learn_reasoning


class AnswerFormat:
    """The form of a model's answers, learned from its chat template.

    tools: the form of tool calls, or None if the model has none; then `why_no_tools` says why.
    reasoning: the markers of reasoning, or None if there is none. content: the markers of content,
    or None if there are none.
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
        self.content = tools.content if tools else None

    @staticmethod
    def of(template: str | None, special: Mapping[str, str]) -> AnswerFormat:
        """Return the form of a model's answers. template: None for a model without one."""
        if not template:
            return AnswerFormat(None, None, "it has no chat template")
        return _learned(template, tuple(sorted(special.items())))

    @staticmethod
    def of_tokenizer(tokenizer: Tokenizer) -> AnswerFormat:
        """Return the form of a model's answers: that of its template for tools, if it has one."""
        template = tokenizer.tool_template or tokenizer.chat_template
        return AnswerFormat.of(template, tokenizer.special())

    @functools.cached_property
    def texts(self) -> str:
        """All markers in one text, in which control tokens can be searched."""
        known = [each for each in (self.reasoning, self.tools, self.content) if each]
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
            if self.tools and tool.strict:  # other tools are relaxed
                self.tools.arguments.check(tool)

    def grammar(
        self,
        options: AnswerOptions,
        rendered: str,
        form: str | None = None,
        control: Mapping[str, int | None] | None = None,
    ) -> str | None:
        """Return the grammar of an answer in llguidance's variant of Lark, or None for any answer.

        rendered: the prompt's text, which shows whether reasoning is open. form: the rule that the
        answer must follow after its reasoning. control: the ids of control tokens by their texts,
        with None for a token that ends answers.
        """
        thought = self._thought(options, rendered)
        limits = options.reasoning_budget is not None and thought != "none"
        if not (self.tools and options.tools) and not form and not limits:
            return None
        content = self._content(rendered)
        return AnswerGrammar(self.tools, self.reasoning, control or {}, content).write(
            options, thought, form
        )

    def _content(self, rendered: str) -> ContentMarkers | None:
        """Return the markers of content, without `begin` if the prompt has it."""
        known = self.content
        if not known or not known.begin or not rendered.rstrip().endswith(known.begin):
            return known
        return dataclasses.replace(known, begin="")

    def beginnings(self, options: AnswerOptions, rendered: str) -> list[str]:
        """Return the markers with which content in the requested form must not begin.

        With such a beginning it would be unclear whether reasoning, a call or the content begins.
        """
        if options.must_call or self.content:
            return []
        thinks = self.reasoning and self.beginning(rendered) == "optional"
        begins = [self.reasoning.begin] if self.reasoning and thinks else []
        return [*begins, self.tools.trigger] if self.tools and options.callable_tools else begins

    def reader(self, options: AnswerOptions, rendered: str, *, has_form: bool = False) -> Reader:
        """Return a reader for an answer to the prompt `rendered`.

        has_form: True if the request asks for a form.
        """
        tools = options.callable_tools if self.tools else ()
        thought = self.beginning(rendered)
        return Reader(
            self.tools if tools else None,
            self.reasoning if thought != "none" else None,
            tools=tools,
            is_open=thought == "open",
            has_form=has_form,
            content=self.content,
        )

    def variables(self, options: AnswerOptions) -> dict[str, Any]:
        """Return the template's variables, with tools and the value that turns reasoning off."""
        variables = dict(options.template_kwargs)
        switch = self.reasoning.switch if self.reasoning else None
        if options.reasoning_budget == 0 and switch and switch[0] not in variables:
            variables[switch[0]] = switch[1]
        if options.tools:
            tools = [tool.to_dict() for tool in options.tools]
            variables |= self.tools.variables(tools) if self.tools else {"tools": tools}
        return variables

    def _thought(self, options: AnswerOptions, rendered: str) -> Thought:
        thought = self.beginning(rendered)
        if options.reasoning_budget == 0 and thought == "optional":
            return "forbidden"
        return thought

    def beginning(self, rendered: str) -> Thought:
        """Return the state of reasoning at the beginning of an answer to this prompt."""
        markers = self.reasoning
        prompt = rendered.rstrip()
        if not markers or prompt.endswith(markers.end):
            return "none"
        return "open" if not markers.begin or prompt.endswith(markers.begin) else "optional"


@functools.lru_cache(maxsize=8)
def _learned(template: str, special: tuple[tuple[str, str], ...]) -> AnswerFormat:
    probe = Probe(template, dict(special))
    reasoning = learn_reasoning(template, probe)
    form = call_forms.known_form(probe, reasoning)
    if form:
        return AnswerFormat(form.reasoning or reasoning, form)
    wrapped = wrapping(probe, reasoning)
    if wrapped:
        return AnswerFormat(None, None, f"its chat template wraps answers in {wrapped!r:.40}")
    try:
        return AnswerFormat(reasoning, call_forms.learned_form(probe, reasoning))
    except NotUnderstood as error:
        return AnswerFormat(reasoning, None, str(error))
