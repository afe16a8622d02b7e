"""Idefics3 and SmolVLM: a picture is cut into squares, and a small copy of the whole comes last."""

from __future__ import annotations

import math
from pathlib import Path

from ....pictures import Pixels
from ..companions import number, read, section
from .base import Family

_MOST = 4096  # pixels of the longer side, whatever the file says
_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"


class Idefics3(Family):
    """The family of Idefics3ImageProcessor and SmolVLMImageProcessor in transformers.

    most_tokens: a picture that would have more tokens is cut into fewer squares.
    """

    default_resample = 1  # Lanczos

    def __init__(self, folder: Path, most_tokens: int) -> None:
        super().__init__(folder)
        self._side = self.side(section(self.settings, "max_image_size"), "longest_edge")
        self.height = self.width = self._side
        longest = self.side(section(self.settings, "size"), "longest_edge")
        self._longest = min(longest, _MOST)
        self._splits = bool(self.settings.get("do_image_splitting", True))
        self.n_tokens = number(folder, self.processor, "image_seq_len") or self._usual_tokens()
        self._most_squares = most_tokens // self.n_tokens - 1

    def _usual_tokens(self) -> int:
        config = read(self.folder, "config.json")
        patch = self.side(section(config, "vision_config"), "patch_size")
        n = (self._side // patch) ** 2 // self.side(config, "scale_factor") ** 2
        if not n:
            raise self._wrong("the number of tokens", n, "at least 1")
        return n

    def around(self, width: int, height: int) -> list[str]:
        """Return the texts around the tiles, which name the row and the column of each square."""
        width, height = self._whole_squares(*self._scaled(width, height))
        rows, columns = height // self._side, width // self._side
        if rows * columns == 1:
            return [_AROUND + _WHOLE, _AROUND]
        texts = []
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                line_end = "\n" if column == 1 and row > 1 else ""
                texts.append(f"{line_end}{_AROUND}<row_{row}_col_{column}>")
        return [*texts, f"\n\n{_AROUND}{_WHOLE}", _AROUND]

    def tiles(self, pixels: Pixels) -> list[Pixels]:
        """Return the squares, row by row, and the whole picture in the size of one of them."""
        side, (height, width, _) = self._side, pixels.shape
        scaled = self._scaled(width, height)
        whole = self.resized(self.resized(pixels, *scaled), *self._whole_squares(*scaled))
        squares = [
            whole[y : y + side, x : x + side]
            for y in range(0, whole.shape[0], side)
            for x in range(0, whole.shape[1], side)
        ]
        return squares if len(squares) == 1 else [*squares, self.resized(whole, side, side)]

    def _scaled(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height of a picture with the longest side that gives no more squares
        than may be.
        """
        for longest in range(self._longest, self._side, -self._side):
            scaled = _with_longest(width, height, longest)
            across, down = (n // self._side for n in self._whole_squares(*scaled))
            if across * down <= self._most_squares:
                return scaled
        return _with_longest(width, height, min(self._longest, self._side))

    def _whole_squares(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height in whole squares, the longer side first rounded up."""
        if not self._splits:
            return self._side, self._side
        ratio = width / height
        if width >= height:
            width = self._rounded_up(width)
            return width, self._rounded_up(int(width / ratio))
        height = self._rounded_up(height)
        return self._rounded_up(int(height * ratio)), height

    def _rounded_up(self, length: int) -> int:
        return max(1, math.ceil(length / self._side)) * self._side


def _with_longest(width: int, height: int, longest: int) -> tuple[int, int]:
    """Return the width and height of a picture whose longer side is `longest`. The shorter side is
    even.
    """
    ratio = width / height
    if width >= height:
        height = int(longest / ratio)
        return longest, max(1, height + height % 2)
    width = int(longest * ratio)
    return max(1, width + width % 2), longest
