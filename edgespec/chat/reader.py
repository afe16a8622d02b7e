"""Reads an answer while it is generated: its reasoning, its content, and the tools that it calls.

The parts of an answer do not depend on how its text was cut into pieces: text that may be the
beginning of a marker is held back until that is certain.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from ..constraints.texts import BLANKS, overlap
from ..types import Part, ToolCall
from .call_forms.arguments import ArgumentsReader
from .call_forms.base import CallForm
from .call_forms.json_arguments import JsonReader
from .markers import ID_LENGTH, ContentMarkers, ReasoningMarkers
from .templates import TAG
from .texts import MOST_BLANKS, matched, may_match, until
from .tools import Tool


class Reader:
    """Takes the text of one answer in pieces and returns its parts.

    No text is lost. A text that begins like a call but is none is content, even if parts of it were
    returned as parts of a call: it names no tool, its arguments are not an object, or the answer
    ends before its arguments are complete. It is searched for other calls only after its arguments.
    Blanks next to markers belong to the markers.

    form: the form of calls. tools: the tools that may be called. is_open: True if the prompt has
    opened the reasoning. has_form: True if the request asks for a form. Then an answer that does
    not begin with a call is read as content only, because content may spell the markers of calls,
    for example in JSON text. content: the markers of content, if the model marks it.
    """

    def __init__(
        self,
        form: CallForm | None,
        reasoning: ReasoningMarkers | None,
        *,
        tools: Sequence[Tool] = (),
        is_open: bool = False,
        has_form: bool = False,
        content: ContentMarkers | None = None,
    ) -> None:
        self.content = ""
        self.reasoning = ""
        self.calls: tuple[ToolCall, ...] = ()
        self._form = form
        self._reasoning = reasoning
        self._tools = tools
        self._has_form = has_form
        self._marked = content
        self._gaps = {"content": "", "reasoning": ""}  # what separates the next text of a kind
        self._held = ""
        self._parts: list[Part] = []
        self._strips = is_open  # leave out blanks at the beginning of a text
        self._blanks = ""  # blanks before a possible call
        self._n_begun = 0
        self._call: ToolCall | None = None  # the call whose arguments are being read
        self._raw = ""  # the text of this call, with the blanks before it
        self._arguments: ArgumentsReader = JsonReader()
        self._step = self._in_reasoning if is_open else self._at_begin

    def feed(self, text: str) -> list[Part]:
        """Take more text of the answer and return the parts that are certain now."""
        self._held += text
        while self._held and self._step():
            pass
        parts, self._parts = self._parts, []
        return parts

    def end(self, *, is_cut: bool = False) -> list[Part]:
        """Return the parts that were held back. It is called once, when the answer has ended.

        is_cut: True if the model did not end the answer. What was returned of an unfinished call is
        then the beginning of a call, and not content.
        """
        if self._step == self._at_begin and self._marked and TAG.match(self._held.lstrip(BLANKS)):
            pass  # markers alone
        elif self._step in (self._at_begin, self._in_content):
            self._say(self._held)
        elif self._step == self._in_reasoning:
            self._think(self._held)
        elif self._step == self._at_call:
            self._say(self._blanks + self._held)
        elif self._step == self._in_arguments:
            self._say("" if is_cut else self._raw)
        elif not self._is_marker(self._held):
            self._say(self._held)
        self._held = ""
        parts, self._parts = self._parts, []
        return parts

    # --- steps: each takes the text that is certain; it returns False if more text is needed ----

    def _at_begin(self) -> bool:
        if self._marked:
            return self._at_part(self._marked)
        text = self._held.lstrip(BLANKS)
        thought = self._reasoning.begin if self._reasoning else ""
        call = self._first_trigger()
        is_text = self._has_form and len(self._held) - len(text) > MOST_BLANKS
        end = self._reasoning.end if self._reasoning else ""  # alone: the model did not reason
        steps = ((thought, self._in_reasoning), (end, self._in_reasoning), (call, self._at_call))
        for marker, step in steps if not is_text else ():
            if marker and text.startswith(marker):
                self._blanks = self._held[: len(self._held) - len(text)]
                self._held = text[len(marker) :] if marker == thought else text
                self._strips = self._strips or step == self._in_reasoning
                self._step = step
                return True
            if marker and marker.startswith(text):
                return False
        if self._has_form:
            self._form = None
        self._step = self._in_content
        return True

    def _at_part(self, content: ContentMarkers) -> bool:
        """Read the marker with which a part of an answer begins; without one, it is content."""
        form, thought = self._form, self._reasoning.begin if self._reasoning else ""
        parts = [(content.between, self._at_begin), (thought, self._in_reasoning)]
        parts += [
            (text, self._in_content) for text in (content.begin, content.aside, *content.others)
        ]
        parts += (
            [(form.begin + opening, self._at_call) for opening, _ in form.heads] if form else []
        )
        found = [
            (matched(f" {text.strip(BLANKS)}", self._held), step) for text, step in parts if text
        ]
        n, step = next((each for each in found if (each[0] or -1) >= 0), (None, self._in_content))
        if n is None and any(each[0] is None for each in found):
            return False
        self._blanks = ""
        if n is not None and step != self._at_call:
            self._held = self._held[n:]
            self._strips = step != self._at_begin
        for kind, said in (("content", self.content), ("reasoning", self.reasoning)):
            self._gaps[kind] = "\n\n" if said else ""
        self._step = step
        return True

    def _first_trigger(self) -> str:
        """Return the marker of calls if they are recognised only at the beginning of an answer.

        Otherwise return "".
        """
        form = self._form
        return form.trigger if form and (form.is_bare or self._has_form) else ""

    def _in_reasoning(self) -> bool:
        assert self._reasoning
        text, ended = self._take_until(self._reasoning.end)
        self._think(text)
        if ended:
            known = self._reasoning
            self._strips, self._reasoning = True, None
            if self._marked:  # which may reason again
                self._reasoning = known
            self._step = self._at_begin
        return ended

    def _in_content(self) -> bool:
        if self._marked:
            return self._in_marked(self._marked)
        if not self._form or self._form.is_bare:
            self._say(self._held)
            self._held = ""
            return False
        trigger = self._form.trigger
        text, triggered = self._take_until(trigger)
        self._say(text)
        if triggered:
            self._held = trigger + self._held
            self._step = self._at_call
        return triggered

    def _in_marked(self, content: ContentMarkers) -> bool:
        """Read content up to its end, or up to the next part if its end was left out."""
        at = [self._held.find(text) for text in (content.end, content.between) if text]
        ends = [n for n in at if n >= 0]
        text = self._held[: min(ends)] if ends else self._held
        if not ends:
            n = max(overlap(text, each) for each in (content.end, content.between) if each)
            text = text[: len(text) - n]
        self._say(text)
        self._held = self._held[len(text) :].removeprefix(content.end if ends else "")
        self._step = self._at_begin if ends else self._in_content
        return bool(ends)

    def _at_call(self) -> bool:
        """Read the beginning of the first call. If it is not a call, it is content."""
        assert self._form
        begun = self._begin_call(self._form.begin)
        if begun is False:
            n = len(self._form.trigger)
            self._say(self._blanks + self._held[:n])
            self._held = self._held[n:]
            self._step = self._in_content
        return begun is not None

    def _in_arguments(self) -> bool:
        assert self._call
        self._raw += self._held
        text, self._held = self._arguments.take(self._held)
        self._argue(text)
        if not self._arguments.is_complete:
            return False
        self._raw = self._raw[: len(self._raw) - len(self._held)]
        if self._arguments.is_valid:
            self.calls += (self._call,)
            self._step = self._after_arguments
        else:
            self._say(self._raw)
            self._step = self._in_content
        self._call = None
        return True

    def _after_arguments(self) -> bool:
        assert self._form
        n = self._matched(self._form.closings)
        if n is None:
            return False
        if n < 0 and self._form.is_bare:  # an object with more in it is an answer
            self.calls = self.calls[:-1]
            self._say(self._raw)
            self._step = self._in_content
            return True
        self._held = self._held[max(n, 0) :]
        self._step = self._after_call if self._form.begin else self._after_all
        return True

    def _after_call(self) -> bool:
        """Read the text between two calls of a group, or the text after the last one."""
        assert self._form
        self._blanks = ""
        begun = self._begin_call(self._form.between)
        if begun:
            return True
        n_end = self._matched((self._form.end,))
        if n_end is None or (begun is None and n_end < 0):
            return False
        self._held = self._held[max(n_end, 0) :]
        self._step = self._after_all
        return True

    def _matched(self, markers: Sequence[str]) -> int | None:
        """Return the length of one of these markers, and of blanks before it, as in `matched`."""
        found = [matched(f" {marker}" if marker else "", self._held) for marker in markers]
        known = [n for n in found if n is not None and n >= 0]
        return known[0] if known else None if None in found else -1

    def _is_marker(self, text: str) -> bool:
        """Return True if a text can be the beginning of the marker that follows a call."""
        assert self._form
        markers = (*self._form.closings, self._form.between, self._form.end)
        return any(may_match(f" {marker}", text) for marker in markers)

    def _after_all(self) -> bool:
        self._strips = True
        self._step = self._at_begin if self._marked else self._in_content
        return True

    # --- parts ---------------------------------------------------------------------------------

    def _begin_call(self, before: str) -> bool | None:
        """Begin a call if one comes after the marker `before`, and return True.

        Returns None if more text is needed, and False if no call begins here.
        """
        assert self._form
        form, needed = self._form, False
        follows = form.arguments.begins(form.closing)
        for opening, after_name in form.heads:
            at = matched(f" {before}{opening}", self._held)
            for tool in self._tools if at is not None and at >= 0 else ():
                named, text = tool.name + after_name, self._held[at:]
                found = [matched(named + following, text) for following in follows]
                if any(n is not None and n >= 0 for n in found):
                    self._begin(tool, (at or 0) + (matched(named, text) or 0))
                    return True
                needed = needed or None in found
            needed = needed or at is None
        return None if needed else False

    def _begin(self, tool: Tool, at: int) -> None:
        """Begin a call of a tool, whose arguments come at this place."""
        assert self._form
        self._raw, self._held = self._blanks + self._held[:at], self._held[at:]
        self._call = ToolCall(uuid.uuid4().hex[:ID_LENGTH], tool.name, "")
        self._parts.append(Part("call", "", self._n_begun, self._call.id, tool.name))
        self._n_begun += 1
        self._arguments = self._form.arguments.reader(tool, self._form.ends)
        self._step = self._in_arguments

    def _argue(self, text: str) -> None:
        if text and self._call:
            call = self._call
            self._call = ToolCall(call.id, call.name, call.arguments + text)
            self._parts.append(Part("call", text, self._n_begun - 1))

    def _say(self, text: str) -> None:
        text = self._separated("content", self._stripped(text))
        if text:
            self.content += text
            self._parts.append(Part("content", text))

    def _think(self, text: str) -> None:
        text = self._separated("reasoning", self._stripped(text))
        if text:
            self.reasoning += text
            self._parts.append(Part("reasoning", text))

    def _separated(self, kind: str, text: str) -> str:
        """Return a text after what separates it from the part of its kind before it."""
        if not text:
            return ""
        gap, self._gaps[kind] = self._gaps[kind], ""
        return gap + text

    def _stripped(self, text: str) -> str:
        if self._strips:
            text = text.lstrip(BLANKS)
            self._strips = not text
        return text

    def _take_until(self, marker: str) -> tuple[str, bool]:
        """Take the text before a marker, and the marker; return the text without blanks at its end.

        If the marker is not there, take the text that cannot belong to it. The second value is True
        if the marker was found.
        """
        text, rest, ended = until(marker, self._held)
        kept = text.rstrip(BLANKS)
        self._blanks = text[len(kept) :]
        self._held = rest if ended else self._blanks + rest
        return kept, ended
