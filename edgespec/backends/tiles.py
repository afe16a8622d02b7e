"""Pictures as models read them: tiles, whose tokens stand in a text with the token ids."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

_ids = itertools.count(2)


class Tile:
    """A picture, or one of the slices that an engine cuts a picture into. It is evaluated as a
    whole, and its tokens have no ids: all are the same negative number `id`, which no other tile of
    this process has. It is never -1, which separates texts.

    positions: int32 [n_rows, n_tokens], the position of each token, counted from the position of
    the tile's first one. Most models have one row of positions, models with M-RoPE have four (time,
    height, width, and one that is not used). n_positions: how many positions later the next token
    comes. is_causal: its tokens see only earlier ones, like text. embeddings: float32 [n_tokens,
    width], which the model reads in place of tokens; None while they are not known. name: how
    messages name the picture.
    """

    name = "the picture"

    def __init__(
        self, n_tokens: int, n_positions: int, positions: npt.NDArray[np.int32], is_causal: bool
    ) -> None:
        self.id = -next(_ids)
        self.n_tokens, self.n_positions = n_tokens, n_positions
        self.positions, self.is_causal = positions, is_causal
        self.embeddings: npt.NDArray[np.float32] | None = None

    @property
    def tokens(self) -> list[int]:
        """The tokens, for a list of token ids."""
        return [PictureToken(self)] * self.n_tokens


class PictureToken(int):
    """A token of a tile. It keeps its tile in memory wherever it is."""

    tile: Tile

    def __new__(cls, tile: Tile) -> PictureToken:
        """Return a token of a tile: the number `tile.id`."""
        token = super().__new__(cls, tile.id)
        token.tile = tile
        return token


def tile_of(tokens: Sequence[int]) -> Tile:
    """Return the tile that these tokens are. Raises ValueError if they are not exactly one tile."""
    token = tokens[0]
    if not isinstance(token, PictureToken):
        raise ValueError(f"{token} is not a token of a picture")
    if len(tokens) != token.tile.n_tokens or any(each != token for each in tokens):
        raise ValueError(
            f"{len(tokens)} tokens of a picture, expected the {token.tile.n_tokens} of one tile: a "
            "tile is evaluated in a call of its own"
        )
    return token.tile


def tiles_in(tokens: Sequence[int]) -> list[range]:
    """Return the place of each tile in a text, [] for a text without pictures."""
    if not tokens or min(tokens) >= 0:
        return []
    places, i, n = [], 0, len(tokens)
    while i < n:
        token = tokens[i]
        size = token.tile.n_tokens if isinstance(token, PictureToken) else 0
        if size:
            places.append(range(i, i + size))
        i += size or 1
    return places


def whole_tiles(tokens: Sequence[int], n: int) -> int:
    """Return the largest number of first tokens, at most `n`, that ends inside no tile."""
    token = tokens[n - 1] if n else 0
    if not isinstance(token, PictureToken):
        return n
    start = n
    while start and tokens[start - 1] == token:
        start -= 1
    return n - (n - start) % token.tile.n_tokens


def without_pictures(tokens: Iterable[int]) -> list[int]:
    """Return a text without the tokens of pictures."""
    return [token for token in tokens if token >= 0]
