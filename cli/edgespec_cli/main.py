"""The group `edgespec` and its commands."""

from __future__ import annotations

import contextlib
import logging
import sys

import click
from click.shell_completion import get_completion_class

from . import options
from .bench import bench
from .chat import chat
from .convert import convert
from .errors import ErrorGroup
from .models import inspect, models, pull
from .run import run
from .serve import serve
from .tuning import doctor, tune

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        import edgespec

        click.echo(f"edgespec {edgespec.__version__}")
        ctx.exit()


@click.group(cls=ErrorGroup, name="edgespec", context_settings=_CONTEXT)
@click.option("--debug", is_flag=True, cls=options.Option, help="Show tracebacks.")
@click.option(
    "-v", "--verbose", count=True, cls=options.Option, help="Log to stderr; -vv says more."
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Show the version and exit.",
)  # fmt: skip
def cli(debug: bool, verbose: int) -> None:
    """Run quantised language models on this device, faster by lossless speculative decoding.

    Start with: edgespec chat
    """
    _prepare_streams()
    _log_to_stderr((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])


def _prepare_streams() -> None:
    """A character that the terminal cannot show is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def _log_to_stderr(level: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("edgespec: %(levelname)s: %(name)s: %(message)s"))
    for name in ("edgespec", "edgespec_cli"):
        logging.getLogger(name).handlers[:] = [handler]
        logging.getLogger(name).setLevel(level)


@click.command(cls=options.Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    bash: eval "$(edgespec completion bash)" in ~/.bashrc; zsh the same in ~/.zshrc;
    fish: edgespec completion fish > ~/.config/fish/completions/edgespec.fish
    """
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(cli, {}, "edgespec", "_EDGESPEC_COMPLETE").source())


for command in (bench, chat, run, serve, models, pull, inspect, convert, tune, doctor, completion):
    cli.add_command(command)
