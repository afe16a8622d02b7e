"""All error messages and exit codes of the command line.

0 success · 1 failure · 2 usage · 130 Ctrl-C · 141 the program that reads our output has ended
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import click
import cloup

from .render import StdoutError, prepare_streams, say, say_json

FAILURE, USAGE, INTERRUPTED, NO_READER = 1, 2, 130, 141


class ErrorGroup(cloup.Group):
    """A command group that turns every error into a line on stderr and a fixed exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and return its result, which is the exit code."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, SystemExit):
            raise
        except BaseException as error:
            return report(error, debug=wants_debug())

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run the program and raise SystemExit with the exit code."""
        extra["standalone_mode"] = False
        prepare_streams()
        try:
            code = super().main(args, *rest, **extra)
            with contextlib.suppress(ValueError):  # stdout may be closed already
                sys.stdout and sys.stdout.flush()
        except Exception as error:  # raised before the command was known, or by the last flush
            code = report(error)
            if isinstance(error, OSError):
                _drop_stdout()  # else Python's own flush fails again, with a different exit code
        sys.exit(code if isinstance(code, int) else 0)


@contextlib.contextmanager
def told_in_json(as_json: bool) -> Iterator[None]:
    """With --json, also write an error object to stdout if Ctrl-C ends this block."""
    try:
        yield
    except KeyboardInterrupt:
        if as_json:
            say_json({"error": "KeyboardInterrupt", "message": "interrupted"})
        raise


def wants_debug() -> bool:
    """Return True if `edgespec` was called with --debug."""
    return bool(click.get_current_context().find_root().params.get("debug"))


def report(error: BaseException, debug: bool = False) -> int:
    """Describe the error on stderr and return the exit code."""
    if isinstance(error, BrokenPipeError):
        _drop_stdout()
        return NO_READER
    try:
        return _report(error, debug)
    except BrokenPipeError:
        return NO_READER


def _report(error: BaseException, debug: bool) -> int:
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        line(": ".join(["interrupted", *map(str, error.args)]))
        return INTERRUPTED
    if isinstance(error, StdoutError):
        _drop_stdout()
    if isinstance(error, click.ClickException):
        return _report_click(error)
    if debug:
        traceback.print_exception(type(error), error, error.__traceback__)
    if (code := known(error)) is not None:
        line(describe(error))
        return code
    line(
        f"{describe(error).rstrip('.')}. This is a bug in edgespec; "
        "`edgespec --debug …` (or EDGESPEC_DEBUG=1) shows where"
    )
    return FAILURE


def _report_click(error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
    elif context is not None and isinstance(error, click.UsageError):
        what = error.format_message().rstrip(".")
        if "unexpected extra argument" in what and "model" in context.params:
            what += "; -m names a model"
        line(f"{what} (see `{context.command_path} --help`)")
    else:
        line(error.format_message())
    return error.exit_code


def known(error: BaseException) -> int | None:
    """Return the exit code of an error that can happen in normal use, None for a bug."""
    import edgespec

    if isinstance(error, click.ClickException):
        return error.exit_code
    if isinstance(error, edgespec.EdgeSpecError):
        return USAGE if isinstance(error, edgespec.ConfigError) else FAILURE
    return FAILURE if isinstance(error, (OSError, MemoryError)) else None


def describe(error: BaseException) -> str:
    """Return the message of an error on one line, after the name of its class if the message alone
    does not explain the error.
    """
    if isinstance(error, click.ClickException):
        return error.format_message()
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return f"out of memory{f': {text}' if text else ''}; try a smaller model or context"
    import edgespec

    if isinstance(error, OSError) and error.strerror:
        return _of_system(error)
    if text and isinstance(error, (edgespec.EdgeSpecError, OSError)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _of_system(error: OSError) -> str:
    """Return a message for an OSError, with the file and the problem. If the file could not be
    written, the message also says what to do.
    """
    from edgespec import kept_files

    if error.errno not in kept_files.NOT_WRITTEN:
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    what = error.filename or "what stdout goes to, or a file,"
    return f"{what} cannot be used: {kept_files.obstacle(error, 'name a place')}"


def line(message: str) -> None:
    """Write an error message to stderr."""
    say(f"edgespec: error: {_shortened(message)}", err=True)


def _shortened(message: str, most: int = 1000) -> str:
    """Return a message, without its middle if it is long: it may quote a user's long input."""
    half = most // 2
    return message if len(message) <= most else f"{message[:half]} … {message[-half:]}"


def note(message: str) -> None:
    """Write to stderr a message that is not an error, but that the user should see."""
    say(f"edgespec: {message}", err=True)


def _drop_stdout() -> None:
    """Discard all text still buffered for stdout, so that the flush at exit cannot fail."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
