"""The tools of a chat: functions in the user's own file. The user must allow each call."""

from __future__ import annotations

import inspect
import io
import itertools
import json
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .prompt import pressed_key
from .render import Screen, is_terminal, name

if TYPE_CHECKING:
    import edgespec

    from .conversation import Conversation

MOST_ROUNDS = 8  # most answers in one turn whose calls are run
_NOT_RUN = "not run: the user ended the turn"
_MOST_SHOWN = 300  # most characters of a result on the screen
_numbers = itertools.count(1)


def functions_of(path: Path) -> list[Callable[..., Any]]:
    """Run a Python file and return its public functions. Raises UsageError if that fails."""
    from edgespec import named_files

    try:
        source = named_files.read(path)
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror}") from None
    module = types.ModuleType(f"edgespec_tools_{next(_numbers)}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # type hints are looked up there
    try:
        with _folder(path.parent):
            code = compile(source, str(path), "exec", dont_inherit=True)
            exec(code, module.__dict__)  # the user's own file
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise click.UsageError(f"{path} fails: {type(error).__name__}: {error}") from None
    functions = [
        each
        for known, each in vars(module).items()
        if inspect.isfunction(each)
        and each.__module__ == module.__name__
        and not known.startswith("_")
    ]
    if not functions:
        raise click.UsageError(f"{path} defines no function whose name begins without _")
    for each in functions:
        if inspect.iscoroutinefunction(each):
            raise click.UsageError(f"{path}: {each.__name__} is async; write it without async")
    return list(dict.fromkeys(functions))


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Let a file in this folder import modules next to it, as a script can."""
    sys.path.insert(0, str(path.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(path.resolve()))


def listed(tools: tuple[edgespec.Tool, ...]) -> list[str]:
    """Return a line for each tool, with its name, its arguments and its description."""
    return [
        name(f"{tool.name}({', '.join(tool.parameters.get('properties', ()))})")
        + (f": {name(tool.description)}" if tool.description else "")
        for tool in tools
    ]


def results(talk: Conversation, calls: tuple[edgespec.ToolCall, ...]) -> tuple[list[Any], bool]:
    """Show each call, and run it if the user allows it. Return the results, and True if the user
    ended the turn.

    Ctrl-C at the question ends the turn: neither this call nor the later ones are run.
    """
    values: list[Any] = []
    try:
        for call in calls:
            values.append(_result(talk, call))
    except click.Abort:
        return values + [_NOT_RUN] * (len(calls) - len(values)), True
    return values, False


def _result(talk: Conversation, call: edgespec.ToolCall) -> Any:
    from edgespec.chat.pictures import text_of

    talk.screen.remark(f"call: {_shown(call)}")
    try:
        with redirect_stdout(_Printed(talk.screen)):
            result = talk.chat.run_tool(call, lambda _: _allowed(talk.screen))
    except KeyboardInterrupt:
        result = f"{call.name} was interrupted by the user"
    except SystemExit:
        result = f"{call.name} ended with sys.exit()"
    talk.screen.remark(f"result: {_brief(text_of(result))}")
    return result


def _shown(call: edgespec.ToolCall) -> str:
    """Return a call as one line, with the arguments that its function would get."""
    try:
        arguments = json.loads(call.arguments)
        pairs = [f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in arguments.items()]
    except (ValueError, AttributeError, RecursionError):  # such a call is not run
        return f"{name(call.name)} {_brief(call.arguments)}"
    return name(f"{call.name}({', '.join(pairs)})")


def _brief(text: str) -> str:
    return name(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…")


def can_ask(screen: Screen) -> bool:
    """Return True if there is a terminal on which the user can be asked."""
    return is_terminal(sys.stdin) and screen.terminal


def _allowed(screen: Screen) -> bool:
    """Ask the user to allow a call; return True for the key y, False for any other key.

    Keys that were typed before the question are ignored. Without a terminal, return False. Raises
    click.Abort if Ctrl-C is pressed.
    """
    if not can_ask(screen):
        return False
    try:
        key = pressed_key(lambda: screen.write("run it? (y runs it, any other key does not) "))
    except (KeyboardInterrupt, EOFError):
        screen.write("no\n")
        raise click.Abort from None
    allowed = key.rstrip("\r\n") in ("y", "Y")
    screen.write("yes\n" if allowed else "no\n")
    return allowed


class _Printed(io.TextIOBase):
    """A stream that shows on the screen the text that a tool's function prints."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def write(self, text: str) -> int:
        """Show a text."""
        self._screen.text(text)
        return len(text)
