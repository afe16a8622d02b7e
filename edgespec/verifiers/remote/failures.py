"""Translation of errors of sockets and verification servers into edgespec's own errors."""

from __future__ import annotations

import os
import ssl

import msgspec
from websockets.exceptions import InvalidHandshake, InvalidMessage, InvalidStatus, InvalidURI
from websockets.http11 import Response

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

_TIME = (9, 10)  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH

CONNECTING = (OSError, TimeoutError, InvalidHandshake, InvalidURI, ValueError)


class _Error(msgspec.Struct):
    message: str


class _Answer(msgspec.Struct):
    error: _Error


def not_connected(error: Exception, remote: RemoteConfig, host: str) -> EdgeSpecError:
    """Return edgespec's error for an exception, of a type in CONNECTING, raised by connecting."""
    if isinstance(error, ssl.SSLCertVerificationError):  # an OSError and a ValueError as well
        why = reason(error.verify_message).rstrip(".")
        return VerifierRefused(
            f"the certificate of {host} is not trusted: {why}; {_cure(error.verify_code)}"
        )
    if isinstance(error, InvalidStatus):
        return _rejected(error.response, bool(remote.api_key), host)
    if isinstance(error, (OSError, TimeoutError, InvalidHandshake)):
        return VerifierUnavailable(
            f"no verification server answers at {host}: {reason(error)} ({_remedy(error, remote)})"
        )
    return ConfigError(
        f"{remote.url!r} is no address of a verification server; ws://host:port and "
        "wss://host:port are"
    )


def _cure(verify_code: int) -> str:
    """Return advice for a certificate that OpenSSL refuses with this code."""
    if verify_code in _TIME:
        return "it needs a new one, or the clock of one of the two machines is wrong"
    if verify_code in _NAME:
        return "use an address that the certificate names, or make one for this address"
    named = os.environ.get("SSL_CERT_FILE")
    return "name its file, or that of who signed it, in the environment variable SSL_CERT_FILE" + (
        f", which is now {named}" if named else ""
    )


def _remedy(error: Exception, remote: RemoteConfig) -> str:
    if isinstance(error, ssl.SSLError):
        return "does it speak TLS? ws:// is without"
    if isinstance(error, InvalidMessage) and remote.url.startswith("ws://"):
        return "does it want TLS? wss:// is with"
    return "does `edgespec serve` run there?"


def _rejected(response: Response, with_key: bool, host: str) -> EdgeSpecError:
    status = response.status_code
    if status == 401 and not with_key:
        return VerifierRefused(
            f"{host} wants a key and none was given; give one as api_key, on the command line with "
            "--verifier-key-file or EDGESPEC_VERIFIER_KEY"
        )
    if status == 401:
        return VerifierRefused(f"{host} refuses the key; give one that it knows")
    if status == 403:  # `edgespec serve` gives a message, for example for an unknown host name
        key = "another key" if with_key else "a key"
        why = _message(response.body) or f"it verifies for no devices, or wants {key}"
        return VerifierRefused(f"{host} refuses the connection: {why}")
    if status == 429 or status >= 500:
        return VerifierUnavailable(f"{host} has no room now (HTTP {status}); try again later")
    return VerifierRefused(f"{host} is no verification server: it answered with HTTP {status}")


def _message(body: bytes | bytearray) -> str:
    """Return the message of an error of `edgespec serve`, "" if the body is anything else."""
    try:
        return reason(msgspec.json.decode(body, type=_Answer).error.message)[:500]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def lost(error: Exception, host: str) -> VerifierUnavailable:
    """Return the error for a connection that broke."""
    return VerifierUnavailable(f"the connection to {host} is lost: {reason(error)}")


def told(error: protocol.Error, host: str) -> EdgeSpecError:
    """Return edgespec's error for an ERROR frame of the server."""
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


def reason(error: BaseException | str) -> str:
    """Return the message of an error on one line, or its type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__
