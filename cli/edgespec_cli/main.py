"""The command `edgespec` and its subcommands."""

from __future__ import annotations

import logging

import click
import cloup
from click.shell_completion import get_completion_class

from .bench import bench
from .build import build
from .cache import cache
from .chat import chat
from .convert import convert
from .corpus import corpus
from .default_model import default
from .habits import HabitGroup
from .log_lines import OURS, AboveStatus, PlainFormatter, handle
from .models import inspect, models
from .options import option
from .pull import pull
from .render import say
from .run import run
from .serve import serve
from .stored import list_, rm
from .train import train
from .tuning import doctor, tune

_CONTEXT = cloup.Context.settings(
    help_option_names=["-h", "--help"], max_content_width=100, show_default=True
)


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        import edgespec

        say(f"edgespec {edgespec.__version__}")
        ctx.exit()


@cloup.group(
    cls=HabitGroup, name="edgespec", context_settings=_CONTEXT, show_subcommand_aliases=True
)
@option("--debug", is_flag=True, help="Show tracebacks of errors.")
@option(
    "-v", "--verbose", count=True, show_default=False, help="Log to stderr; -vv logs more."
)  # fmt: skip
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Show the version and exit.",
)  # fmt: skip
def cli(debug: bool, verbose: int) -> None:
    """Run quantised language models on this device, made faster by lossless speculative decoding.

    Start with: edgespec chat

    A text without a command is a prompt: edgespec "Name a colour."
    """
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    _log_to_stderr(level, with_module=debug or verbose > 0)


def _log_to_stderr(level: int, *, with_module: bool) -> None:
    handler = AboveStatus()
    handler.setFormatter(PlainFormatter(with_module=with_module))
    handle(handler)
    for name in OURS:
        logging.getLogger(name).setLevel(level)


@cloup.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    With it, Tab completes commands, options and model names.

    \b
    bash: put  eval "$(edgespec completion bash)"  into ~/.bashrc
    zsh:  put  eval "$(edgespec completion zsh)"  into ~/.zshrc
    fish: edgespec completion fish > ~/.config/fish/completions/edgespec.fish
    """  # noqa: D301
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(cli, {}, "edgespec", "_EDGESPEC_COMPLETE").source())


cli.section("Answer", chat, run, serve, corpus, cache)
cli.section("Models", models, default, pull, list_, rm, inspect, convert, train)
cli.section("This device", doctor, tune, build, bench)
cli.section("Shell", completion)
