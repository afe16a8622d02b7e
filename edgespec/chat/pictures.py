"""Pictures in conversations: parts of messages, marks in rendered text, and tokens in their place.

A message with pictures has a list of parts as its content: {"type": "text", "text": …} and {"type":
"picture", "picture": Picture}. Templates see one text, with a mark where each picture is. Marks are
pairs of surrogates, which valid text cannot contain.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..pictures import MOST_PICTURES, Picture, picture

_MARK = re.compile("([\udb00-\udbff][\udc00-\udfff])")
_FIRST = 0xDB00  # the first of a mark's two surrogates, for the first 1024 pictures
_MOST_MARKS = 256 * 1024
_SOURCES = {"image_url": "image_url", "input_image": "image_url", "image": "image"}
"""The types of parts that name pictures, each with the field that does."""
LEFT_OUT = "[An image or a file was left out here: results of tools are read as text.]"
"""In place of images and files in results of tools, if the model reads text alone."""
_NEXT = "[The image is in the next message.]"

Message = dict[str, Any]
Content = str | list[dict[str, Any]]


class Album:
    """The pictures of a conversation, each with its mark in rendered texts.

    read: returns the tokens of a picture.
    """

    def __init__(self, read: Callable[[Picture], list[int]]) -> None:
        self._read = read
        self._pictures: list[Picture] = []
        self._numbers: dict[bytes, int] = {}

    def mark(self, shown: Picture) -> str:
        """Return the mark of a picture: the same one for the same pixels."""
        number = self._numbers.setdefault(shown.digest, len(self._pictures))
        if number == len(self._pictures):
            if number == _MOST_MARKS:
                raise ConfigError("there are too many pictures in this conversation; begin anew")
            self._pictures.append(shown)
        high, low = divmod(number, 1024)
        return chr(_FIRST + high) + chr(0xDC00 + low)

    def split(self, text: str) -> list[str]:
        """Return a text in parts: at even places text, at odd ones marks."""
        parts = _MARK.split(text)
        for i in range(1, len(parts), 2):
            if self._number(parts[i]) >= len(self._pictures):
                parts[i] = ""  # a mark of none of these pictures: a text that is not valid
        return parts

    def tokens(self, mark: str) -> list[int]:
        """Return the tokens of the picture with this mark, [] for no mark."""
        return self._read(self._pictures[self._number(mark)]) if mark else []

    def flat(self, message: Mapping[str, Any]) -> Message:
        """Return a message with text as content, and marks in place of pictures."""
        content = message.get("content")
        if not has_pictures(content):
            return dict(message)
        parts = (
            self.mark(part["picture"])
            if part.get("type") == "picture"
            else (part.get("text") or "").encode("utf-8", "replace").decode()
            for part in content or ()
        )
        return {**message, "content": "".join(parts)}

    @staticmethod
    def _number(mark: str) -> int:
        return (ord(mark[0]) - _FIRST) * 1024 + ord(mark[1]) - 0xDC00


def has_pictures(content: Any) -> bool:
    """Return True if a message's content has parts that are pictures."""
    return isinstance(content, list) and any(part.get("type") == "picture" for part in content)


def names_pictures(content: Any) -> bool:
    """Return True if a message's content has parts that are pictures, decoded or not."""
    types = {"picture", *_SOURCES}
    return isinstance(content, list) and any(part.get("type") in types for part in content)


def marks_of(text: str) -> list[str]:
    """Return the marks in a text."""
    return _MARK.findall(text)


def without_marks(text: str) -> str:
    """Return a text with a sentence in place of each mark: the picture is in the next message."""
    return _MARK.sub(_NEXT, text)


def content_of(given: Any) -> Content:
    """Return what a user says as the content of a message.

    given: a text, or a list of texts, pictures in any form that `pictures.picture` takes but text,
    and parts in OpenAI's form: {"type": "text", "text": …}, {"type": "image_url", "image_url": {
    "url": "data:…"}}. Raises ConfigError.
    """
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping | bytes) or not isinstance(given, Sequence):
        raise ConfigError(f"a message is text or a list of texts and pictures, got {given!r:.80}")
    parts = [_part(each, i) for i, each in enumerate(given)]
    n = sum(part["type"] == "picture" for part in parts)
    if n > MOST_PICTURES:
        raise ConfigError(f"{n} pictures in one message, at most {MOST_PICTURES} are taken")
    if not n:
        return "".join(part["text"] for part in parts)
    return parts


def shown_by(value: Any) -> Content | None:
    """Return what a function returned as the content of a message, if it is a Picture, a list with
    one, or such a content; None for any other value. Raises the errors of `content_of`.
    """
    values = list(value) if isinstance(value, list | tuple) else [value]
    for each in values:
        is_part = isinstance(each, Mapping) and isinstance(each.get("picture"), Picture)
        if is_part or isinstance(each, Picture):
            return content_of(values)
    return None


def as_result(parts: Sequence[Any], sees: bool) -> Content:
    """Return the content of a tool's result, from parts as in `content_of`.

    Results cannot be taken back: a program that sends one sends it again at every later turn. So
    nothing is refused. A sentence takes the place of a picture that cannot be decoded, of one too
    many, and of all pictures if `sees` is False.
    """
    said: list[dict[str, Any]] = []
    for is_text, group in itertools.groupby(parts, lambda part: part["type"] == "text"):
        if is_text:
            said.append({"type": "text", "text": "".join(part["text"] for part in group)})
        else:
            for part in group:
                n = sum(each["type"] == "picture" for each in said)
                said.append(_shown_or_told(part, n) if sees else _told(LEFT_OUT))
    if has_pictures(said):
        return said
    return "\n\n".join(part["text"] for part in said if part["text"])


def _shown_or_told(part: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a picture of a result, or a text that says why it cannot be shown."""
    if number >= MOST_PICTURES:
        return left_out(f"at most {MOST_PICTURES} are taken")
    try:
        return _part(part, number)
    except ConfigError as error:
        return left_out(error)


def picture_at(url: str | bytes) -> dict[str, Any]:
    """Return a part with a picture, in OpenAI's form. url: its URL, or the bytes of its file."""
    return {"type": "image_url", "image_url": {"url": url}}


def left_out(why: object) -> dict[str, Any]:
    """Return a part with a text in place of a picture of a result."""
    return _told(f"[An image was left out here: {why}]")


def _told(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _part(given: Any, number: int) -> dict[str, Any]:
    if isinstance(given, str):
        return {"type": "text", "text": given}
    if not isinstance(given, Mapping):
        return {"type": "picture", "picture": picture(given)}
    kind = given.get("type")
    if kind == "picture" and isinstance(given.get("picture"), Picture):
        return dict(given)
    if kind in ("text", "input_text") and isinstance(given.get("text"), str):
        return {"type": "text", "text": given["text"]}
    if kind in _SOURCES:
        source = given.get(_SOURCES[kind])
        source = source.get("url") if isinstance(source, Mapping) else source
        if isinstance(source, str) and not source[:5].lower() == "data:":
            raise ConfigError(
                f"part {number} of the message names {source[:60]!r}, and pictures are not fetched "
                "from addresses: give a data: URL, or edgespec.picture(FILE)"
            )
        return {"type": "picture", "picture": picture(source)}
    raise ConfigError(
        f"part {number} of the message has the type {kind!r:.40}, expected text or image_url"
    )


def saved(message: Mapping[str, Any]) -> Message:
    """Return a message for JSON: pictures by their files and the hashes of their pixels."""
    content = message.get("content")
    if not has_pictures(content):
        return dict(message)
    parts = [
        part
        if part["type"] == "text"
        else {
            "type": "picture",
            "name": part["picture"].name,
            "file": part["picture"].file,
            "sha256": part["picture"].digest.hex(),
        }
        for part in content or ()
    ]
    return {**message, "content": parts}


def restored(content: Any) -> Content | None:
    """Return the content of a saved message, None if it is none. A picture whose file is gone or
    has changed becomes a text that says so.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        return None
    parts = [_restored_part(part) for part in content]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part]
    return known if has_pictures(known) else "".join(part["text"] for part in known)


def _restored_part(part: Mapping[str, Any]) -> dict[str, Any] | None:
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    name, file, digest = (part.get(key) for key in ("name", "file", "sha256"))
    if part.get("type") != "picture" or not all(isinstance(x, str) for x in (name, file, digest)):
        return None
    if file:
        try:
            shown = picture(Path(str(file)), str(name))
        except ConfigError as error:
            return {"type": "text", "text": f"[A picture was here: {error}]"}
        if shown.digest.hex() == digest:
            return {"type": "picture", "picture": shown}
        return {"type": "text", "text": f"[A picture was here: {name} has changed since]"}
    return {"type": "text", "text": f"[A picture was here: {name}, which is in no file]"}


def text_of(content: Content) -> str:
    """Return a content, also a saved one, as text to show to people: pictures by their names."""
    if isinstance(content, str):
        return content
    return " ".join(part["text"] if part["type"] == "text" else _named(part) for part in content)


def _named(part: Mapping[str, Any]) -> str:
    return f"[{part['picture'].name if 'picture' in part else part.get('name')}]"
