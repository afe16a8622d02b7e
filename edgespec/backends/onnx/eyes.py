"""The eyes of a model: a vision encoder, and the preparation of pictures for it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...config import EngineConfig
from ...errors import Aborted, ConfigError, DecodeError, UnknownArchitecture
from ...pictures import Picture, Pixels
from ...types import Abort
from ..base import Tokenizer
from ..keeping_eyes import MOST_BYTES, KeepingEyes, KeptTile, TileKey, check_width
from .abort import AbortableRun
from .families import family_of
from .families.base import PROBED, Family
from .session import open_session

_PIXELS, _MASK, _FEATURES = "pixel_values", "pixel_attention_mask", "image_features"
_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_KINDS: dict[str, dict[str, Any]] = {
    _PIXELS: _FLOATS,
    _MASK: {"tensor(bool)": np.bool_, "tensor(int64)": np.int64},
}


class OnnxEyes(KeepingEyes):
    """A graph vision_encoder next to a decoder. For several threads.

    path: the graph. width: the count of numbers in an embedding that the decoder reads. Raises the
    errors of `family_of` and `open_session`, UnknownArchitecture for a graph with other inputs, and
    ConfigError for one that does not fit the decoder or its tokenizer.
    """

    def __init__(
        self,
        path: Path,
        *,
        config: EngineConfig,
        n_threads: int,
        tokenizer: Tokenizer,
        width: int,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        super().__init__(most_bytes)
        self.path, self.width, self._tokenizer = path, width, tokenizer
        self.family: Family = family_of(path.parent, config.image_max_tokens)
        self._check_tokens()
        self._session: Any = open_session(path, config, n_threads)
        self._inputs = {each.name: each for each in self._session.get_inputs()}
        self._check_graph()
        self._run = AbortableRun(path)
        self._cut: tuple[bytes, Sequence[Pixels]] = (b"", ())  # the picture that is being encoded
        self.most_tokens = self.family.most_tokens()

    def _check_tokens(self) -> None:
        """Raise ConfigError if the vocabulary lacks a token that the family puts around tiles."""
        for width, height in PROBED:
            for text in self.family.around(width, height):
                for name in text.replace("\n", "").replace(">", "> ").split():
                    if len(self._ids(name)) != 1:
                        raise ConfigError(
                            f"{self.family.kind} puts {name} around pictures, which this model's "
                            "vocabulary does not have: fetch tokenizer.json again"
                        )

    def _check_graph(self) -> None:
        for name, each in self._inputs.items():
            if each.type not in _KINDS.get(name, ()):
                raise UnknownArchitecture(
                    f"{self.path} takes {name}, {each.type}; an encoder with {_PIXELS} and "
                    f"{_MASK} is expected"
                )
        shape: list[Any] = self._inputs[_PIXELS].shape if _PIXELS in self._inputs else []
        if len(shape) < 3:
            raise UnknownArchitecture(
                f"{self.path} takes no {_PIXELS} with height and width, so it is no vision encoder"
            )
        sides = self.family.height, self.family.width
        for told, expected in zip(shape[-2:], sides, strict=True):
            if isinstance(told, int) and told != expected:
                raise ConfigError(
                    f"{self.path} reads pictures of {shape[-1]}x{shape[-2]} pixels, and "
                    f"preprocessor_config.json makes {sides[1]}x{sides[0]}: fetch both from the "
                    "same repository"
                )
        outputs = {each.name: each for each in self._session.get_outputs()}
        self._output = _FEATURES if _FEATURES in outputs else next(iter(outputs))
        width = (outputs[self._output].shape or [None])[-1]
        if isinstance(width, int):
            check_width(self.path.name, width, self.width)

    def read(self, picture: Picture, owner: str = "") -> list[int]:
        """Return the tokens of a picture, with the token ids that the model has around it. Nothing
        is encoded.
        """
        first, *others = self.family.around(picture.width, picture.height)
        tokens = self._ids(first)
        for place, text in enumerate(others):
            key = TileKey(picture.digest, owner, place)
            tokens += self.known(key, functools.partial(self._tile, picture, key)).tokens
            tokens += self._ids(text)
        return tokens

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False) if text else []

    def _tile(self, picture: Picture, key: TileKey) -> KeptTile:
        n = self.family.n_tokens
        return KeptTile(picture, key, n, n, np.arange(n, dtype=np.int32)[None], is_causal=True)

    def _encode(self, tile: KeptTile, abort: Abort) -> npt.NDArray[np.float32]:
        """Encode a tile. The pixels of its picture are kept for the picture's other tiles."""
        digest, place = tile.key.digest, tile.key.place
        if self._cut[0] != digest:
            self._cut = (digest, self.family.tiles(tile.pixels()))
        _, tiles = self._cut
        embeddings = self._encoded_pixels(tiles[place], abort)
        if place == len(tiles) - 1:
            self._cut = (b"", ())
        rows = embeddings.astype(np.float32).reshape(-1, embeddings.shape[-1])
        check_width(self.path.name, rows.shape[1], self.width)
        if len(rows) != tile.n_tokens:
            raise ConfigError(
                f"{self.path.name} makes {len(rows)} embeddings of a picture, and the model's "
                f"settings say {tile.n_tokens}: fetch processor_config.json and config.json again"
            )
        if not np.isfinite(rows).all():
            raise DecodeError(
                f"{self.path.name} makes numbers of {tile.name} that are not finite; take it in "
                "another precision"
            )
        return rows

    def _encoded_pixels(self, tile: Pixels, abort: Abort) -> npt.NDArray[Any]:
        """Return what the graph makes of the pixels of a tile."""
        height, width, _ = tile.shape
        given: dict[str, npt.NDArray[Any]] = {
            _PIXELS: self.family.normalised(tile),
            _MASK: np.ones((height, width)),
        }
        binding = self._session.io_binding()
        for name, each in self._inputs.items():
            array = given[name].astype(_KINDS[name][each.type])
            ones = (1,) * (len(each.shape) - array.ndim)
            binding.bind_cpu_input(name, np.ascontiguousarray(array.reshape(*ones, *array.shape)))
        binding.bind_output(self._output, "cpu")
        try:
            self._run(self._session, binding, abort, 0)
        except Aborted:
            raise Aborted("stopped while a picture was encoded") from None
        features: npt.NDArray[Any] = binding.copy_outputs_to_cpu()[0]
        return features
