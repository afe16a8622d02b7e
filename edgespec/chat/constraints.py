"""The constraint of a whole answer: its reasoning, its tool calls, and the form of its content."""

from __future__ import annotations

import dataclasses
import json

from ..config import SamplingParams
from ..constraints import schemas
from ..constraints.compiler import Constraints
from ..constraints.descriptions import Limit
from ..constraints.matcher import Unlimited
from ..errors import ConfigError
from ..sampling.base import Constraint
from ..types import Thought
from .argument_schemas import refused
from .call_forms.base import CallForm
from .format import AnswerFormat
from .forms import told_apart, whole
from .lenient import LenientTools
from .options import AnswerOptions
from .tools import Tool


class AnswerConstraints:
    """Compiles the constraints that the answers of a chat must follow.

    constraints: the compiler for the model's vocabulary. form: the form in which the model writes
    answers.
    """

    def __init__(self, constraints: Constraints, form: AnswerFormat) -> None:
        self._constraints, self._form = constraints, form
        self._lenient = LenientTools(lambda text: bool(constraints.tried("schema", text)[1]))

    def followed(
        self, options: AnswerOptions, owner: str = "", *, is_open: bool = True
    ) -> AnswerOptions:
        """Return options whose tools have schemas as grammars follow them: in tools that are not
        strict, all of these can be followed.

        The reader of an answer needs these options too. Templates get the original tools. is_open:
        allow arguments that a schema does not name, where it does not say whether it allows them.
        """
        tools = tuple(tool for tool, _ in self._tools(options.tools, owner, is_open=is_open))
        return dataclasses.replace(options, tools=tools)

    def _tools(
        self, tools: tuple[Tool, ...], owner: str, *, is_open: bool
    ) -> list[tuple[Tool, tuple[str, ...]]]:
        """Return tools with schemas that can be followed, each with notes on what is left out."""
        form = self._form.tools
        if form is None:
            return [(tool, ()) for tool in tools]
        return [self._lenient.tool(tool, form.arguments, owner, is_open=is_open) for tool in tools]

    def of(
        self, params: SamplingParams, options: AnswerOptions, rendered: str, owner: str = ""
    ) -> Constraint | None:
        """Return the constraint of an answer to the prompt `rendered`, or None if there is none.

        The constraint covers reasoning and tool calls. If the request asks for a form, the content
        after the reasoning must follow it. Raises ConfigError in the same cases as
        `Constraints.of`, and for options that the model cannot follow.
        """
        made, form = self._constraints, self._form
        is_open = params.additional_properties
        tools = self._tools(options.callable_tools, owner, is_open=is_open)
        notes = [note for _, each in tools for note in each]
        options = self.followed(options, owner, is_open=is_open)
        form.check(options)
        given, alone = made.given(params), made.of(params, owner)  # raises the form's own errors
        control = made.control(form.texts)
        shown = {id: text.encode() for text, id in control.items() if id is not None}
        begins, markers = form.beginning(rendered), form.reasoning
        thought = None
        if markers and begins != "none":
            thought = Thought(markers.begin, markers.end, begins == "open")
        lark = form.grammar(options, rendered, "@form" if given else None, control)
        if lark is None:
            return Unlimited(shown, thought) if shown or (thought and params.stop) else None
        if params.ignore_eos:
            raise ConfigError(
                "ignore_eos was given with tools or a reasoning_budget: such an answer ends where "
                "it is complete; leave ignore_eos out"
            )
        own = made.source(*given) if given else None
        if given and own and alone:
            others = form.beginnings(options, rendered)
            own = told_apart(given[0], own, others, alone.may_begin_with, made.tried)
        if form.tools:
            schemas.check_remainders([tool.parameters for tool in options.callable_tools])
            for tool in options.callable_tools:
                self._check_tool(tool, form.tools, owner)
        notes += alone.notes if alone else ()
        compiled = made.compiled(owner, "answer", whole(lark, own)).of_chat(shown, notes, thought)
        if options.reasoning_budget is None or not thought:
            return compiled
        return made.limited(compiled, Limit(options.reasoning_budget, *thought))

    def _check_tool(self, tool: Tool, form: CallForm, owner: str) -> None:
        """Raise ConfigError for a tool if one of its arguments has a schema that cannot be
        followed.
        """
        for before, schema in form.arguments.schemas(tool):
            error, inner = self._constraints.refusal(owner, json.dumps(schema))
            if error:
                raise refused(tool, error, before + inner, is_broken=False)
