"""The pictures in requests, in the form of any API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_TYPES = ("image", "image_url", "input_image")


def url_of(part: Any) -> str:
    """Return the URL of the picture in a part or block of a message, "" if there is none: data:…,
    or the address that the part gives.

    part: a struct of an API, or an object as a client sent it.
    """
    part = msgspec.to_builtins(part) if isinstance(part, msgspec.Struct) else part
    if not isinstance(part, Mapping) or part.get("type") not in _TYPES:
        return ""
    given = part.get("source" if part["type"] == "image" else "image_url")
    given = {"url": given} if isinstance(given, str) else given
    given = given if isinstance(given, Mapping) else part  # MCP has its fields in the part itself
    url, data = given.get("url"), given.get("data")
    if isinstance(url, str) and given.get("type") != "base64":
        return url
    kind = given.get("media_type") or given.get("mimeType") or "image/png"
    return f"data:{kind};base64,{data}" if isinstance(data, str) else ""
