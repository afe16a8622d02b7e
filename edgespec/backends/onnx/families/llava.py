"""LLaVA: a picture is one tile, in the size that its CLIP or SigLIP encoder reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ....pictures import Pixels
from ..companions import number, read, section
from .base import Family

_LARGEST = 4096  # pixels of a side that is padded


class Llava(Family):
    """The family of CLIPImageProcessor, SiglipImageProcessor and LlavaImageProcessor in
    transformers, with LlavaForConditionalGeneration. Each picture has the same number of tokens.
    """

    default_resample = 3  # bicubic

    def __init__(self, folder: Path, most_tokens: int) -> None:
        super().__init__(folder)
        settings = self.settings
        kind = str(settings.get("image_processor_type", "CLIPImageProcessor"))
        self._pads = "Llava" in kind and bool(settings.get("do_pad"))
        self._crops = "Siglip" not in kind and bool(settings.get("do_center_crop", True))
        size, crop = settings.get("size"), settings.get("crop_size")
        size = size if isinstance(size, dict) else {"shortest_edge": size}  # old files: a number
        crop = crop if isinstance(crop, dict) else {"height": crop, "width": crop}
        self._shortest = self.side(size, "shortest_edge") if "shortest_edge" in size else 0
        final = crop if self._crops else size
        self.height, self.width = self.side(final, "height"), self.side(final, "width")
        if not self._shortest:
            self._size = self.side(size, "width"), self.side(size, "height")
        least = [self._shortest] * 2 if self._shortest else self._size
        if least[0] < self.width or least[1] < self.height:
            raise self._wrong("crop_size", final, f"at most the size {size}")
        self.n_tokens = self._count()

    def _count(self) -> int:
        """Return the number of tokens, as LlavaProcessor counts them: patches, and one more of a
        CLIP encoder, which the strategy "default" drops again.
        """
        config = read(self.folder, "config.json")
        tower, told = section(config, "vision_config"), self.processor
        has_one_more = "siglip" not in str(tower.get("model_type"))
        patch = self.side(tower | told, "patch_size")
        n = (self.height // patch) * (self.width // patch)
        more = "num_additional_image_tokens"
        n += number(self.folder, told, more) if more in told else has_one_more
        name = "vision_feature_select_strategy"
        drops: bool = told.get(name, config.get(name, "default")) == "default"
        return n - drops

    def around(self, width: int, height: int) -> list[str]:
        """Return two empty texts: there is one tile, without tokens around it."""
        return ["", ""]

    def tiles(self, pixels: Pixels) -> list[Pixels]:
        """Return the picture as one tile: padded to a square if the file says so, resized, and its
        middle cut out.
        """
        if self._pads:
            pixels = self._squared(pixels)
        height, width, _ = pixels.shape
        if shortest := self._shortest:
            longest = int(shortest * max(width, height) / min(width, height))
            size = (shortest, longest) if width <= height else (longest, shortest)
        else:
            size = self._size
        resized = self.resized(pixels, *size)
        top, left = (size[1] - self.height) // 2, (size[0] - self.width) // 2
        return [resized[top : top + self.height, left : left + self.width]]

    def _squared(self, pixels: Pixels) -> Pixels:
        """Return the picture in the middle of a square of the mean colour. A large picture is made
        smaller first, because the square of a long one would fill the memory.
        """
        height, width, _ = pixels.shape
        if (side := max(height, width)) > _LARGEST:
            shape = (max(1, each * _LARGEST // side) for each in (width, height))
            return self._squared(self.resized(pixels, *shape))
        square = np.empty((side, side, 3), np.uint8)
        square[:] = [int(each * 255) for each in self._mean.tolist()]
        top, left = (side - height) // 2, (side - width) // 2
        square[top : top + height, left : left + width] = pixels
        return square
