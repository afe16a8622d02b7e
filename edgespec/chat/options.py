"""The options of a request for tool calls and reasoning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from .tools import Tool

_CHOICES = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The tools that an answer may call, and how the model may reason.

    tool_choice: "auto" lets the model decide, "none" forbids calls, "required" demands at least one
    call, and the name of a tool demands one call of that tool. parallel_tool_calls: True allows
    more than one call. template_kwargs: variables for the chat template, such as enable_thinking.
    reasoning_budget: the maximum number of tokens of reasoning; None means no limit, 0 means no
    reasoning.
    """

    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reasoning_budget: int | None = None

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"two tools are named {twice!r}; give each its own name")
        taken = next((name for name in names if name in _CHOICES), None)
        if taken is not None:
            raise ConfigError(
                f"a tool is named {taken!r}, which means something else as tool_choice; name it "
                "otherwise"
            )
        if self.tool_choice not in (*_CHOICES, *names):
            raise ConfigError(
                f"tool_choice is {self.tool_choice!r}, and must be auto, none, required or the "
                f"name of one of the {len(names)} tools"
            )
        if not names and self.tool_choice not in ("auto", "none"):
            raise ConfigError(f"tool_choice is {self.tool_choice!r}, and no tools were given")
        budget = self.reasoning_budget
        if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int)):
            raise ConfigError(f"reasoning_budget is a number of tokens or None, got {budget!r:.80}")
        if budget is not None and budget < 0:
            raise ConfigError(f"reasoning_budget must not be negative, got {budget}")

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that this answer may call."""
        if self.tool_choice in ("auto", "required"):
            return self.tools
        return tuple(tool for tool in self.tools if tool.name == self.tool_choice)

    @property
    def must_call(self) -> bool:
        """True if the answer must call a tool."""
        return self.tool_choice not in ("auto", "none")
