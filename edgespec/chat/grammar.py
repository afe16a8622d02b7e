"""The grammar of a whole answer in llguidance's variant of Lark: reasoning, text and tool calls.

Texts that end at a marker are lazy: the marker is found wherever it begins, also in the middle of a
draft. A marker that is a control token is named by its id; any other marker is text. The first text
of an answer must not begin with a marker, so that reasoning, calls and text can be told apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from ..errors import ConfigError
from .call_forms.base import CallForm
from .forms import not_beginning_with
from .markers import ID, ID_LENGTH, INDEX, INDEX_LENGTH, ContentMarkers, ReasoningMarkers
from .options import AnswerOptions
from .texts import MOST_BLANKS, escaped
from .tools import Tool

Thought = Literal["open", "optional", "none", "forbidden"]
"""The reasoning at the beginning of an answer: it is open, optional, not there, or forbidden."""

_BLANKS = rf"[ \t\n]{{0,{MOST_BLANKS}}}"


class AnswerGrammar:
    """Writes the grammar of one request.

    control: the ids of control tokens by their texts, with None for a token that ends answers.
    content: the markers of content, if the model marks it.
    """

    def __init__(
        self,
        tools: CallForm | None,
        reasoning: ReasoningMarkers | None,
        control: Mapping[str, int | None],
        content: ContentMarkers | None = None,
    ) -> None:
        self._tools = tools
        self._content = content
        self._reasoning = reasoning
        self._control = control
        self._rules: dict[str, str] = {}

    def write(self, options: AnswerOptions, thought: Thought, form: str | None) -> str:
        """Return the grammar of an answer. form: a rule for its content, or None for free text."""
        starts = []
        if thought in ("open", "optional"):
            rest = self._rest(options, form, "rest", exclude_thought=False)
            between = self.text(self._content.between) if self._content else ""
            starts.append(f"{self._thought(thought == 'open')} {between} {rest}")
        if thought != "open":
            exclude = thought != "none"
            starts.append(self._rest(options, form, "first", exclude_thought=exclude))
        lines = [f"{name}: {body}" for name, body in self._rules.items()]
        return "\n".join(["%llguidance {}", f"start: {' | '.join(starts)}", *lines, ""])

    def rule(self, name: str, body: str) -> str:
        """Add a rule and return its name. name: ends with [lazy] if the rule is lazy."""
        self._rules[name] = body
        return name.partition("[")[0]

    # --- reasoning -----------------------------------------------------------------------------

    def _thought(self, is_open: bool) -> str:
        markers = self._reasoning
        assert markers
        begin = "" if is_open else markers.begin
        if begin in self._control or markers.end in self._control:
            return f"{self.text(begin)} {self.until(markers.end, 'thought')}"
        opening = f"{_BLANKS}{escaped(begin)}" if begin else ""
        return self.rule("thought[lazy]", f"/(?s:{opening}.*{escaped(markers.end)})/")

    # --- what follows --------------------------------------------------------------------------

    def _rest(
        self, options: AnswerOptions, form: str | None, name: str, *, exclude_thought: bool
    ) -> str:
        """Return the rule for the content and the calls of an answer."""
        tools = options.callable_tools if self._tools else ()
        if self._content:
            return self.rule(name, self._marked(self._content, options, tools, form))
        blanks = self.rule("blanks", f"/{_BLANKS}/") if name == "rest" else ""
        if tools and options.must_call:
            return self.rule(name, f"{blanks} {self._calls(options, tools)}")
        if form:
            calls = f" | {blanks} {self._calls(options, tools)}" if tools else ""
            return self.rule(name, f"{blanks} {form}{calls}")
        excluded = self._excluded(options, exclude_thought)
        if not tools:
            return self._free(name, excluded)
        return self.rule(name, self._mixed(options, tools, name, excluded))

    def _marked(
        self,
        content: ContentMarkers,
        options: AnswerOptions,
        tools: Sequence[Tool],
        form: str | None,
    ) -> str:
        """Return the grammar of an answer whose content has markers: a call, or content."""
        end = f"({self.text(content.end)})?" if self._control.get(content.end) else ""
        said = f"{self.text(content.begin)} {form or self._free('said', [])} {end}"
        if not tools:
            return said
        assert self._tools
        begun = self.text(self._tools.begin)
        several = f" ({self.text(self._tools.between)} {self._head(options, tools)})*"
        calls = f"{begun} {self._head(options, tools)}{several if self._several(options) else ''}"
        calls = f"{calls} {self.text(self._tools.end)}"
        if content.aside and not options.must_call:
            aside = f"{self.text(content.aside)} {self.until(content.end, 'aside')}"
            calls = f"({aside} {self.text(content.between)})? {calls}"
        return calls if options.must_call else f"{calls} | {said}"

    def _head(self, options: AnswerOptions, tools: Sequence[Tool]) -> str:
        """Return the grammar of one call from its `opening` on."""
        assert self._tools
        form, calls = self._tools, []
        for i, tool in enumerate(tools):
            heads = [
                f"{self.text(before)} {self.text(tool.name + after)}"
                for before, after in form.heads
            ]
            arguments = form.arguments.rule(self, i, tool, form.ends)
            calls.append(self.rule(f"call_{i}", f"({' | '.join(heads)}) {arguments}"))
        return self.rule("call", " | ".join(calls))

    def _mixed(
        self, options: AnswerOptions, tools: Sequence[Tool], name: str, excluded: list[str]
    ) -> str:
        """Return the grammar of text that may contain calls."""
        assert self._tools
        free = self._free(f"{name}_text", excluded)
        if self._tools.is_bare:
            return f"{self._bare_calls(tools)} | {free}"
        head = self.until(self._tools.trigger, f"{name}_head", excluded)
        group = self._group(options, tools)
        if not self._several(options):
            return f"{head} {group} | {free}"
        more = self.until(self._tools.trigger, "head")
        return f"{head} {group} ({more} {group})* {self._free('tail', self._spelled())} | {free}"

    def _bare_calls(self, tools: Sequence[Tool]) -> str:
        """Return the grammar of one call without a marker, at the beginning of an answer.

        Only from its name on is it different from an answer that happens to be such an object.
        """
        assert self._tools
        form, calls = self._tools, []
        for i, tool in enumerate(tools):
            begun = self.rule(f"begun_{i}", f"/{_BLANKS}{escaped(self._begun(tool))}/")
            arguments = form.arguments.rule(self, i, tool, form.ends)
            calls.append(f"{begun} {arguments} {self.text(form.end)}")
        return " | ".join(calls)

    def _begun(self, tool: Tool) -> str:
        """Return the text of a call up to its arguments."""
        assert self._tools
        return self._tools.prefix + tool.name + self._tools.after_name

    def _several(self, options: AnswerOptions) -> bool:
        assert self._tools
        several = options.parallel_tool_calls and options.tool_choice in ("auto", "required")
        return several and self._tools.is_parallel

    def _calls(self, options: AnswerOptions, tools: Sequence[Tool]) -> str:
        """Return the grammar of calls without text, beginning with their marker."""
        assert self._tools
        group = f"{self.text(self._tools.trigger)} {self._group(options, tools)}"
        standing_alone = not self._tools.begin and not self._tools.is_bare
        if self._several(options) and standing_alone:
            group += f" ({self.rule('blanks', f'/{_BLANKS}/')} {group})*"
        return group

    # --- calls ---------------------------------------------------------------------------------

    def _group(self, options: AnswerOptions, tools: Sequence[Tool]) -> str:
        """Return the grammar of one call, or of a group of calls, beginning after the marker."""
        markers = self._tools
        assert markers
        bodies = " | ".join(self._call(i, tool) for i, tool in enumerate(tools))
        call = self.rule("call", bodies)
        begun = self.text(markers.prefix[len(markers.trigger) :])
        body = f"{begun} {call}"
        if self._several(options) and markers.begin:
            body += f" ({self.text(markers.between + markers.opening)} {call})*"
        return self.rule("group", f"{body} {self.text(markers.end)}")

    def _call(self, index: int, tool: Tool) -> str:
        markers = self._tools
        assert markers
        arguments = markers.arguments.rule(self, index, tool, markers.ends)
        name = self.text(tool.name + markers.after_name)
        return self.rule(f"call_{index}", f"{name} {arguments}")

    # --- texts ---------------------------------------------------------------------------------

    def _excluded(self, options: AnswerOptions, thought: bool) -> list[str]:
        """Return expressions for texts that must not come at the beginning of an answer."""
        excluded = []
        if thought and self._reasoning:
            excluded.append(_beginning_with(self._reasoning.begin))
        if options.tools and self._tools:
            if self._tools.is_bare:
                excluded.append(_beginning_with(*map(self._begun, options.tools)))
            else:
                excluded += self._spelled(all_kinds=not options.callable_tools)
        return excluded

    def _spelled(self, *, all_kinds: bool = False) -> list[str]:
        """Return expressions for texts that contain the marker of calls, if it is a control token.

        Text must not spell that marker, because a reader of the answer could not tell its text from
        the token. all_kinds: exclude the marker also if it is not a control token.
        """
        assert self._tools
        trigger = self._tools.trigger
        return [f".*{escaped(trigger)}.*"] if all_kinds or trigger in self._control else []

    def has_control(self, *texts: str) -> bool:
        """Return True if a control token occurs in one of these markers."""
        return any(each in text for text in texts for each in self._control)

    def lazy(
        self, name: str, pattern: str, excluded: Sequence[str] = (), also: Sequence[str] = ()
    ) -> str:
        """Return a rule for the shortest text that matches a pattern and all of `also`.

        excluded: expressions for texts that do not match.
        """
        return self.rule(f"{name}[lazy]", self._terminal(name, pattern, excluded, also))

    def _free(self, name: str, excluded: Sequence[str]) -> str:
        return self.rule(name, self._terminal(name, "(?s:.*)", excluded))

    def until(
        self,
        marker: str,
        name: str,
        excluded: Sequence[str] = (),
        lengths: tuple[int, int | None] = (0, None),
    ) -> str:
        """Return the grammar of text up to a marker, and the marker.

        lengths: the least and most characters of the text.
        """
        least, most = lengths
        count = "*" if lengths == (0, None) else f"{{{least},{'' if most is None else most}}}"
        if marker in self._control:
            before = dict.fromkeys((*excluded, f".*{escaped(marker)}.*"))
            rule = self.rule(name, self._terminal(name, f"(?s:.{count})", list(before)))
            return f"{rule} {self._part(marker)}"
        pattern = f"(?s:.{count}{escaped(marker)})"
        late = [f"(?s:.{{{n}}}{not_beginning_with(marker)})" for n in range(least)]
        return self.lazy(name, pattern, excluded, late)

    def _terminal(
        self, name: str, pattern: str, excluded: Sequence[str], also: Sequence[str] = ()
    ) -> str:
        """Return a terminal that matches a pattern and all of `also`, but none of `excluded`."""
        if not excluded and not also:
            return f"/{pattern}/"
        others = "".join(f" & /{each}/" for each in also)
        others += "".join(f" & ~/(?s:{text})/" for text in excluded)
        return self.rule(name.upper(), f"/{pattern}/{others}")

    def text(self, text: str) -> str:
        """Return the grammar of a marker: a sequence of texts, control tokens and placeholders.

        It stops before a token that ends the answer.
        """
        holes = (*sorted(self._control, key=len, reverse=True), ID, INDEX)
        parts = re.split(f"({'|'.join(map(re.escape, holes))})", text)
        ends = next((i for i, part in enumerate(parts) if self._control.get(part, 0) is None), None)
        return " ".join(self._part(part) for part in parts[:ends] if part)

    def _part(self, part: str) -> str:
        if part == ID:
            return f"/[a-zA-Z0-9]{{{ID_LENGTH}}}/"
        if part == INDEX:
            return f"/[0-9]{{1,{INDEX_LENGTH}}}/"
        if part in self._control:
            token = self._control[part]
            if token is None:
                raise ConfigError(
                    f"the model marks calls with {part!r:.40}, which ends its answers"
                )
            return f"<[{token}]>"
        return json.dumps(part, ensure_ascii=False)


def _beginning_with(*texts: str) -> str:
    return f"[ \\t\\n]*(?:{'|'.join(map(escaped, texts))}).*"
