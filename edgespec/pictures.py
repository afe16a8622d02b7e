"""Pictures to show to a model: read from files, bytes, data URLs, arrays and Pillow's images.

Pillow decodes them, and only the formats of `FORMATS`. It is imported when the first encoded
picture is read. What a file claims is checked against the limits before anything is unpacked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .advice import install
from .errors import ConfigError

Pixels = npt.NDArray[np.uint8]
"""Red, green and blue of each pixel, [height, width, 3]."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MOST_BYTES = 16 << 20  # of an encoded picture
MOST_PIXELS = 64_000_000
MOST_PICTURES = 8  # in one message
_LONGEST = 200  # times the shorter side: models scale the sides of a picture together
_DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[^;,]*)*;base64,", re.I)


class Picture:
    """A picture. Only its encoded form is kept in memory: `pixels` decodes it anew at each call.

    width, height: in pixels, as it is shown: turned as its EXIF data say. digest: 32 bytes that
    stand for the pixels and the size. name: how messages name it. file: the path of its file, "" if
    it comes from no file.
    """

    def __init__(
        self, decode: Callable[[], Pixels], name: str = "the picture", file: str = ""
    ) -> None:
        self.name, self.file, self._decode = name, file, decode
        pixels = decode()
        self.height, self.width, _ = pixels.shape
        digest = hashlib.sha256(f"{self.width}x{self.height}:".encode())
        digest.update(np.ascontiguousarray(pixels).data)
        self.digest = digest.digest()

    def pixels(self) -> Pixels:
        """Return the pixels, uint8 [height, width, 3]."""
        return self._decode()

    def __repr__(self) -> str:
        return f"Picture({self.width}x{self.height}, {self.name!r})"


def picture(source: Any, name: str = "") -> Picture:
    """Return a picture from the path of a file, its bytes, a data URL, a NumPy array (uint8
    [height, width, 3] or [height, width]), an image of Pillow, or a Picture.

    name: how messages name it. Raises ConfigError for anything that is not a picture or is beyond
    the limits, and if Pillow is needed and not installed.
    """
    if isinstance(source, Picture):
        return source
    if isinstance(source, np.ndarray):
        return _of_array(source, name or "the picture")
    if isinstance(source, bytes | bytearray | memoryview):
        return _of_bytes(bytes(source), name or "the picture")
    if isinstance(source, str) and source[:5].lower() == "data:":
        return of_data_url(source, name or "the picture")
    if isinstance(source, str | os.PathLike):
        return _of_file(Path(source), name)
    if hasattr(source, "convert") and hasattr(source, "getexif"):  # an image of Pillow
        return _of_image(source, name or "the picture")
    raise ConfigError(
        "a picture is the path of a file, bytes, a data URL, a NumPy array or an image of Pillow, "
        f"got {type(source).__name__}"
    )


def of_data_url(url: str, name: str = "the picture") -> Picture:
    """Return the picture in a URL such as data:image/png;base64,…  Raises ConfigError."""
    match = _DATA_URL.match(url)
    if not match:
        raise ConfigError(f"{name} is not data:image/…;base64,…: {url[:40]!r}")
    return of_base64(url[match.end() :], name)


def of_base64(text: str, name: str = "the picture") -> Picture:
    """Return the picture that is encoded in base64. Raises ConfigError."""
    if len(text) > MOST_BYTES * 4 // 3 + 4:
        _refuse_size(len(text) * 3 // 4, name)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"{name} is not valid base64: {error}") from None
    return _of_bytes(data, name)


def _of_file(path: Path, name: str) -> Picture:
    name = name or path.name
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"the picture {name} cannot be read: {why}") from None
    return _of_bytes(data, name, os.path.abspath(path))


def _without_waiting(path: str, flags: int) -> int:
    """Open a file. A pipe that no program writes to is empty, where `open` would wait."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if hasattr(os, "set_blocking"):
        os.set_blocking(handle, True)
    return handle


def _of_bytes(data: bytes, name: str, file: str = "") -> Picture:
    if len(data) > MOST_BYTES:
        _refuse_size(len(data), name)
    return Picture(lambda: _decoded(data, name), name, file)


def _of_array(array: npt.NDArray[Any], name: str) -> Picture:
    is_grey = array.ndim == 2
    if array.dtype != np.uint8 or not (is_grey or (array.ndim == 3 and array.shape[2] == 3)):
        raise ConfigError(
            f"{name} is an array {array.dtype} {list(array.shape)}, expected uint8 "
            "[height, width, 3] (red, green, blue) or [height, width]"
        )
    _check_sides(array.shape[1], array.shape[0], name)
    rgb = np.repeat(array[:, :, None], 3, axis=2) if is_grey else np.array(array)
    rgb.flags.writeable = False
    return Picture(lambda: rgb, name)


def _of_image(image: Any, name: str) -> Picture:
    from PIL import ImageOps

    width, height = image.size
    _check_sides(width, height, name)
    return _of_array(_pixels_of(ImageOps.exif_transpose(image)), name)


def _refuse_size(n_bytes: int, name: str) -> None:
    raise ConfigError(
        f"{name} has {n_bytes / 2**20:.1f} MiB or more, at most {MOST_BYTES >> 20} MiB are read; "
        "make it smaller"
    )


def _check_sides(width: int, height: int, name: str) -> None:
    if width * height > MOST_PIXELS:
        raise ConfigError(
            f"{name} has {width}x{height} pixels, at most {MOST_PIXELS // 10**6} million are "
            "shown; make it smaller"
        )
    shorter, longer = sorted((width, height))
    if not shorter or longer > _LONGEST * shorter:
        raise ConfigError(
            f"{name} has {width}x{height} pixels: its longer side may be at most {_LONGEST} times "
            "the shorter; cut it"
        )


def check_pillow() -> None:
    """Raise ConfigError if Pillow, which decodes and resizes pictures, is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise ConfigError(f"pictures need Pillow: {install('vision')}") from None


def _decoded(data: bytes, name: str) -> Pixels:
    """Return the pixels of an encoded picture. Raises ConfigError."""
    check_pillow()
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
                _check_sides(width, height, name)
                if getattr(image, "is_animated", False) and image.format != "MPO":
                    raise ConfigError(f"{name} is animated; give one picture of it")
                image.load()  # of an MPO, a camera's JPEG with several pictures, the first one
                ImageOps.exif_transpose(image, in_place=True)
                return _pixels_of(image)
    except ConfigError:
        raise
    except Image.DecompressionBombError:
        raise ConfigError(
            f"{name} claims more than {MOST_PIXELS // 10**6} million pixels; make it smaller"
        ) from None
    except UnidentifiedImageError:
        begin = data[:8].hex(" ") or "nothing"
        raise ConfigError(
            f"{name} is not a picture of the formats {', '.join(FORMATS)}: it begins with {begin}"
        ) from None
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise ConfigError(
            f"{name} is damaged: {str(error)[:200] or type(error).__name__}"
        ) from None


def _pixels_of(image: Any) -> Pixels:
    """Return the pixels of an image of Pillow: transparent parts on white, 8 bits a colour."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits of grey, which `convert` would cut off
        grey = np.asarray(image).astype(np.int64) >> 8
        image = Image.fromarray(grey.clip(0, 255).astype(np.uint8))
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        image = white
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"), np.uint8)
