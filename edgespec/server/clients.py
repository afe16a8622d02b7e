"""Identifies the client of a request, for its turn in queues and for the texts it may reuse."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

_SCOPE = "edgespec.client"


@dataclass(frozen=True, slots=True)
class Client:
    """The client that sent a request.

    turn: requests with the same `turn` share one place in queues. A machine without a valid key
    has one `turn`, whatever keys it makes up. owner: texts, sessions and memory are reused only
    among requests with the same `owner`.
    """

    turn: str
    owner: str


def client_of(scope: Scope) -> Client:
    """Return the client that sent a request."""
    if _SCOPE not in scope:  # a route outside `create_app`, where nothing checks keys
        remember(scope, ())
    client: Client = scope[_SCOPE]
    return client


def remember(scope: Scope, keys: Sequence[bytes]) -> bool:
    """Store in the scope which client sent a request. Return True if the request may be answered:
    it has one of the server's keys, or the server has no keys.

    A request with a valid key is identified by the key, whichever header has it. All others are
    identified by their address. If they have a key, it still distinguishes owners, because a proxy
    may have checked it.
    """
    given, address = sent_key(scope), address_of(scope)
    matches = [hmac.compare_digest(given, known) for known in keys]
    if any(matches):
        name = name_of(given)
        scope[_SCOPE] = Client(name, name)
        return True
    owner = f"{address} {hashlib.sha256(given).hexdigest()}" if given else str(address)
    scope[_SCOPE] = Client(str(address), owner)
    return not keys


def name_of(key: bytes) -> str:
    """Return the name of the client that has a key. It stays the same when keys are added or
    removed, and does not tell the key.
    """
    return f"key {hashlib.sha256(key).hexdigest()}"


def key_shown(scope: Scope) -> str | None:
    """Return the beginning of the hash of the key that a request was admitted with, None if it was
    admitted without one.
    """
    turn = client_of(scope).turn if _SCOPE in scope else ""
    return turn.removeprefix("key ")[:12] if turn.startswith("key ") else None


def is_operator(scope: Scope, metrics_key: bytes) -> bool:
    """Return True if a request may read metrics, which tell of all clients' requests: it has the
    key for metrics or, if the server has no such key, it comes from this machine.
    """
    if metrics_key:
        return hmac.compare_digest(sent_key(scope), metrics_key)
    try:
        return ipaddress.ip_address(address_of(scope) or "").is_loopback
    except ValueError:
        return False


def sent_key(scope: Scope) -> bytes:
    """Return the key in the headers of a request, b"" if there is none. OpenAI's clients send it
    as `Authorization: Bearer KEY`, Anthropic's as `x-api-key: KEY`.
    """
    headers = Headers(scope=scope)
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if not scheme:
        key = headers.get("x-api-key", "")
    elif scheme.lower() != "bearer":
        key = ""
    return key.strip().encode("utf-8", "surrogateescape")


def address_of(scope: Scope) -> str | None:
    """Return the address that a request comes from, None if it has none."""
    address = (scope.get("client") or (None,))[0]
    return address if isinstance(address, str) else None
