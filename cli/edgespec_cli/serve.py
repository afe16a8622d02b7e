"""The command `edgespec serve`: serve a model over OpenAI's API, and to devices that draft."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import cloup
from click.core import ParameterSource

from edgespec.config import EngineConfig
from edgespec.server.settings import ServerSettings
from edgespec.setting import settings_of

from .arguments import forget_by_default, sampling_arguments
from .habits import remark_variables
from .loading import model_reference, opened
from .log_lines import of_a_server
from .options import (
    FILE,
    F,
    model_options,
    option,
    pass_params,
    sampling_options,
    setting,
    speculation_options,
)
from .render import counted, say, status
from .warming import read_beginning

if TYPE_CHECKING:
    import edgespec
    from edgespec.server.verification.sessions import Sessions


def _setting(name: str, **more: Any) -> Callable[[F], F]:
    """Declare the option for a setting of ServerSettings, with its default."""
    default = settings_of(ServerSettings)[name].default
    return setting(ServerSettings, name, default=default, **more)


@cloup.command()
@model_options
@speculation_options
@sampling_options
@cloup.option_group(
    "Server",
    _setting("host"),
    _setting("port"),
    option(
        "--alias",
        multiple=True,
        metavar="NAME",
        show_default="the model's name",
        help="Name by which clients know the model; can be given several times. Answers have the "
        "first name, and devices that draft know no other.",
    ),
    _setting("any_model"),
    option(
        "--warm",
        multiple=True,
        type=FILE,
        metavar="FILE",
        help="Read the beginning of prompts before the first request, and keep it for the requests "
        "of all API keys, also on this disk. FILE is a text, or a JSON object with messages and "
        "tools as OpenAI's API takes them. Can be given several times.",
    ),
    option(
        "--api-key-file",
        type=FILE,
        metavar="FILE",
        help="A file of keys, one on each line; clients must send one of them. After a key may "
        "come its limits: requests-per-minute=N tokens-per-day=N. The variable EDGESPEC_API_KEY "
        "can hold another key.",
    ),
    option(
        "--metrics-key-file",
        type=FILE,
        metavar="FILE",
        help="A file with a key that gives access to /metrics and to nothing else; the variable "
        "EDGESPEC_METRICS_KEY can hold it instead. Without such a key, only this machine can read "
        "metrics.",
    ),
    _setting("tls_cert", type=FILE, metavar="FILE"),
    _setting("tls_key", type=FILE, metavar="FILE"),
    _setting("insecure"),
    option(
        "--cors-origin",
        multiple=True,
        metavar="ORIGIN",
        help="Let web pages from this origin use the server; can be given several times.",
    ),
    option(
        "--allowed-host",
        multiple=True,
        metavar="NAME",
        help="If there is no API key, also accept requests that call the server by this name, such "
        "as host.docker.internal; can be given several times.",
    ),
    setting(
        EngineConfig,
        "n_slots",
        "--slots",
        default=0,
        show_default="as many as memory allows, at most 4",
        help="Number of API requests that are answered at once, each with a context of -c tokens.",
    ),
    _setting("max_queue"),
    _setting("requests_per_minute"),
    _setting("tokens_per_day"),
    _setting("request_log", type=FILE, metavar="FILE"),
    _setting("request_log_contents"),
    _setting("max_body_bytes", show_default="2 MiB, or 24 MiB if the model sees pictures"),
    option(
        "--allowed-media-domains",
        multiple=True,
        metavar="HOST",
        help="Fetch pictures that requests name by http: and https: addresses of this host; * for "
        "every host that is in no private network. Can be given several times.",
    ),
    _setting("allowed_local_media_path", type=FILE, metavar="FOLDER"),
    _setting("max_prompt_tokens"),
    _setting("grace_s", metavar="SECONDS"),
)
@cloup.option_group(
    "Verification for devices",
    option(
        "-np",
        "--parallel",
        type=click.IntRange(0, 256),
        default=16,
        help="Largest number of devices that have a KV cache here at the same time; 0 to verify no "
        "drafts. For requests to the APIs there is --slots.",
    ),
    option(
        "--ctx-size-sessions",
        type=click.IntRange(1, 2**31 - 1),
        metavar="N",
        show_default="as many as -c, if there is memory",
        help="Number of tokens that the caches of all devices hold together.",
    ),
    option(
        "--max-sessions",
        type=click.IntRange(1),
        default=256,
        help="Largest number of devices with a session, including disconnected devices that may "
        "come back.",
    ),
)
@cloup.option_group(
    "Output",
    option("-q", "--quiet", is_flag=True, help="Log only failures and not every request."),
)
@pass_params
def serve(ctx: click.Context) -> int:
    """Serve a model through OpenAI's API, and verify drafts of devices.

    Several requests to the APIs are answered at once, as --slots says. Devices that use --verifier
    send drafts, and the drafts of several devices are verified together. The sampling options are
    the defaults of requests that do not set them. Every request is logged as a line on stderr,
    without its text. If stderr is not a terminal, the lines are JSON objects. Ctrl-C or SIGTERM
    ends the server.
    """
    root = ctx.find_root().params
    with_module = bool(root.get("debug") or root.get("verbose"))
    with of_a_server(quiet=ctx.params["quiet"], with_module=with_module):
        remark_variables(os.environ)
        return _serve(ctx)


def _serve(ctx: click.Context) -> int:
    params = ctx.params
    settings = _settings(params)
    params["remember"] = _remembered(params["remember"])
    _check_memory(params, len(settings.api_keys))
    forget_by_default(params)
    from edgespec.server import app  # raises if the extra `server` is not installed

    beginnings = {path: read_beginning(path) for path in params["warm"]}
    with contextlib.closing(app.bind(settings)) as sock, opened(params) as engine:
        for path, beginning in beginnings.items():
            with status(f"reading {path}"):
                n_tokens = engine.warm(**beginning)
            say(f"{path}: {counted(n_tokens, 'token')} are read for all requests", err=True)
        sessions, why = _sessions(engine, settings, ctx)

        def announce(url: str) -> None:
            first = " (the model's speed is measured first)" if engine.idle_work.is_urgent else ""
            say(
                f"serving {settings.model} at {url} · OpenAI's API under {url}/v1 · "
                f"{_context(engine)} · {counted(engine.n_slots, 'slot')} · "
                f"speculation: {engine.describe()['speculation']}{first}"
            )
            say(f"sampling: {engine.sampling.describe(settings.sampling)}")
            if sessions is not None:
                say(f"verifying for devices: --verifier ws{url.removeprefix('http')}")
            elif why:
                say(f"verifying for no devices: {why}")

        def finishing(n_answers: int) -> None:
            with contextlib.suppress(OSError):  # answers are finished even if stderr is closed
                say(
                    f"finishing {counted(n_answers, 'answer')}, at most {settings.grace_s:g} s; "
                    "Ctrl-C again ends now"
                )

        with contextlib.closing(sessions) if sessions is not None else contextlib.nullcontext():
            app.serve(
                engine, settings, sock=sock, on_ready=announce, on_finishing=finishing,
                sessions=sessions, reread=lambda: _reread(params),
            )  # fmt: skip
    return 0


def _context(engine: edgespec.Engine) -> str:
    """Return a phrase with the context length, and what the model was trained for if that is
    more.
    """
    trained = getattr(engine.target, "n_ctx_train", 0)
    more = f" of the {trained} tokens it was trained for (-c N takes more)"
    return f"context {engine.n_ctx}{more if engine.n_ctx < trained else ''}"


def _check_memory(params: dict[str, Any], n_keys: int) -> None:
    """Raise UsageError if drafts for one user would come from the text of another user."""
    if params["draft_memory"] == "disk":
        raise click.UsageError(
            "--draft-memory disk keeps the answers of one user; `edgespec serve` takes process, "
            "which keeps those of each API key apart, or off"
        )
    if n_keys > 1 and params["draft_corpus"] not in ((), ("none",)):
        raise click.UsageError(
            f"--draft-corpus is for one user, and there are {n_keys} API keys: by the speed of an "
            "answer each could tell what the documents say; leave it out, or serve one key"
        )


def _sessions(
    engine: edgespec.Engine, settings: ServerSettings, ctx: click.Context
) -> tuple[Sessions | None, str]:
    """Return the sessions that verify drafts for devices, or None and the reason that this model
    cannot verify for them.

    If it cannot although --parallel or --ctx-size-sessions was given, the error is raised.
    """
    from edgespec import ConfigError, ModelError
    from edgespec.server.verification.sessions import serving
    from edgespec.server.verification.types import Limits

    params = ctx.params
    if not params["parallel"]:
        return None, ""
    limits = Limits(
        max_sessions=params["max_sessions"], max_prompt_tokens=params["max_prompt_tokens"]
    )
    try:
        sessions = serving(
            engine,
            name=settings.model,
            n_slots=params["parallel"],
            n_ctx=params["ctx_size_sessions"] or 0,
            limits=limits,
        )
    except (ConfigError, ModelError) as error:
        asked = ("parallel", "ctx_size_sessions")
        if any(ctx.get_parameter_source(name) is not ParameterSource.DEFAULT for name in asked):
            raise
        return None, str(error)
    return sessions, ""


def _remembered(given: str | None) -> str:
    """Return the value of --spec-remember for a server, "rates" by default. Raises UsageError for
    "all", which would share tokens between clients.
    """
    if given == "all":
        raise click.UsageError(
            "--spec-remember all would keep tokens of one client for drafts of another; choose "
            "rates or nothing"
        )
    return given or "rates"


def _reread(params: dict[str, Any]) -> ServerSettings:
    """Return the settings with the files of keys and certificates as they are now. Raises
    ConfigError.
    """
    from edgespec import ConfigError

    settings = _settings(params)
    try:
        _check_memory(params, len(settings.api_keys))
    except click.UsageError as error:
        raise ConfigError(error.message) from None
    return settings


def _settings(params: dict[str, Any]) -> ServerSettings:
    from edgespec.loading.models import served_name
    from edgespec.server.settings import read_key_limits, read_keys, read_metrics_key

    model, *aliases = params["alias"] or [served_name(model_reference(params))]
    return ServerSettings(
        model=model,
        aliases=tuple(aliases),
        any_model=bool(params["any_model"]),
        host=params["host"],
        port=params["port"],
        api_keys=read_keys(params["api_key_file"]),
        metrics_key=read_metrics_key(params["metrics_key_file"]),
        tls_cert=params["tls_cert"],
        tls_key=params["tls_key"],
        insecure=params["insecure"],
        cors_origins=params["cors_origin"],
        allowed_hosts=params["allowed_host"],
        max_queue=params["max_queue"],
        requests_per_minute=params["requests_per_minute"],
        tokens_per_day=params["tokens_per_day"],
        key_limits=read_key_limits(params["api_key_file"]),
        request_log=params["request_log"],
        request_log_contents=bool(params["request_log_contents"]),
        max_body_bytes=params["max_body_bytes"],
        allowed_media_domains=params["allowed_media_domains"],
        allowed_local_media_path=params["allowed_local_media_path"],
        max_prompt_tokens=params["max_prompt_tokens"],
        grace_s=params["grace_s"],
        sampling=sampling_arguments(params),
    )
