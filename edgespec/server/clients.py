"""Says who a request belongs to: whose turn it takes, whose texts it may reuse, who operates."""

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
    """Who sent a request.

    turn: requests with the same name share a place in queues; one machine is one name, whatever
    keys it makes up. owner: texts, sessions and memory are reused within one owner only.
    """

    turn: str
    owner: str


def client_of(scope: Scope) -> Client:
    """Return who sent a request."""
    if _SCOPE not in scope:  # a route outside `create_app`, where nothing checks keys
        remember(scope, ())
    client: Client = scope[_SCOPE]
    return client


def remember(scope: Scope, keys: Sequence[bytes]) -> bool:
    """Note in the scope who sent a request, and return whether it may be answered: it brings one of
    the keys, or the server has none.

    Where a server has keys, the key is the client, however it was sent. Elsewhere the address is,
    and a key that is sent nevertheless tells owners apart: a proxy may have checked it.
    """
    given, address = sent_key(scope), address_of(scope)
    matches = [hmac.compare_digest(given, known) for known in keys]
    if any(matches):
        name = f"key {matches.index(True)}"
        scope[_SCOPE] = Client(name, name)
        return True
    owner = f"{address} {hashlib.sha256(given).hexdigest()}" if given else str(address)
    scope[_SCOPE] = Client(str(address), owner)
    return not keys


def is_operator(scope: Scope, metrics_key: bytes) -> bool:
    """Return True if a request may see what tells of everybody's texts: it brings the key for
    metrics, or it comes from this machine where there is no such key.
    """
    if metrics_key:
        return hmac.compare_digest(sent_key(scope), metrics_key)
    try:
        return ipaddress.ip_address(address_of(scope) or "").is_loopback
    except ValueError:
        return False


def sent_key(scope: Scope) -> bytes:
    """Return the key that a request brings, b"" if there is none: OpenAI's clients send it as
    `Authorization: Bearer KEY`, Anthropic's as `x-api-key: KEY`.
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
