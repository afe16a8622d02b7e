"""Pictures: every form of them is shown with the right colours, and anything else is refused."""

import base64
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest

from edgespec import ConfigError, picture, pictures
from tests.helpers import hostile_pictures
from tests.helpers.hostile_pictures import ORANGE, encoded

Image = pytest.importorskip("PIL.Image")


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
        ("L", "JPEG", (159,) * 3),
        ("L", "GIF", (159,) * 3),
        ("L", "BMP", (159,) * 3),
        ("1", "PNG", (255,) * 3),
        ("1", "BMP", (255,) * 3),
        ("P", "PNG", ORANGE),
        ("P", "GIF", ORANGE),
        ("P", "BMP", ORANGE),
        ("LA", "PNG", (159,) * 3),
        ("RGBA", "PNG", ORANGE),
        ("RGBA", "WEBP", ORANGE),
        ("YCbCr", "JPEG", ORANGE),
    ],
)
def test_every_mode_is_shown(mode, kind, colour):
    image = plain(colour=(255, 255, 255)) if mode == "1" else plain()
    assert looks_like(picture(encoded(image.convert(mode), kind)), colour)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("WEBP", {"lossless": True}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"subsampling": 0, "quality": 100}),
        ("PNG", {"interlace": 1, "compress_level": 0}),
        ("GIF", {"interlace": 1}),
    ],
)
def test_every_way_to_write_a_format_is_shown(kind, options):
    assert looks_like(picture(encoded(plain(), kind, **options)), ORANGE)


def test_sixteen_bits_are_scaled_and_not_cut_off():
    grey = Image.fromarray(np.full((10, 20), 0x8040, np.uint16))
    assert looks_like(picture(encoded(grey)), (0x80,) * 3, atol=1)
    for colours, samples in ((2, (0xFA40, 0x8CFF, 0x1401)), (0, (0xFA40,)), (4, (0xFA40, 0xFFFF)),
                             (6, (0xFA40, 0x8CFF, 0x1401, 0xFFFF))):  # fmt: skip
        row = b"\0" + b"".join(each.to_bytes(2, "big") for each in samples) * 4
        pixels = hostile_pictures.chunk(b"IDAT", zlib.compress(row * 4))
        shown = picture(hostile_pictures.png(4, 4, pixels, bits=16, colours=colours))
        assert looks_like(shown, ORANGE if len(samples) > 2 else (0xFA,) * 3, atol=1), colours


def test_transparent_parts_are_white():
    for image in (
        Image.new("RGBA", (8, 8), (0, 0, 0, 0)),
        Image.new("LA", (8, 8), (0, 0)),
        Image.new("RGBA", (8, 8), (0, 0, 0, 0)).convert("P"),
    ):
        assert looks_like(picture(encoded(image)), (255,) * 3)
    for mode, colour in (("RGB", (9, 9, 9)), ("L", 9), ("P", 0)):
        image = Image.new(mode, (8, 8), colour)
        assert looks_like(picture(encoded(image, transparency=colour)), (255,) * 3), mode
    half = Image.new("RGBA", (8, 8), (0, 0, 0, 128))
    assert looks_like(picture(encoded(half)), (127,) * 3, atol=1)


@pytest.mark.parametrize("value", range(1, 9))
def test_a_picture_is_turned_as_its_exif_data_say(value):
    image = Image.new("RGB", (20, 10), "white")
    image.paste((220, 20, 20), (0, 0, 10, 5))  # red at the upper left
    corners = [(0, 0), (0, 1), (1, 1), (1, 0)] * 2  # lower, right
    exif = Image.Exif()
    exif[0x0112] = value
    for kind in ("PNG", "WEBP"):
        shown = picture(encoded(image, kind, exif=exif, lossless=True))
        size = (20, 10) if value < 5 else (10, 20)
        assert (shown.width, shown.height) == size
        lower, right = corners[value - 1]
        rows = shown.pixels()[lower * size[1] // 2 :][: size[1] // 2]
        corner = rows[:, right * size[0] // 2 :][:, : size[0] // 2]
        assert np.allclose(corner.mean((0, 1)), (220, 20, 20), atol=2), (value, kind)
    assert picture(image).digest == picture(encoded(image)).digest


def test_an_image_of_pillow_stays_as_it_is():
    image = Image.new("RGB", (20, 10), "white")
    image.getexif()[0x0112] = 6
    assert (picture(image).width, image.size) == (10, (20, 10))


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


def test_hostile_files_are_refused_in_a_sentence():
    files = hostile_pictures.refused()
    for name, (data, message) in files.items():
        with pytest.raises(ConfigError, match=message) as caught:
            pytest.fail(f"{name} is shown: {picture(data, 'it.png')}")
        assert str(caught.value).startswith("it.png "), name
        assert "\n" not in str(caught.value), name
        assert len(str(caught.value)) < 300, name
    assert len(files) >= 50


def test_a_file_that_was_cut_is_whole_or_refused():
    for name, (data, whole) in hostile_pictures.truncated().items():
        with contextlib.suppress(ConfigError):
            shown = picture(data)
            assert shown.digest == picture(whole).digest, name


def test_odd_files_are_shown(recwarn):
    for name, data in hostile_pictures.tolerated().items():
        shown = picture(data)
        assert (shown.width, shown.height) == (20, 10), name
        assert looks_like(shown, ORANGE), name
    assert not recwarn.list


def test_files_that_are_no_files(tmp_path):
    (tmp_path / "empty.png").touch()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    for name, why in (
        ("", "Is a directory"),
        ("empty.png", "it begins with nothing"),
        ("pipe.png", "it begins with nothing"),
        ("loop.png", "symbolic links"),
        ("empty.png/a.png", "Not a directory"),
        ("a" * 300, "name too long"),
        ("a\0b", "null"),
    ):
        with pytest.raises(ConfigError, match=why):
            picture(str(tmp_path / name))
    with pytest.raises(ConfigError, match="16 MiB are read"):
        picture("/dev/zero")


def test_a_pipe_with_a_writer_is_read(tmp_path):
    os.mkfifo(path := tmp_path / "pipe")
    data = encoded(plain())
    writer = threading.Thread(target=lambda: path.write_bytes(data))
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # so that the writer may open it
    writer.start()
    while not select.select([reader], [], [], 5)[0]:
        pass
    assert looks_like(picture(path), ORANGE)
    os.close(reader)
    writer.join()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_hostile_files_take_little_memory_and_start_nothing():
    command = [sys.executable, "-m", "tests.helpers.hostile_pictures"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["files"] >= 85
    assert told["refused"] >= 75
    assert told["events"] == []
    assert told["bytes"] < 50 << 20
    assert told["bytes of the largest"] < 20 * pictures.MOST_PIXELS  # 20 bytes a pixel
    assert not done.stderr


def test_bytes_with_any_single_change_are_shown_or_refused():
    rng = np.random.default_rng(2)
    for whole in hostile_pictures.wholes().values():
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
