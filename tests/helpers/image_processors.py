"""What transformers' own image processors make of odd pictures: edgespec has to make the same.

Where transformers 4.57 and Pillow are installed, this records it anew:

    python -m tests.helpers.image_processors tests/data/image_processors.json
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import edgespec

_GREY = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "SmolVLM-256M": ("SmolVLMImageProcessor", _GREY | {
        "size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}, "resample": 1,
    }),
    "SmolVLM": ("Idefics3ImageProcessor", _GREY | {
        "size": {"longest_edge": 1536}, "max_image_size": {"longest_edge": 384}, "resample": 1,
    }),
    "whole": ("Idefics3ImageProcessor", _GREY | {
        "size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}, "resample": 1,
        "do_image_splitting": False,
    }),
    "SigLIP": ("SiglipImageProcessor", _GREY | {
        "size": {"height": 384, "width": 384}, "resample": 3,
    }),
    "CLIP": ("CLIPImageProcessor", _CLIP | {
        "size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}, "resample": 3,
    }),
    "padded": ("LlavaImageProcessor", _CLIP | {
        "size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}, "resample": 3,
        "do_pad": True,
    }),
}  # fmt: skip
"""Processors and settings as published, by the names of the tests."""

_SIZES = (
    (1, 1), (1, 150), (7, 300), (56, 56), (333, 111), (111, 333), (640, 480), (480, 640),
    (512, 512), (513, 512), (512, 513), (1024, 767), (20, 3999), (1500, 8), (384, 384), (385, 1000),
    (336, 337), (799, 600), (150, 1), (3, 2),
)  # fmt: skip
_MODES = ("RGB", "L", "1", "P", "RGBA", "LA", "CMYK", "I;16")
_N_POSITIONS = 24


def pictures() -> Iterator[np.ndarray]:
    """Yield the pixels of 20 pictures of odd sizes and modes, as edgespec decodes them."""
    for i, (width, height) in enumerate(_SIZES):
        yield edgespec.picture(_image(width, height, _MODES[i % len(_MODES)])).pixels()


def _image(width: int, height: int, mode: str) -> Any:
    from PIL import Image

    y, x, colour = np.ogrid[:height, :width, :3]
    rgb = ((x * x + 3 * x * y + 7 * y * colour + 50 * colour) % 256).astype(np.uint8)
    grey = rgb[..., 0]
    if mode == "I;16":
        return Image.fromarray(grey.astype(np.uint16) * 257)
    if mode == "1":
        return Image.fromarray(grey > 127)
    image = Image.fromarray(rgb)
    if mode == "P":
        return image.convert("P", dither=Image.Dither.NONE)
    if mode in ("RGBA", "LA"):
        image = image.convert(mode)
        image.putalpha(Image.fromarray(255 - grey))
        return image
    return image.convert(mode)


def sampled(tiles: np.ndarray) -> list[float]:
    """Return the mean and some values of the tiles of a picture, [n, 3, height, width]."""
    places = np.linspace(0, tiles.size - 1, _N_POSITIONS, dtype=np.int64)
    values = [tiles.mean(dtype=np.float64), *tiles.ravel()[places]]
    return [round(float(value), 7) for value in values]


def _recorded() -> dict[str, Any]:
    import transformers

    told: dict[str, Any] = {"transformers": transformers.__version__}
    for case, (name, settings) in CASES.items():
        processor, told[case] = getattr(transformers, name)(**settings), []
        splits = {"return_row_col_info": True} if "longest_edge" in settings["size"] else {}
        for pixels in pictures():
            made = processor(
                pixels, return_tensors="np", input_data_format="channels_last", **splits
            )
            tiles = made["pixel_values"][0] if splits else made["pixel_values"]
            entry = {"shape": list(tiles.shape), "values": sampled(tiles)}
            if splits:
                entry |= {"rows": made["rows"][0][0], "columns": made["cols"][0][0]}
            told[case].append(entry)
    return told


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(_recorded()) + "\n")
