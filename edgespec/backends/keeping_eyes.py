"""Eyes that keep the embeddings of pictures, so that a second question does not encode again."""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import Aborted, ConfigError
from ..pictures import Picture, Pixels
from ..types import Abort, FinishReason
from .base import Eyes, FileModel
from .chunks import chunk_ends
from .helper_threads import end_helper_threads
from .tiles import Tile

MOST_BYTES = 256 << 20  # of embeddings that are kept
_POLL_S = 0.05


class TileKey(NamedTuple):
    """Identifies a tile by the pixels of its picture, the owner, and its number in the picture."""

    digest: bytes
    owner: str
    place: int


class KeptTile(Tile):
    """A tile that knows its picture, so that its embeddings can be computed again."""

    def __init__(
        self,
        picture: Picture,
        key: TileKey,
        n_tokens: int,
        n_positions: int,
        positions: npt.NDArray[np.int32],
        is_causal: bool,
    ) -> None:
        super().__init__(n_tokens, n_positions, positions, is_causal)
        self.picture, self.key, self.name = picture, key, picture.name

    def pixels(self) -> Pixels:
        """Return the pixels of the whole picture. Raises ConfigError if its file has changed."""
        pixels = self.picture.pixels()
        if pixels.shape[:2] != (self.picture.height, self.picture.width):
            raise ConfigError(f"{self.name} has changed since it was read")
        return pixels


def embeddings_of(
    model: FileModel, tile: Tile, n_logits: int, abort: Abort | None
) -> npt.NDArray[np.float32]:
    """Return the embeddings of a tile that `model` is to append, float32 [n_tokens, width]. They
    are computed if they are not known. Raises ContextFull, and the errors of `Eyes.encode`.
    """
    if n_logits:
        raise ValueError("the tokens of a picture have no logits")
    assert model.eyes
    chunk_ends(model, tile.n_tokens, 0)  # raises ContextFull
    return model.eyes.encode(tile, abort)


def check_width(name: str, width: int, wanted: int) -> None:
    """Raise ConfigError if embeddings do not have the width that a model reads. name: of the file
    that makes them.
    """
    if width != wanted:
        raise ConfigError(
            f"{name} makes embeddings of {width} numbers, this model reads {wanted}: take the file "
            "that was published with the model"
        )


class KeepingEyes(Eyes):
    """Eyes that cut a picture into tiles when it is read, and encode it when its first tile is
    evaluated. For several threads.

    A thread of its own encodes one tile after the other. A caller that stops does not wait for it:
    a single operation on a large tile may take seconds, and nothing ends it early.

    The embeddings of the tiles that were used last are kept, at most `most_bytes` of them. Those of
    one owner are not used for another one: the time to the first token would tell what others have
    shown. n_encoded: how many tiles have been encoded.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._lock, self._most_bytes = threading.Lock(), most_bytes
        self._worker = ThreadPoolExecutor(1, "edgespec-eyes")
        self._known: weakref.WeakValueDictionary[TileKey, KeptTile] = weakref.WeakValueDictionary()
        self._encoded: OrderedDict[TileKey, KeptTile] = OrderedDict()
        self.n_encoded = 0

    @abstractmethod
    def _encode(self, tile: KeptTile, abort: Abort) -> npt.NDArray[np.float32]:
        """Compute the embeddings of a tile. Raises Aborted soon after `abort` returned a reason."""

    def known(self, key: TileKey, make: Callable[[], KeptTile]) -> KeptTile:
        """Return the tile with a key: the same one as for the same picture before, as long as
        anything still uses it, or else a new one.
        """
        with self._lock:
            tile = self._known.get(key)
            if tile is None:
                tile = self._known[key] = make()
            return tile

    def encode(self, tile: Tile, abort: Abort | None = None) -> npt.NDArray[np.float32]:
        """Return the embeddings of a tile, float32 [n_tokens, width]; compute them if they are not
        known. Raises Aborted, DecodeError, and ConfigError if the picture cannot be read anymore.
        """
        assert isinstance(tile, KeptTile)
        left = threading.Event()

        def ended() -> FinishReason | None:
            return "cancelled" if left.is_set() else abort() if abort else None

        if ended():
            raise Aborted("stopped before a picture was encoded")
        if (embeddings := tile.embeddings) is not None:
            self._keep(tile)
            return embeddings
        work = self._worker.submit(self._embeddings, tile, ended)
        try:
            while not wait([work], _POLL_S).done:
                if ended():
                    raise Aborted("stopped while a picture was encoded")
            return work.result()
        finally:
            left.set()
            work.cancel()

    def _embeddings(self, tile: KeptTile, abort: Abort) -> npt.NDArray[np.float32]:
        """Return the embeddings of a tile, in the thread that encodes."""
        if (embeddings := tile.embeddings) is None:
            try:
                tile.embeddings = embeddings = self._encode(tile, abort)
            finally:
                end_helper_threads()
            self.n_encoded += 1
        self._keep(tile)
        return embeddings

    def _keep(self, tile: KeptTile) -> None:
        """Keep the embeddings of a tile, and forget those that were used least recently."""
        with self._lock:
            self._encoded[tile.key] = tile
            self._encoded.move_to_end(tile.key)
            n_bytes = sum(each.embeddings.nbytes for each in self._encoded.values()
                          if each.embeddings is not None)  # fmt: skip
            while n_bytes > self._most_bytes and len(self._encoded) > 1:
                _, oldest = self._encoded.popitem(last=False)
                if oldest.embeddings is not None:
                    n_bytes -= oldest.embeddings.nbytes
                    oldest.embeddings = None
