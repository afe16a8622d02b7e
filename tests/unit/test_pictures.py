"""Pictures: every form of them is shown with the right colours, and anything else is refused."""

import base64
import contextlib
import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest

from edgespec import ConfigError, picture, pictures

Image = pytest.importorskip("PIL.Image")

ORANGE = (250, 140, 20)


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def plain(mode="RGB", colour=ORANGE, size=(20, 10)):
    return Image.new("RGB", size, colour).convert(mode)


def looks_like(shown, colour, atol=6):
    return np.allclose(shown.pixels().reshape(-1, 3).mean(0), colour, atol=atol)


@pytest.mark.parametrize("kind", pictures.FORMATS)
def test_every_format_is_shown(kind):
    shown = picture(encoded(plain(), kind))
    assert (shown.width, shown.height) == (20, 10)
    assert looks_like(shown, ORANGE)


@pytest.mark.parametrize(
    ("mode", "kind", "colour"),
    [
        ("CMYK", "JPEG", ORANGE),
        ("L", "PNG", (159,) * 3),
        ("1", "PNG", (255,) * 3),
        ("P", "PNG", ORANGE),
        ("LA", "PNG", (159,) * 3),
        ("RGBA", "WEBP", ORANGE),
    ],
)
def test_every_mode_is_shown(mode, kind, colour):
    image = plain(colour=(255, 255, 255)) if mode == "1" else plain()
    assert looks_like(picture(encoded(image.convert(mode), kind)), colour)


def test_sixteen_bits_of_grey_are_scaled_and_not_cut_off():
    grey = Image.fromarray(np.full((10, 20), 0x8040, np.uint16))
    assert looks_like(picture(encoded(grey)), (0x80,) * 3, atol=1)


def test_transparent_parts_are_white():
    assert looks_like(picture(encoded(Image.new("RGBA", (8, 8), (0, 0, 0, 0)))), (255,) * 3)


def test_a_picture_is_turned_as_its_exif_data_say():
    image = Image.new("RGB", (20, 10), "white")
    image.paste((220, 20, 20), (0, 0, 10, 10))  # red on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned to the right
    shown = picture(encoded(image, exif=exif))
    assert (shown.width, shown.height) == (10, 20)
    assert np.allclose(shown.pixels()[:8].mean((0, 1)), (220, 20, 20))


def test_the_same_pixels_are_the_same_picture_whatever_form_they_have(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (9, 12, 3)).astype(np.uint8)
    data = encoded(Image.fromarray(array))
    path = tmp_path / "a.png"
    path.write_bytes(data)
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    forms = (array, data, Image.fromarray(array), path, str(path), url)
    shown = [picture(form) for form in forms]
    assert len({each.digest for each in shown}) == 1
    for each in shown:
        np.testing.assert_array_equal(each.pixels(), array)
    assert shown[3].name == "a.png"
    assert shown[3].file == str(path)
    assert picture(array.transpose(1, 0, 2).copy()).digest != shown[0].digest


def bomb():
    """Return a small PNG that claims 60,000 × 60,000 pixels."""

    def chunk(kind, data):
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(1 << 20)))
    return b"\x89PNG\r\n\x1a\n" + head + data + chunk(b"IEND", b"")


def animated(kind):
    frames = [plain(colour=colour) for colour in (ORANGE, (0, 0, 0), (9, 90, 9))]
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:])


PNG = encoded(
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64, 3)).astype(np.uint8))
)
JPEG = encoded(plain(size=(64, 64)), "JPEG")
HOSTILE = {
    "nothing": (b"", "begins with nothing"),
    "a text": (b"hello", "not a picture of the formats PNG"),
    "an SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture"),
    "a PDF": (b"%PDF-1.7\n%\xe2\xe3", "not a picture"),
    "a TIFF": (encoded(plain(), "TIFF"), "not a picture"),
    "an icon": (encoded(plain(size=(16, 16)), "ICO"), "not a picture"),
    "a PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a picture"),
    "a bomb": (bomb(), "more than 64 million pixels"),
    "a line": (encoded(Image.new("L", (1, 50000))), "1x50000 pixels"),
    "a long file": (PNG + bytes(pictures.MOST_BYTES), "at most 16 MiB"),
    "an animated GIF": (animated("GIF"), "is animated"),
    "an animated WebP": (animated("WEBP"), "is animated"),
    "an animated PNG": (animated("PNG"), "is animated"),
    "a PNG without pixels": (PNG[:40], "is damaged|not a picture"),
    "a PNG cut in the middle": (PNG[: len(PNG) // 2], "is damaged"),
    "a JPEG cut in the middle": (JPEG[: len(JPEG) // 2], "is damaged"),
    "a PNG with other bits": (PNG[:200] + bytes(50) + PNG[250:], "is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_anything_else_is_refused_in_a_sentence(name):
    data, message = HOSTILE[name]
    with pytest.raises(ConfigError, match=message) as caught:
        picture(data, "it.png")
    assert str(caught.value).startswith("it.png")
    assert "\n" not in str(caught.value)


def test_bytes_with_any_single_change_are_shown_or_refused():
    rng = np.random.default_rng(2)
    for whole in (PNG, JPEG, encoded(plain(), "WEBP"), encoded(plain(), "GIF")):
        for _ in range(60):
            data = bytearray(whole)
            data[rng.integers(len(data))] = rng.integers(256)
            with contextlib.suppress(ConfigError):
                picture(bytes(data)).pixels()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (5, "got int"),
        (None, "got NoneType"),
        (np.zeros((4, 4, 3)), r"array float64 \[4, 4, 3\]"),
        (np.zeros((4, 4, 4), np.uint8), r"uint8 \[4, 4, 4\]"),
        (np.zeros((0, 4, 3), np.uint8), "4x0 pixels"),
        ("no/such/file.png", "cannot be read: No such file"),
        ("data:image/png;base64,###", "not valid base64"),
        ("data:image/png,abc", "is not data:image"),
        ("data:text/plain;base64,aGVsbG8=", "not a picture"),
    ],
)
def test_what_is_no_picture(source, message):
    with pytest.raises(ConfigError, match=message):
        picture(source)


def test_nothing_is_imported_or_started_for_text(tmp_path):
    code = "import sys, edgespec, edgespec.chat.chat, edgespec.engine; print('PIL' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
