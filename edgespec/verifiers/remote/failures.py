"""Errors of sockets and of verification servers, turned into errors of ours."""

from __future__ import annotations

import ssl

from websockets.exceptions import InvalidHandshake, InvalidMessage, InvalidStatus, InvalidURI

from ... import protocol
from ...config import RemoteConfig
from ...errors import (
    ConfigError,
    ContextFull,
    EdgeSpecError,
    VerifierFault,
    VerifierRefused,
    VerifierUnavailable,
)

CONNECTING = (OSError, TimeoutError, InvalidHandshake, InvalidURI, ValueError)


def not_connected(error: Exception, remote: RemoteConfig, host: str) -> EdgeSpecError:
    """Return what an error of CONNECTING means, raised while a connection was made."""
    if isinstance(error, ssl.SSLCertVerificationError):  # an OSError and a ValueError as well
        return VerifierRefused(
            f"the certificate of {host} is not trusted: {error.verify_message}; name its file, or "
            "that of who signed it, in the environment variable SSL_CERT_FILE"
        )
    if isinstance(error, InvalidStatus):
        return _rejected(error.response.status_code, bool(remote.api_key), host)
    if isinstance(error, (OSError, TimeoutError, InvalidHandshake)):
        return VerifierUnavailable(
            f"no verification server answers at {host}: {reason(error)} ({_remedy(error, remote)})"
        )
    return ConfigError(
        f"{remote.url!r} is no address of a verification server; ws://host:port and "
        "wss://host:port are"
    )


def _remedy(error: Exception, remote: RemoteConfig) -> str:
    if isinstance(error, ssl.SSLError):
        return "does it speak TLS? ws:// is without"
    if isinstance(error, InvalidMessage) and remote.url.startswith("ws://"):
        return "does it want TLS? wss:// is with"
    return "does `edgespec serve` run there?"


def _rejected(status: int, with_key: bool, host: str) -> EdgeSpecError:
    if status in (401, 403) and not with_key:
        return VerifierRefused(
            f"{host} wants a key and none was given; give one as api_key, on the command line with "
            "--verifier-key-file or EDGESPEC_VERIFIER_KEY"
        )
    if status in (401, 403):
        return VerifierRefused(f"{host} refuses the key; give one that it knows")
    if status == 429 or status >= 500:
        return VerifierUnavailable(f"{host} has no room now (HTTP {status}); try again later")
    return VerifierRefused(f"{host} is no verification server: it answered with HTTP {status}")


def lost(error: Exception, host: str) -> VerifierUnavailable:
    """Return the error for a connection that broke."""
    return VerifierUnavailable(f"the connection to {host} is lost: {reason(error)}")


def told(error: protocol.Error, host: str) -> EdgeSpecError:
    """Return what an ERROR of the server means."""
    message = f"{host}: {error.message}"
    if error.code == protocol.CONTEXT_FULL:
        return ContextFull(message)
    if error.code in (protocol.CLOSING, protocol.INTERNAL, protocol.LIMIT):
        return VerifierUnavailable(message)
    if error.code == protocol.PROTOCOL:
        return VerifierFault(message)
    if error.code == protocol.CONSTRAINT:
        return ConfigError(message)
    return VerifierRefused(message)


def reason(error: BaseException) -> str:
    """Return the message of an error on one line, its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
