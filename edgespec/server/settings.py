"""Settings of the server: its address, its keys and its limits. Needs no optional package."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import ssl
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from .. import kept_files
from ..backends.files import has_folder, stem_of
from ..config import SamplingParams, build
from ..errors import ConfigError
from ..setting import check
from .request_log import opened

KEY_VARIABLE = "EDGESPEC_API_KEY"
METRICS_KEY_VARIABLE = "EDGESPEC_METRICS_KEY"
_MOST_BYTES = 1 << 20  # largest size of a certificate, a key, or a file of keys
_LEAST_BODY, _READ_BODY, _SEEN_BODY = 1024, 2 << 20, 24 << 20  # bytes of a request

# the part of a URL between scheme and path: a name or an address, and perhaps a port
_AUTHORITY = re.compile(r"(?:(?P<name>[\w.-]+)|\[(?P<address>[\w.:%]+)\])(?::\d*)?", re.ASCII)
_ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://{_AUTHORITY.pattern}", re.ASCII)

logger = logging.getLogger("edgespec.server")


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one API key. 0 means no limit, None the limit that all keys have."""

    requests_per_minute: int | None = None
    tokens_per_day: int | None = None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one server. Raises ConfigError if they are impossible or unsafe."""

    model: Annotated[str, Meta(description="Name by which clients know the model.")]
    aliases: Annotated[
        tuple[str, ...], Meta(description="Further names by which clients may ask for the model.")
    ] = ()
    any_model: Annotated[
        bool,
        Meta(
            description="Answer requests whatever model they name, for programs whose model name "
            "cannot be set."
        ),
    ] = False
    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="Port to listen on, 0 for any free port.")
    ] = 8080
    api_keys: Annotated[
        tuple[str, ...],
        Meta(
            description="Clients must send one of these keys; without keys, everybody who reaches "
            "the port may use the server."
        ),
    ] = field(default=(), repr=False)
    metrics_key: Annotated[
        str,
        Meta(
            description="A key that gives access to /metrics and to nothing else. Without it only "
            "this machine can read metrics, because they cover the requests of all clients."
        ),
    ] = field(default="", repr=False)
    tls_cert: Annotated[Path | None, Meta(description="Certificate chain for TLS, as PEM.")] = None
    tls_key: Annotated[Path | None, Meta(description="Private key of the certificate, as PEM.")] = (
        None
    )
    insecure: Annotated[
        bool,
        Meta(description="Allow other machines to connect although there is no API key or no TLS."),
    ] = False
    cors_origins: Annotated[
        tuple[str, ...], Meta(description="Let web pages from these origins use the server.")
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="If there is no API key, also accept requests that call the server by one "
            "of these names, such as host.docker.internal."
        ),
    ] = ()
    max_queue: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 20,
            description="Largest number of waiting requests. Further ones are refused with status "
            "429 and the time after which to try again.",
        ),
    ] = 32
    requests_per_minute: Annotated[
        int,
        Meta(
            ge=0,
            description="Largest number of requests of one API key in a minute, 0 for no limit. "
            "Without keys, each address counts as one client.",
        ),
    ] = 0
    tokens_per_day: Annotated[
        int,
        Meta(
            ge=0,
            description="Largest number of tokens that one API key may use in a day (UTC), prompts "
            "and answers together; 0 for no limit.",
        ),
    ] = 0
    key_limits: Annotated[
        Mapping[str, KeyLimits],
        Meta(description="Limits of single API keys, in place of those of all keys."),
    ] = field(default_factory=dict, repr=False)
    request_log: Annotated[
        Path | None,
        Meta(description="A file to which a line is added for each request, without its contents."),
    ] = None
    request_log_contents: Annotated[
        bool,
        Meta(
            description="Also write the contents of requests and answers to the request log, "
            "without pictures."
        ),
    ] = False
    max_body_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 30,
            description="Largest size of a request in bytes, at least 1024; 0 for 2 MiB, or 24 MiB "
            "if the model sees pictures.",
        ),
    ] = 0
    allowed_media_domains: Annotated[
        tuple[str, ...],
        Meta(
            description="Fetch pictures that requests name by http: and https: addresses of these "
            "hosts; * for every host that is in no private network."
        ),
    ] = ()
    allowed_local_media_path: Annotated[
        Path | None,
        Meta(
            description="Read pictures that requests name by file: addresses, from this folder and "
            "the folders in it."
        ),
    ] = None
    max_prompt_tokens: Annotated[
        int,
        Meta(
            ge=0,
            description="Largest number of tokens in a prompt, 0 for the context length.",
        ),
    ] = 0
    max_prompts: Annotated[
        int,
        Meta(ge=1, le=1 << 16, description="Largest number of prompts in one completion request."),
    ] = 64
    arrival_s: Annotated[
        float,
        Meta(ge=0.1, le=3600, description="Seconds within which a request must have arrived."),
    ] = 30.0
    grace_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Seconds that running answers get to finish after Ctrl-C or SIGTERM.",
        ),
    ] = 10.0
    sampling: Annotated[
        Mapping[str, Any],
        Meta(description="Default sampling settings, for requests that do not set them."),
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        for name in self.names:
            if not name or not name.isprintable():
                raise ConfigError(f"the name of the served model must be a text, got {name!r}")
        for key in self.api_keys:
            _check_key(key)
        if self.metrics_key:
            _check_key(self.metrics_key)
        if self.metrics_key in self.api_keys:
            raise ConfigError("the key for metrics is a client's API key; expected is another one")
        for origin in self.cors_origins:
            _check_origin(origin)
        if not self.host or not self.host.isprintable():
            raise ConfigError(f"{self.host!r} is not an address or a name to listen on")
        for host in (*self.allowed_hosts, *{*self.allowed_media_domains} - {"*"}):
            _check_host(host)
        if 0 < self.max_body_bytes < _LEAST_BODY:
            raise ConfigError(
                f"max_body_bytes is {self.max_body_bytes}, expected at least {_LEAST_BODY}, or 0"
            )
        folder = self.allowed_local_media_path
        if folder is not None and not folder.is_dir():
            raise ConfigError(f"allowed_local_media_path {folder} is not a folder")
        build(SamplingParams, self.sampling)
        if self.request_log_contents and self.request_log is None:
            raise ConfigError("request_log_contents was given without request_log; name a file")
        if self.request_log:  # so that an error is told before a model is loaded
            os.close(opened(self.request_log))
        self._check_tls()
        self._check_exposure()

    def for_model(self, *, sees: bool) -> ServerSettings:
        """Return the settings for a model, with the size of requests that is meant by 0.

        sees: True if the model sees pictures.
        """
        most = self.max_body_bytes or (_SEEN_BODY if sees else _READ_BODY)
        return replace(self, max_body_bytes=most)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model: `model`, which answers have, and then its aliases."""
        return (self.model, *self.aliases)

    def serves(self, asked: str) -> bool:
        """Return True if a request for the model `asked` is answered."""
        return self.any_model or any(names(asked, name) for name in self.names)

    @property
    def loopback(self) -> bool:
        """True if only this machine can reach the server."""
        if self.host.endswith(".localhost"):  # the resolver may give any address to listen on
            return False
        return is_loopback(self.host)

    @property
    def known_hosts(self) -> frozenset[str]:
        """The hosts besides localhost that requests may be sent to, in the form of `host_of`."""
        return frozenset(map(host_of, self.allowed_hosts))

    @property
    def scheme(self) -> str:
        """The scheme of the server's URLs: http or https."""
        return "https" if self.tls_cert else "http"

    def _check_tls(self) -> None:
        if self.tls_cert is None and self.tls_key is None:
            return
        if self.tls_cert is None or self.tls_key is None:
            there, missing = ("key", "cert") if self.tls_key else ("cert", "key")
            raise ConfigError(f"tls_{there} was given without tls_{missing}; TLS needs both files")
        _readable(self.tls_cert)
        _secret(self.tls_key)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self.tls_cert, self.tls_key, password=lambda: b""
            )
        except (ssl.SSLError, ValueError) as error:
            mismatch = str(getattr(error, "reason", "")).endswith("MISMATCH")
            raise ConfigError(
                f"{self.tls_cert} and {self.tls_key} are no certificate and its key"
                f"{': the key belongs to another one' if mismatch else ''}; expected are two PEM "
                "files that belong together, the key without a passphrase"
            ) from None

    def _check_exposure(self) -> None:
        if self.loopback or self.insecure:
            return
        missing = [
            what
            for what, there in (("API key", self.api_keys), ("TLS", self.tls_cert))
            if not there
        ]
        if missing:
            raise ConfigError(
                f"{self.host} can be reached from other machines, but there is no "
                f"{' and no '.join(missing)}; give an API key "
                f"(--api-key-file or {KEY_VARIABLE}) and TLS files (--tls-cert, --tls-key), listen "
                "on 127.0.0.1, or say --insecure"
            )


def read_keys(
    path: Path | None,
    environment: Mapping[str, str] = os.environ,
    variable: str = KEY_VARIABLE,
) -> tuple[str, ...]:
    """Return the keys from a file and from an environment variable.

    The file has one key on each line, and perhaps limits after it; a line that begins with # is a
    comment. In the variable,
    blanks separate keys. Raises ConfigError if the file cannot be read, can be read by others, or
    holds no key.
    """
    keys = environment.get(variable, "").split()
    if path is not None:
        keys += [key for key, _ in _lines(path)]
    return _checked_keys(keys)


def read_key_limits(path: Path | None) -> dict[str, KeyLimits]:
    """Return the limits of the keys in a file that have limits of their own: the key is followed by
    requests-per-minute=N, tokens-per-day=N or both. Raises the errors of `read_keys`.
    """
    return {key: limits for key, limits in _lines(path) if limits} if path else {}


def read_metrics_key(path: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the key for metrics, "" if there is none.

    Raises ConfigError if there are several, and as `read_keys` does.
    """
    keys = read_keys(path, environment, METRICS_KEY_VARIABLE)
    if len(keys) > 1:
        raise ConfigError(
            f"there are {len(keys)} keys for metrics; expected is one, in a file or in "
            f"{METRICS_KEY_VARIABLE}"
        )
    return keys[0] if keys else ""


def _lines(path: Path) -> list[tuple[str, KeyLimits | None]]:
    """Return the keys in a file, each with its own limits or None. Raises ConfigError."""
    try:
        lines = _secret(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8; expected is one API key a line") from None
    keys = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            key, *given = line.split()
            keys.append((key, _limits(given, f"{path}, line {number}") if given else None))
    if not keys:
        raise ConfigError(f"{path} holds no API key; expected is one a line")
    return keys


def _limits(given: Sequence[str], where: str) -> KeyLimits:
    limits: dict[str, int] = {}
    for word in given:
        name, _, number = word.partition("=")
        known = name.replace("-", "_") in KeyLimits.__dataclass_fields__
        if not known or not (number.isascii() and number.isdecimal() and len(number) < 19):
            raise ConfigError(
                f"{where}: after the API key, which has no blanks, there is something other than a "
                "limit; expected is requests-per-minute=N or tokens-per-day=N"
            )
        limits[name.replace("-", "_")] = int(number)
    return KeyLimits(**limits)


def names(asked: str, model: str) -> bool:
    """Return True if `asked` means the model that is served as `model`: it is that name, or that
    name followed by the suffix of a model file that has no folder of its own.
    """
    return asked == model or (stem_of(asked) == model and not has_folder(asked))


def _checked_keys(keys: Sequence[str]) -> tuple[str, ...]:
    for key in keys:
        _check_key(key)
    return tuple(dict.fromkeys(keys))


def _check_key(key: str) -> None:
    if not key or not all("!" <= character <= "~" for character in key):
        raise ConfigError(
            "an API key must be printable ASCII without blanks, for example from "
            "`openssl rand -hex 32`; one of those given is not"
        )


def host_of(authority: str) -> str:
    """Return the host in a `Host` header or an origin, in lower case, without port and brackets.

    Returns "" if there is no valid host.
    """
    parts = _AUTHORITY.fullmatch(authority)
    return (parts["address"] or parts["name"].removesuffix(".")).lower() if parts else ""


def is_loopback(host: str) -> bool:
    """Return True if an address, or a name in lower case, always means this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # any other name may resolve to any address
        return False


def _check_host(host: str) -> None:
    if not host_of(host):
        raise ConfigError(
            f"{host!r} is not a host; expected is a name such as host.docker.internal"
        )


def _check_origin(origin: str) -> None:
    if not _ORIGIN.fullmatch(origin) or origin != origin.lower():
        raise ConfigError(
            f"{origin!r} is not an origin; expected is a scheme and a host such as "
            "https://app.example.com, in lower case and without a path"
        )


def _readable(path: Path) -> bytes:
    try:
        return kept_files.read(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read: {why}") from None


def _secret(path: Path) -> bytes:
    """Return the content of a file with a secret, which others should not be able to read.

    As with ssh, ConfigError is raised if others can read the current user's own file. The mode of
    another user's file cannot be changed, so there is only a warning, and only if everybody can
    read it. root may let a group read its own file, as Debian does with keys for TLS.
    """
    content = _readable(path)
    if os.name != "posix":
        return content
    status = path.stat()
    own, mode = status.st_uid == os.getuid(), stat.S_IMODE(status.st_mode)
    if not mode & (0o077 if own and status.st_uid else 0o007):
        return content
    message = f"{path} holds a secret, but others on this machine can read it (mode {mode:04o})"
    if own:
        raise ConfigError(f"{message}; run `chmod 600 {path}`")
    logger.warning("%s; its owner should run `chmod o= %s`", message, path)
    return content
