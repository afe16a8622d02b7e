"""Pictures that requests name by their addresses, read within limits where the settings allow it.

A server that read any address would read files and call services for everybody who may ask it. So
nothing is read by default; `allowed_media_domains` allows hosts, and `allowed_local_media_path`
allows files of one folder (both are names of vLLM's).
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import url2pathname

import httpcore
from starlette.concurrency import run_in_threadpool

from .. import kept_files
from ..chat.messages import Message
from ..chat.pictures import left_out, picture_at
from ..errors import ConfigError
from ..pictures import MOST_BYTES
from .apis.pictures import url_of
from .errors import bad_value
from .settings import ServerSettings

SECONDS = 10.0  # within which a picture must have arrived
_MOST_REDIRECTS = 3
_AT_ONCE = 8
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = [("Accept", "image/*"), ("Accept-Encoding", "identity"), ("User-Agent", "edgespec")]
_FILE = re.compile("file:(//(localhost(?=/))?)?", re.IGNORECASE)  # before a path
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
_ENDS_IN_IPV4 = [
    ipaddress.IPv6Network(each)
    for each in ("64:ff9b::/96", "64:ff9b:1::/96", "::ffff:0:0:0/96", "::ffff:0:0/96", "::/96")
]  # NAT64 (RFC 6052, RFC 8215), SIIT, mapped and compatible addresses
_IN_URLS = "%/:=&?~#+!$,;'@()*[]"  # besides letters and digits


class Media:
    """Reads the pictures at the addresses that the settings allow."""

    def __init__(self, settings: ServerSettings) -> None:
        self._domains = frozenset(each.lower() for each in settings.allowed_media_domains)
        self._folder = settings.allowed_local_media_path
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    @staticmethod
    def is_named(messages: Sequence[Message]) -> bool:
        """Return True if messages name pictures by their addresses."""
        return any(_address(part) for message in messages for part in _parts(message))

    async def read_all(self, messages: Sequence[Message], places: Sequence[str]) -> list[Message]:
        """Return messages with the bytes of pictures in place of their addresses.

        places: for each message, its place in the request. Raises ApiError if a picture of a user
        cannot be read. In results of tools a sentence takes its place.
        """
        return [
            {**message, "content": await self._content(message, place)}
            if any(_address(part) for part in _parts(message))
            else message
            for message, place in zip(messages, places, strict=True)
        ]

    async def _content(self, message: Message, place: str) -> list[Any]:
        content: list[Any] = []
        for part in _parts(message):
            try:
                url = _address(part)
                content.append(picture_at(await self.read(url)) if url else part)
            except ConfigError as error:
                if message["role"] != "tool":
                    raise bad_value(place, f"{place}: {error}") from None
                content.append(left_out(error))
        return content

    async def read(self, url: str) -> bytes:
        """Return the bytes at an address. Raises ConfigError if it is not allowed or cannot be
        read, or if there are too many bytes.
        """
        scheme, host = _scheme_and_host(url)
        if scheme == "file":
            return await run_in_threadpool(self._file, url)
        if not scheme.startswith("http"):
            raise ConfigError(f"{url[:60]!r} is not a data:, http:, https: or file: URL")
        async with self._at_once:
            try:
                return await asyncio.wait_for(self._fetched(url), SECONDS)
            except asyncio.TimeoutError:
                raise ConfigError(f"{host} sent no picture within {SECONDS:g} s") from None
            except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as error:
                why = str(error)[:200] or type(error).__name__
                raise ConfigError(f"{host} sends no picture: {why}") from None

    def _file(self, url: str) -> bytes:
        if self._folder is None:
            raise ConfigError(
                f"{url[:60]!r} is a file, and this server reads no files for its clients: send a "
                "data: URL, or start it with --allowed-local-media-path FOLDER"
            )
        path = url2pathname(_FILE.sub("", url, count=1))
        try:
            full, folder = (self._folder / path).resolve(), self._folder.resolve()
            if not full.is_relative_to(folder):
                raise ConfigError(f"{path[:80]!r} is not in the folder that this server may read")
            with kept_files.open_regular(full) as file:
                data = file.read(MOST_BYTES + 1)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"{path[:80]!r} cannot be read: {why}") from None
        _check_size(data, path[:80])
        return data

    async def _fetched(self, url: str) -> bytes:
        for _ in range(_MOST_REDIRECTS + 1):
            host = self._allowed(url)
            address = quote(url, safe=_IN_URLS).partition("#")[0]
            backend = _Backend(only_public=host not in self._domains)
            async with (
                httpcore.AsyncConnectionPool(network_backend=backend) as pool,
                pool.stream("GET", address, headers=_HEADERS) as response,
            ):
                if response.status == 200:
                    return await _body(response, host)
                headers = {name.lower(): value for name, value in response.headers}
                location = headers.get(b"location")
            if response.status not in _REDIRECTS or not location:
                raise ConfigError(f"{host} answers with status {response.status}, not a picture")
            url = urljoin(url, location.decode("ascii", "replace"))
        raise ConfigError(f"{host} redirects more than {_MOST_REDIRECTS} times")

    def _allowed(self, url: str) -> str:
        """Return the host of a URL. Raises ConfigError if it is not one of the allowed domains."""
        scheme, host = _scheme_and_host(url)
        if not self._domains:
            raise ConfigError(
                f"{url[:60]!r} is an address, and this server fetches no pictures: send a data: "
                "URL, or start it with --allowed-media-domains HOST"
            )
        if scheme not in ("http", "https") or not host or not {host, "*"} & self._domains:
            raise ConfigError(
                f"{host[:80]!r} is not among the hosts from which this server fetches pictures "
                "(--allowed-media-domains)"
            )
        return host


class _Backend(httpcore.AsyncNetworkBackend):
    """Connects to the addresses that a host has when they are checked, and to no others.

    only_public: True to refuse hosts with an address of this machine or of a private network.
    """

    def __init__(self, *, only_public: bool) -> None:
        self._only_public = only_public
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of a host that answers."""
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(each[4][0]) for each in infos))
        if self._only_public and not all(map(_is_public, addresses)):
            raise ConfigError(f"{host[:80]} is in a private network, which no picture comes from")
        for i, address in enumerate(addresses):
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address)
            except httpcore.ConnectError:
                if i == len(addresses) - 1:
                    raise
        raise httpcore.ConnectError(f"{host[:80]} has no address")


def _is_public(address: str) -> bool:
    """Return True for an address in the public internet. An IPv6 address that stands for an IPv4
    address is judged by that. Other addresses of local NAT64 are not public: where they have their
    IPv4 address is not known (RFC 6052).
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if any(ip in network for network in _ENDS_IN_IPV4):
            ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        elif ip in _LOCAL_NAT64:
            return False
        else:
            ip = ip.sixtofour or ip
    return ip.is_global and not ip.is_multicast


async def _body(response: httpcore.Response, host: str) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_stream():
        data += chunk
        _check_size(data, f"the picture of {host}")
    return bytes(data)


def _check_size(data: bytes | bytearray, name: str) -> None:
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{name} has more than {MOST_BYTES >> 20} MiB; make it smaller")


def _scheme_and_host(url: str) -> tuple[str, str]:
    """Return the scheme and the host of a URL in lower case, "" for a URL that is not valid."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.scheme.lower(), (parts.hostname or "").rstrip(".")


def _parts(message: Message) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else ()


def _address(part: Mapping[str, Any]) -> str:
    """Return the address of a picture, "" for a part that has its bytes or is none."""
    url = url_of(part)
    return "" if url[:5].lower() == "data:" else url
