"""The contract of a family, and what all families do with pixels: resize, rescale, normalise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import ModelError, ModelNotFound
from ....pictures import Pixels, check_pillow
from ..companions import number, read, section

FILE = "preprocessor_config.json"
PROBED = [  # widths and heights of pictures, from which all ways to cut them follow
    size for n in (1024, 2048, 3072, 4096) for size in ((4096, n), (n, 4096))
]
_LONGEST = 8192  # pixels of a side that a configuration may ask for
_RESAMPLES = range(6)  # Pillow's filters


class Family(ABC):
    """The preparation of pictures for the models of a family, as preprocessor_config.json says.

    A picture is cut into tiles of one size. folder: the folder of the graphs. kind: the model_type.
    n_tokens: the tokens of each tile. height, width: of a tile, in pixels. Raises ModelError or a
    subclass if files are missing or damaged, ConfigError without Pillow.
    """

    kind: str
    n_tokens: int
    height: int
    width: int

    def __init__(self, folder: Path) -> None:
        check_pillow()
        self.folder = folder
        joint = read(folder, "processor_config.json")  # newer repositories have all in this file
        self.settings = read(folder, FILE) or section(joint, "image_processor")
        self.processor = joint
        if not self.settings:
            raise ModelNotFound(
                f"there is no {FILE} with the model in {folder}, which says how pictures are "
                "prepared; fetch it from the same repository"
            )
        self.resample = self.settings.get("resample", self.default_resample)
        if self.resample not in _RESAMPLES:
            raise self._wrong("resample", self.resample, "a number from 0 to 5")
        does = self.settings.get
        scale = does("rescale_factor", 1 / 255) if does("do_rescale", True) else 1.0
        self._scale = self._numbers("rescale_factor", scale)[0]
        if does("do_normalize", True):
            self._mean = self._numbers("image_mean", does("image_mean"))
            self._std = self._numbers("image_std", does("image_std"))
        else:
            self._mean, self._std = (np.full(3, each, np.float32) for each in (0, 1))

    default_resample: int
    """Pillow's filter if the file names none."""

    @abstractmethod
    def around(self, width: int, height: int) -> list[str]:
        """Return the texts before, between and after the tiles of a picture of this size: one more
        than it has tiles.
        """

    @abstractmethod
    def tiles(self, pixels: Pixels) -> list[Pixels]:
        """Cut a picture into tiles, each uint8 [height, width, 3]."""

    def most_tokens(self) -> int:
        """Return the most tokens of a picture, without those around its tiles."""
        return self.n_tokens * max(len(self.around(*size)) - 1 for size in PROBED)

    def normalised(self, tile: Pixels) -> npt.NDArray[np.float32]:
        """Return a tile as the encoder reads it, float32 [3, height, width]."""
        scaled = (tile * np.float64(self._scale)).astype(np.float32)
        return np.ascontiguousarray(((scaled - self._mean) / self._std).transpose(2, 0, 1))

    def resized(self, pixels: Pixels, width: int, height: int) -> Pixels:
        """Return a picture in another size."""
        from PIL import Image

        return np.asarray(Image.fromarray(pixels).resize((width, height), self.resample))

    def side(self, table: dict[str, Any], name: str) -> int:
        """Return a length in pixels that a configuration has. Raises ModelError."""
        length = number(self.folder, table, name)
        if not 0 < length <= _LONGEST:
            raise self._wrong(name, length or "missing", f"a length of at most {_LONGEST} pixels")
        return length

    def _numbers(self, name: str, given: Any) -> npt.NDArray[np.float32]:
        """Return three numbers, one for each colour, that are given as three or as one."""
        try:
            numbers = np.broadcast_to(np.asarray(given, np.float32), 3)
        except (TypeError, ValueError):
            raise self._wrong(name, given, "a number for each colour") from None
        if not np.isfinite(numbers).all() or (name != "image_mean" and not numbers.all()):
            raise self._wrong(name, given, "numbers other than 0")
        return numbers

    def _wrong(self, name: str, value: Any, expected: str) -> ModelError:
        return ModelError(
            f"{self.folder}: {name} of the picture's preparation is {value!r:.60}; {expected} is "
            f"expected: fetch {FILE} again"
        )
