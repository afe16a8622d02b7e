"""`edgespec serve`: the model for programs that speak OpenAI's API."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from . import options
from .loading import opened
from .render import neutral

if TYPE_CHECKING:
    import edgespec
    from edgespec.server.settings import ServerSettings
    from edgespec.server.verification.sessions import Sessions

_FILE = click.Path(path_type=Path)


def _server_option(*names: str, **settings: Any) -> Any:
    return click.option(*names, cls=options.Option, section="Server", **settings)


@click.command(cls=options.Command)
@options.model_options
@options.speculation_options
@options.sampling_options
@_server_option("--host", default="127.0.0.1", help="Where to listen.  [default: 127.0.0.1]")
@_server_option("--port", type=int, default=8080, help="0 takes a free one.  [default: 8080]")
@_server_option("--alias", metavar="NAME", help="Serve the model under this name.")
@_server_option(
    "--api-key-file", type=_FILE, metavar="FILE",
    help="Keys that clients must send, one a line; EDGESPEC_API_KEY adds its own.",
)  # fmt: skip
@_server_option("--tls-cert", type=_FILE, metavar="FILE", help="Certificate chain, PEM.")
@_server_option("--tls-key", type=_FILE, metavar="FILE", help="Its private key, PEM.")
@_server_option(
    "--insecure", is_flag=True,
    help="Listen beyond this machine although an API key or TLS is missing.",
)  # fmt: skip
@_server_option(
    "--cors-origin", multiple=True, metavar="ORIGIN",
    help="Let web pages from here call the server; repeatable.",
)  # fmt: skip
@_server_option(
    "--max-queue", type=int, default=32,
    help="Requests that may wait; more get 429 and a time to come again.  [default: 32]",
)  # fmt: skip
@_server_option(
    "--max-body-bytes", type=int, default=2 << 20, help="Largest request.  [default: 2097152]"
)
@_server_option(
    "--max-prompt-tokens", type=int, default=0, help="Longest prompt, 0 for the context."
)
@_server_option(
    "-np", "--parallel", type=click.IntRange(0, 256), default=16,
    help="Devices whose caches are there at a time, 0 to verify for none.  [default: 16]",
)  # fmt: skip
@_server_option(
    "--ctx-size-sessions", type=int, default=0, metavar="N",
    help="Tokens of cache for devices, by default as many as -c.",
)  # fmt: skip
@_server_option(
    "--max-sessions", type=click.IntRange(1), default=256,
    help="Devices with a session, those included that may come back.  [default: 256]",
)  # fmt: skip
@_server_option(
    "--grace", type=float, default=10.0, metavar="SECONDS",
    help="How long running answers may go on after Ctrl-C or SIGTERM.  [default: 10]",
)  # fmt: skip
@click.option(
    "-q", "--quiet", is_flag=True, cls=options.Option, section="Output",
    help="Log failures only, not every request.",
)  # fmt: skip
@options.pass_params
def serve(ctx: click.Context) -> int:
    """Serve a model through OpenAI's API and verify drafts of devices, until Ctrl-C or SIGTERM.

    OpenAI's API gives one answer at a time, parallel requests wait in turn; devices that use
    --verifier are evaluated together. Sampling options are for
    requests that do not name them. Log lines, one JSON object a request and never its text, go to
    stderr. See docs/server.md.
    """
    params = ctx.params
    settings = _settings(params)
    from edgespec.server import app  # says what is missing where the extra is not installed

    _log_as_json(quiet=params["quiet"])
    with contextlib.closing(app.bind(settings)) as sock, opened(params) as engine:
        how = engine.describe()["speculation"]
        sessions, why = _sessions(engine, settings, ctx)

        def announce(url: str) -> None:
            click.echo(
                f"serving {neutral(settings.model)} at {url} · OpenAI's API under {url}/v1 · "
                f"speculation: {how}"
            )
            if sessions is not None:
                click.echo(f"verifying for devices: --verifier ws{url.removeprefix('http')}")
            elif why:
                click.echo(f"verifying for no devices: {why}")

        with contextlib.closing(sessions) if sessions is not None else contextlib.nullcontext():
            app.serve(engine, settings, sock=sock, on_ready=announce, sessions=sessions)
    return 0


def _sessions(
    engine: edgespec.Engine, settings: ServerSettings, ctx: click.Context
) -> tuple[Sessions | None, str]:
    """What verifies for devices; None, and why, where this model cannot and nobody insists."""
    from edgespec import ConfigError, ModelError
    from edgespec.server.verification.sessions import Limits, serving

    params = ctx.params
    if not params["parallel"]:
        return None, ""
    limits = Limits(
        max_sessions=params["max_sessions"], max_prompt_tokens=params["max_prompt_tokens"]
    )
    try:
        found = serving(
            engine,
            name=settings.model,
            n_slots=params["parallel"],
            n_ctx=params["ctx_size_sessions"],
            limits=limits,
        )
    except (ConfigError, ModelError) as error:
        if ctx.get_parameter_source("parallel") is not ParameterSource.DEFAULT:
            raise
        return None, str(error)
    return found, ""


def _settings(params: dict[str, Any]) -> ServerSettings:
    from edgespec.server.settings import ServerSettings, read_keys

    return ServerSettings(
        model=params["alias"] or _name(params["model"]),
        host=params["host"],
        port=params["port"],
        api_keys=read_keys(params["api_key_file"]),
        tls_cert=params["tls_cert"],
        tls_key=params["tls_key"],
        insecure=params["insecure"],
        cors_origins=params["cors_origin"],
        max_queue=params["max_queue"],
        max_body_bytes=params["max_body_bytes"],
        max_prompt_tokens=params["max_prompt_tokens"],
        grace_s=params["grace"],
        sampling=options.sampling_arguments(params),
    )


def _name(model: str | None) -> str:
    """The catalogue's name, or that of the file: nobody outside needs to know its folder."""
    from edgespec.hub import catalogue

    reference = model or catalogue.default_model
    path = Path(reference).expanduser()
    return catalogue.label(path.resolve()) if path.exists() else reference


def _log_as_json(quiet: bool) -> None:
    """Lines of ours, and warnings of what the server is made of."""
    from edgespec.server.logs import JsonFormatter, is_not_logged_yet, logger

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    handler.addFilter(is_not_logged_yet)
    for name in ("edgespec", "edgespec_cli", "uvicorn", "asyncio"):
        logging.getLogger(name).handlers[:] = [handler]
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if not quiet:
        logger.setLevel(logging.INFO)
