"""The grammar of a whole answer, in llguidance's form of Lark: reasoning, text, calls of tools.

Texts that end at a marker are lazy: the marker is found wherever it begins, in the middle of a
draft too. A marker that is a control token is named by its id, any other is text. What an answer
may begin with is told apart in the first text, which must not begin with such a marker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .markers import ID, ID_LENGTH, ReasoningMarkers, ToolMarkers
from .options import AnswerOptions
from .schemas import arguments_schema
from .tools import Tool

Thought = Literal["open", "optional", "none", "forbidden"]
"""How an answer begins: inside of reasoning, perhaps with it, without; or it must not reason."""

_BLANKS = r"[ \t\n]{0,4}"


class AnswerGrammar:
    """Writes the grammar of one request. control: the ids of control tokens by their texts."""

    def __init__(
        self,
        tools: ToolMarkers | None,
        reasoning: ReasoningMarkers | None,
        control: Mapping[str, int],
    ) -> None:
        self._tools = tools
        self._reasoning = reasoning
        self._control = control
        self._rules: dict[str, str] = {}

    def write(self, options: AnswerOptions, thought: Thought, form: str | None) -> str:
        """Return the grammar of an answer, with `form` instead of free text where there is one."""
        starts = []
        if thought in ("open", "optional"):
            rest = self._rest(options, form, "rest", exclude_thought=False)
            starts.append(f"{self._thought(thought == 'open')} {rest}")
        if thought != "open":
            exclude = thought != "none"
            starts.append(self._rest(options, form, "first", exclude_thought=exclude))
        lines = [f"{name}: {body}" for name, body in self._rules.items()]
        return "\n".join(["%llguidance {}", f"start: {' | '.join(starts)}", *lines, ""])

    def _rule(self, name: str, body: str) -> str:
        self._rules[name] = body
        return name.partition("[")[0]

    # --- reasoning -----------------------------------------------------------------------------

    def _thought(self, is_open: bool) -> str:
        markers = self._reasoning
        assert markers
        begin = "" if is_open else markers.begin
        if begin in self._control or markers.end in self._control:
            before = self._rule("before", f"/{_BLANKS}/") + f" {self._text(begin)}" if begin else ""
            return f"{before} {self._until(markers.end, 'thought')}"
        opening = f"[ \\t\\n]*{_escaped(begin)}" if begin else ""
        return self._rule("thought[lazy]", f"/(?s:{opening}.*{_escaped(markers.end)})/")

    # --- what follows --------------------------------------------------------------------------

    def _rest(
        self, options: AnswerOptions, form: str | None, name: str, *, exclude_thought: bool
    ) -> str:
        """Return the rule of what an answer says and calls."""
        tools = options.callable_tools if self._tools else ()
        blanks = self._rule("blanks", f"/{_BLANKS}/") if name == "rest" else ""
        if tools and options.must_call:
            return self._rule(name, f"{blanks} {self._calls(options, tools)}")
        if form:
            calls = f" | {blanks} {self._calls(options, tools)}" if tools else ""
            return self._rule(name, f"{blanks} {form}{calls}")
        excluded = self._excluded(exclude_thought, bool(tools))
        if not tools:
            return self._free(name, excluded)
        return self._rule(name, self._mixed(options, tools, name, excluded))

    def _mixed(
        self, options: AnswerOptions, tools: Sequence[Tool], name: str, excluded: list[str]
    ) -> str:
        """Return text with calls in it."""
        assert self._tools
        free = self._free(f"{name}_text", excluded)
        if self._tools.is_bare:
            return f"{self._calls(options, tools)} | {free}"
        head = self._until(self._tools.trigger, f"{name}_head", excluded)
        group = self._group(options, tools)
        if not self._several(options):
            return f"{head} {group} | {free}"
        more = self._until(self._tools.trigger, "head")
        return f"{head} {group} ({more} {group})* {self._free('tail', [])} | {free}"

    def _several(self, options: AnswerOptions) -> bool:
        assert self._tools
        return options.parallel_tool_calls and options.tool_choice in ("auto", "required")

    def _calls(self, options: AnswerOptions, tools: Sequence[Tool]) -> str:
        """Return calls and nothing else, from their marker on."""
        assert self._tools
        group = f"{self._text(self._tools.trigger)} {self._group(options, tools)}"
        standing_alone = not self._tools.begin and not self._tools.is_bare
        if self._several(options) and standing_alone:
            group += f" ({self._rule('blanks', f'/{_BLANKS}/')} {group})*"
        return group

    # --- calls ---------------------------------------------------------------------------------

    def _group(self, options: AnswerOptions, tools: Sequence[Tool]) -> str:
        """Return one call, or several where they stand together, from behind the marker on."""
        markers = self._tools
        assert markers
        bodies = " | ".join(self._call(i, tool) for i, tool in enumerate(tools))
        call = self._rule("call", bodies)
        begun = self._text(markers.prefix[len(markers.trigger) :])
        body = f"{begun} {call}"
        if self._several(options) and markers.is_parallel and markers.between and markers.begin:
            body += f" ({self._text(markers.between + markers.opening)} {call})*"
        return self._rule("group", f"{body} {self._text(markers.end)}")

    def _call(self, index: int, tool: Tool) -> str:
        markers = self._tools
        assert markers
        separators = (markers.item_separator, markers.key_separator)
        schema = json.dumps(arguments_schema(tool, separators))
        name = self._text(tool.name + markers.after_name)
        return self._rule(f"call_{index}", f"{name} %json {schema} {self._text(markers.closing)}")

    # --- texts ---------------------------------------------------------------------------------

    def _excluded(self, thought: bool, tools: bool) -> list[str]:
        """Return the texts that an answer must not begin with where it is free text."""
        found = []
        if thought and self._reasoning and self._reasoning.begin not in self._control:
            found.append(self._reasoning.begin)
        if tools and self._tools and self._tools.is_bare:
            found.append(self._tools.trigger)
        return found

    def _free(self, name: str, excluded: Sequence[str]) -> str:
        return self._rule(name, self._terminal(name, "(?s:.*)", excluded))

    def _until(self, marker: str, name: str, excluded: Sequence[str] = ()) -> str:
        """Return text up to a marker, and the marker."""
        if marker in self._control:
            return f"{self._free(name, excluded)} <[{self._control[marker]}]>"
        pattern = f"(?s:.*{_escaped(marker)})"
        return self._rule(f"{name}[lazy]", self._terminal(name, pattern, excluded))

    def _terminal(self, name: str, pattern: str, excluded: Sequence[str]) -> str:
        if not excluded:
            return f"/{pattern}/"
        begins = "|".join(_escaped(text) for text in excluded if text)
        body = f"/{pattern}/ & ~/(?s:[ \\t\\n]*({begins}).*)/"
        return self._rule(name.upper(), body)

    def _text(self, text: str) -> str:
        """Return a marker as a sequence of texts, control tokens and ids."""
        parts = [re.escape(each) for each in (*sorted(self._control, key=len)[::-1], ID) if each]
        found = [part for part in re.split(f"({'|'.join(parts)})", text) if part]
        return " ".join(self._part(part) for part in found)

    def _part(self, part: str) -> str:
        if part == ID:
            return f"/[a-zA-Z0-9]{{{ID_LENGTH}}}/"
        if part in self._control:
            return f"<[{self._control[part]}]>"
        return json.dumps(part, ensure_ascii=False)


def _escaped(text: str) -> str:
    """Return a regular expression for a text, in Rust's form and without slashes."""
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def whole(lark: str, form: Mapping[str, Any] | None) -> str:
    """Return a grammar together with that of the form to which it refers as @form."""
    if form is None:
        return lark
    named = {key: value for key, value in form.items() if value is not None}
    return json.dumps({"grammars": [{"lark_grammar": lark}, named | {"name": "form"}]})
