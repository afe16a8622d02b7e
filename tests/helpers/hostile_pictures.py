"""Files that are given as pictures and that nobody should be hurt by: damaged ones, bombs, other
formats. `python -m tests.helpers.hostile_pictures` reads them all in a process of its own, and
prints what happened as JSON.
"""

import io
import json
import re
import struct
import sys
import zlib
from pathlib import Path

import numpy as np

ORANGE = (250, 140, 20)


def encoded(image, kind="PNG", **options):
    """Return an image of Pillow as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(kind, data):
    """Return a chunk of a PNG."""
    crc = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


def png(width, height, *chunks, bits=8, colours=2):
    """Return a PNG with a header that claims a size, and these chunks."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IEND", b"")


def packed(data, n_zeros):
    """Return data and zero bytes after it, compressed by zlib. The zeros are compressed once for
    each MiB that is repeated.
    """
    mib = bytes(1 << 20)
    begun, block = (deflated(each, zlib.Z_FULL_FLUSH) for each in (data, mib))
    checksum = zlib.adler32(data)
    for _ in range(n_zeros >> 20):
        checksum = zlib.adler32(mib, checksum)
    end = deflated(b"", zlib.Z_FINISH) + struct.pack(">I", checksum)
    return b"\x78\xda" + begun + block * (n_zeros >> 20) + end


def deflated(data, flush):
    """Return data in blocks of a deflate stream."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush(flush)


def jpeg_claiming(data, width, height):
    """Return a JPEG whose frame header claims another size."""
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def noise(side=64):
    """Return an image of random pixels, which compresses badly."""
    from PIL import Image

    pixels = np.random.default_rng(1).integers(0, 256, (side, side, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def animated(kind, n=3):
    """Return a file with several pictures."""
    from PIL import Image

    frames = [Image.new("RGB", (20, 10), (60 * i % 256, 90, 9)) for i in range(n)]
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:])


def wholes():
    """Return a valid file of each format, with random pixels."""
    from edgespec.pictures import FORMATS

    return {kind: encoded(noise(), kind) for kind in FORMATS}


def truncated():
    """Return files of each format that were cut: {name: (data, the whole)}."""
    cuts = {}
    for kind, whole in wholes().items():
        n = len(whole)
        for cut in (0.02, 0.25, 0.5, 0.75, 0.95):
            cuts[f"{kind} cut at {cut:.0%}"] = (whole[: int(n * cut)], whole)
        cuts[f"{kind} without its last byte"] = (whole[:-1], whole)
    return cuts


def refused():
    """Return files that must be refused: {name: (data, a pattern of the message)}."""
    from PIL import Image

    from edgespec.pictures import MOST_BYTES

    plain = Image.new("RGB", (20, 10), ORANGE)
    whole, jpeg = encoded(noise()), encoded(noise(), "JPEG")
    other, damaged = "is not a picture of the formats PNG", "is damaged"
    text = b"zTXt", b"a\0\0" + packed(b"", 1 << 30)
    return {
        "nothing": (b"", "begins with nothing"),
        "one byte": (b"\x89", other),
        "a text": (b"hello", other),
        "zeros": (bytes(4096), other),
        "an SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", other),
        "an SVG with entities": (
            b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "bbbb">]><svg>&b;</svg>', other),
        "a page": (b"<!doctype html><img src=x onerror=alert(1)>", other),
        "a PDF": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<<>>\nendobj\n", other),
        "a PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", other),
        "a TIFF": (encoded(plain, "TIFF"), other),
        "a TIFF of many pages": (animated("TIFF", 50), other),
        "an icon": (encoded(Image.new("RGB", (16, 16)), "ICO"), other),
        "a Macintosh icon": (b"icns\0\0\0\x10ic07\0\0\0\x08", other),
        "a HEIC": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64), other),
        "an AVIF": (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(64), other),
        "a JPEG 2000": (b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(64), other),
        "a PSD": (b"8BPS\0\1" + bytes(7) + b"\3\0\0\0\x09\0\0\0\x09\0\x08\0\3" + bytes(9), other),
        "a PPM": (b"P6\n2 2\n255\n" + bytes(12), other),
        "an XBM": (b"#define x_width 9\n#define x_height 9\nstatic char x_bits[]={0};", other),
        "a TGA": (encoded(plain, "TGA"), other),
        "a film": (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + bytes(64), other),
        "a ZIP": (b"PK\3\4" + bytes(26), other),
        "a GGUF": (b"GGUF\3\0\0\0" + bytes(16), other),
        "a WAV": (b"RIFF\x24\0\0\0WAVEfmt " + bytes(28), other),
        "a program": (b"\x7fELF\2\1\1" + bytes(57), other),
        "a PNG of 3.6 billion pixels": (png(60000, 60000, chunk(b"IDAT", packed(b"", 1 << 20))),
                                        "more than 64 million pixels"),
        "a PNG of 100 million pixels": (png(10000, 10000, chunk(b"IDAT", packed(b"", 300 << 20))),
                                        "10000x10000 pixels, at most 64 million"),
        "a PNG with a text of a gigabyte": (png(8, 8, chunk(*text)), damaged),
        "a PNG without width": (png(0, 8, chunk(b"IDAT", b"")), f"0x8 pixels|{damaged}|{other}"),
        "a PNG of negative size": (png(1 << 31, 8), f"million pixels|{damaged}|{other}"),
        "a PNG without pixels": (png(8, 8), damaged),
        "a PNG of too few pixels": (png(64, 64, chunk(b"IDAT", zlib.compress(bytes(99)))), damaged),
        "a PNG of unknown colours": (png(8, 8, colours=5), f"{damaged}|{other}"),
        "a PNG of 3 bits": (png(8, 8, bits=3), f"{damaged}|{other}"),
        "a PNG with a wrong sum": (whole[:-20] + bytes(4) + whole[-16:], damaged),
        "a PNG with other bits": (whole[:200] + bytes(50) + whole[250:], damaged),
        "a PNG with a chunk of 4 GB": (whole[:33] + b"\xff\xff\xff\xfftEXt" + whole[33:], damaged),
        "a JPEG of 4 billion pixels": (jpeg_claiming(jpeg, 65500, 65500), "million pixels"),
        "a JPEG of 1 x 50,000": (encoded(Image.new("L", (1, 50000)), "JPEG"), "1x50000 pixels"),
        "a JPEG without tables": (jpeg[:20] + jpeg[jpeg.index(b"\xff\xc0") :],
                                  f"{damaged}|{other}"),
        "a JPEG of no height": (jpeg_claiming(jpeg, 64, 0), f"64x0 pixels|{damaged}|{other}"),
        "a GIF of a large screen": (b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) +
                                    b",\0\0\0\0\1\0\1\0\0\2\2D\1\0;", "million pixels"),
        "a GIF without a picture": (b"GIF89a" + struct.pack("<HHBBB", 9, 9, 0, 0, 0) + b";",
                                    f"{damaged}|{other}"),
        "a BMP of a large size": (encoded(plain, "BMP")[:18] + struct.pack("<ii", 60000, 60000) +
                                  encoded(plain, "BMP")[26:], "million pixels"),
        "a BMP of an unknown compression": (encoded(plain, "BMP")[:30] + struct.pack("<I", 77) +
                                            encoded(plain, "BMP")[34:], f"{damaged}|{other}"),
        "a WebP of nothing": (b"RIFF\x04\0\0\0WEBP", f"{damaged}|{other}"),
        "a WebP of a large canvas": (
            b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff" + bytes(4),
            f"million pixels|{damaged}|{other}"),
        "a line": (encoded(Image.new("L", (1, 50000))), "1x50000 pixels"),
        "a long file": (whole + bytes(MOST_BYTES), "at most 16 MiB"),
        "an animated GIF": (animated("GIF"), "is animated"),
        "an animated WebP": (animated("WEBP"), "is animated"),
        "an animated PNG": (animated("PNG"), "is animated"),
        "a GIF of 2,000 pictures": (animated("GIF", 2000), "is animated"),
    }  # fmt: skip


def tolerated():
    """Return files that are odd, and are shown: {name: data}."""
    from PIL import Image, PngImagePlugin

    plain = Image.new("RGB", (20, 10), ORANGE)
    row = b"\0" + bytes(ORANGE) * 20
    exif = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(40)
    told = PngImagePlugin.PngInfo()
    told.add_text("a", "b" * 5000, zip=True)
    return {
        "two pictures of a camera": of_a_camera(plain),
        "EXIF data that mean nothing": encoded(plain, "JPEG", exif=exif, quality=95),
        "bytes after the end": encoded(plain) + b"#!/bin/sh\nexit 1\n",
        "pixels that unpack to a gigabyte more": png(
            20, 10, chunk(b"IDAT", packed(row * 10, 1 << 30))),
        "a text": encoded(plain, pnginfo=told),
        "a profile that is none": encoded(plain, icc_profile=b"none at all"),
    }  # fmt: skip


def of_a_camera(first):
    """Return a JPEG with a second picture after the first, as phones write them."""
    from PIL import Image

    return encoded(
        first, "MPO", save_all=True, append_images=[Image.new("RGB", (20, 10))], quality=95
    )


def main():
    """Read all files; print the peaks of memory in bytes, and what was started."""
    from PIL import Image

    from edgespec import ConfigError, picture

    files = [data for data, _ in refused().values()] + list(tolerated().values())
    files += [data for data, _ in truncated().values()]
    largest = encoded(Image.new("RGBA", (8000, 8000), (250, 140, 20, 128)))
    picture(wholes()["PNG"])  # imports what is needed
    reset_peak()
    before, n_refused, events = peak(), 0, audited("open")
    for data in files:
        try:
            picture(data)
        except ConfigError:
            n_refused += 1
    told = {"files": len(files), "refused": n_refused, "events": [*events]}
    told["bytes"] = peak() - before
    picture(largest)
    print(json.dumps(told | {"bytes of the largest": peak() - before}))


def audited(*more):
    """Return a list to which the processes that Python starts from now on are added, its
    connections, and `more` events.
    """
    events = []
    watched = ("subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system",
               "socket.", *more)  # fmt: skip
    sys.addaudithook(
        lambda name, args: (
            events.append(f"{name} {args}"[:200]) if name.startswith(watched) else None
        )
    )
    return events


def reset_peak():
    """Let `peak` count from now on (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak():
    """Return the most bytes that this process has had in memory."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10


if __name__ == "__main__":
    main()
