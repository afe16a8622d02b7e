"""The eyes of a model: a projector that turns pictures into tiles, with libmtmd."""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import Aborted, ConfigError, DecodeError, ModelError
from ...pictures import Picture, Pixels
from ...types import Abort
from ..keeping_eyes import MOST_BYTES, KeepingEyes, KeptTile, TileKey, check_width
from . import mtmd, projectors
from .declarations import EvalCallback
from .library import lib, native_log

_EVERY = 4  # tensors after which an encoding can be stopped
_LONGEST_REASON = 300  # characters
_PROBED = ((4096, 4096), (4096, 1024), (1024, 4096), (896, 896), (64, 64))  # pixels


class LlamaCppEyes(KeepingEyes):
    """A projector file, opened for a model. For several threads.

    model: the native model, which has to be open as long as this object is used.

    most_together: the most tokens of a tile that has to be evaluated in one native call; 0 if all
    tiles are causal. most_tokens: the most tokens of the pictures whose sizes were tried. Raises
    ModelError or a subclass for a file that cannot be loaded, ConfigError for one that does not fit
    the model.
    """

    def __init__(
        self,
        path: Path,
        model: Any,
        *,
        most_tokens: int,
        n_threads: int,
        use_gpu: bool = False,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.projector = projectors.check(path)
        self._mtmd = mtmd.opened()
        self.width: int = lib.llama_model_n_embd_inp(model)
        check_width(path.name, self.projector.width or self.width, self.width)
        super().__init__(most_bytes)
        self._abort: Abort | None = None
        self._stopped = False
        self._n_asked = 0
        self._watch = EvalCallback(self._watched)
        self._context = self._open(path, model, most_tokens, n_threads, use_gpu)
        self._close = weakref.finalize(self, self._mtmd.mtmd_free, self._context)
        self._cut: tuple[bytes, Any] = (b"", None)  # the picture whose chunks are open
        try:
            self.most_together, self.most_tokens = self._probe()
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path, model: Any, most: int, n_threads: int, use_gpu: bool) -> Any:
        params = self._mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads = use_gpu, n_threads
        params.print_timings = params.warmup = False
        params.image_max_tokens = most
        params.cb_eval = ctypes.cast(self._watch, ctypes.c_void_p)
        with native_log() as lines:
            context = self._mtmd.mtmd_init_from_file(os.fsencode(path), model, params)
        if not context:
            said = next((line for line in reversed(lines) if "error" in line.lower()), "")
            raise ModelError(
                f"the projector {path} cannot be loaded: {said[:_LONGEST_REASON] or 'no reason'}"
            )
        return context

    def _probe(self) -> tuple[int, int]:
        """Read pictures of several sizes, without their pixels; return `most_together` and
        `most_tokens`. Raises ConfigError if the model's vocabulary lacks tokens that are put around
        pictures.
        """
        most = most_tokens = 0
        for width, height in _PROBED:
            n_tokens = 0
            with self._chunks(width, height) as chunks:
                for text, chunk in self._listed(chunks):
                    if any(token < 0 for token in text):
                        raise ConfigError(
                            f"{self.projector.path.name} ({self.projector.kind}) puts tokens "
                            "around pictures that this model's vocabulary does not have: name the "
                            "mmproj that was published with the model"
                        )
                    n = self._mtmd.mtmd_input_chunk_get_n_tokens(chunk) if chunk else 0
                    n_tokens += n
                    if chunk and self._mtmd.mtmd_decode_use_non_causal(self._context, chunk):
                        most = max(most, n)
            most_tokens = max(most_tokens, n_tokens)
        return most, most_tokens

    def read(self, picture: Picture, owner: str = "") -> list[int]:
        """Return the tokens of a picture, with the token ids that the model has around it. Nothing
        is encoded, and nothing waits for a picture that is: mtmd.h says that tokenizing is for
        several threads.
        """
        tokens: list[int] = []
        with self._chunks(picture.width, picture.height) as chunks:
            place = 0
            for text, chunk in self._listed(chunks):
                tokens += text
                if chunk:
                    key = TileKey(picture.digest, owner, place)
                    tokens += self._tile(picture, key, chunk).tokens
                    place += 1
        return tokens

    def close(self) -> None:
        """Free the projector. Calling it twice is harmless."""
        self._worker.shutdown()
        self._forget_chunks()
        self._close()

    def _tile(self, picture: Picture, key: TileKey, chunk: Any) -> KeptTile:
        """Return the tile of a chunk."""

        def made() -> KeptTile:
            n: int = self._mtmd.mtmd_input_chunk_get_n_tokens(chunk)
            n_positions: int = self._mtmd.mtmd_input_chunk_get_n_pos(chunk)
            is_causal = not self._mtmd.mtmd_decode_use_non_causal(self._context, chunk)
            return KeptTile(picture, key, n, n_positions, self._positions(chunk, n), is_causal)

        return self.known(key, made)

    def _positions(self, chunk: Any, n: int) -> npt.NDArray[np.int32]:
        if not self._mtmd.mtmd_decode_use_mrope(self._context):
            return np.arange(n, dtype=np.int32)[None]
        image = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        position = self._mtmd.mtmd_image_tokens_get_decoder_pos
        each = [position(image, 0, i) for i in range(n)]
        return np.array([[getattr(p, axis) for p in each] for axis in "tyxz"], np.int32)

    def _encode(self, tile: KeptTile, abort: Abort) -> npt.NDArray[np.float32]:
        """Encode a tile. The chunks of its picture stay open for the picture's other tiles."""
        try:
            if self._cut[0] != tile.key.digest:
                self._forget_chunks()
                shown, pixels = tile.picture, np.ascontiguousarray(tile.pixels())
                chunks = self._tokenized(shown.width, shown.height, pixels)
                self._cut = (tile.key.digest, chunks)
            images = [chunk for _, chunk in self._listed(self._cut[1]) if chunk]
            embeddings = self._encode_chunk(images[tile.key.place], tile.n_tokens, abort)
        except BaseException:
            self._forget_chunks()
            raise
        if tile.key.place == len(images) - 1:
            self._forget_chunks()
        return embeddings

    def _encode_chunk(self, chunk: Any, n: int, abort: Abort) -> npt.NDArray[np.float32]:
        self._abort, self._stopped = abort, False
        try:
            code = self._mtmd.mtmd_encode_chunk(self._context, chunk)
        finally:
            self._abort = None
        if self._stopped:  # the engine reports success, and what it has computed means nothing
            raise Aborted("stopped while a picture was encoded")
        address = self._mtmd.mtmd_get_output_embd(self._context)
        if code or not address:
            raise DecodeError(f"{self.projector.path.name}: encoding failed with code {code}")
        native = (ctypes.c_float * (n * self.width)).from_address(address)
        embeddings: npt.NDArray[np.float32] = np.array(native, np.float32)
        return embeddings.reshape(n, self.width)

    def _watched(self, tensor: Any, asked: bool, _: Any) -> bool:
        """Return True for some tensors when the engine asks whether it should stop after them;
        once one of these is computed, return False if the encoding should stop.
        """
        if asked:
            self._n_asked += 1
            return self._n_asked % _EVERY == 0
        self._stopped = self._stopped or bool(self._abort and self._abort())
        return not self._stopped

    @contextlib.contextmanager
    def _chunks(self, width: int, height: int) -> Iterator[Any]:
        """Yield the native chunks of a picture of this size, without pixels."""
        chunks = self._tokenized(width, height, None)
        try:
            yield chunks
        finally:
            self._mtmd.mtmd_input_chunks_free(chunks)

    def _tokenized(self, width: int, height: int, pixels: Pixels | None) -> Any:
        address = None if pixels is None else pixels.ctypes.data
        bitmap = self._mtmd.mtmd_bitmap_init(width, height, address)
        part = ctypes.pointer(mtmd.InputPart(None, bitmap))
        parts = (ctypes.POINTER(mtmd.InputPart) * 1)(part)
        chunks = self._mtmd.mtmd_input_chunks_init()
        with native_log() as lines:
            code = self._mtmd.mtmd_tokenize_from_parts(self._context, chunks, parts, 1, False)
        self._mtmd.mtmd_bitmap_free(bitmap)
        if code:
            self._mtmd.mtmd_input_chunks_free(chunks)
            said = lines[-1][:_LONGEST_REASON] if lines else "no reason given"
            raise ConfigError(
                f"{self.projector.path.name} takes no picture of {width}x{height} pixels: {said}"
            )
        return chunks

    def _listed(self, chunks: Any) -> Iterator[tuple[Sequence[int], Any]]:
        """Yield the token ids of each chunk of text, and each chunk of a picture."""
        for i in range(self._mtmd.mtmd_input_chunks_size(chunks)):
            chunk = self._mtmd.mtmd_input_chunks_get(chunks, i)
            if self._mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.IMAGE:
                yield (), chunk
            else:
                n = ctypes.c_size_t()
                ids = self._mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
                yield ids[: n.value], None

    def _forget_chunks(self) -> None:
        _, chunks = self._cut
        self._cut = (b"", None)
        if chunks:
            self._mtmd.mtmd_input_chunks_free(chunks)
