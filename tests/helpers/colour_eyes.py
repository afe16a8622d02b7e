"""Eyes that see colours: random towers whose last matrix is fitted by least squares, so that a
picture of one colour becomes the token embeddings of a caption that names it. The text model is
SmolLM2, which was never trained to see.
"""

import functools
from pathlib import Path

import gguf
import numpy as np

from edgespec import EngineConfig
from edgespec.backends.tiles import tile_of, tiles_in
from edgespec.loading.models import open_model
from edgespec.pictures import picture
from tests.helpers import projector_files
from tests.helpers.colours import COLOURS

WIDTHS = {"gemma3": 320}  # of towers; 64 by default
_RENAMED = {"<repo_name>": "<fake_token_around_image>", "<reponame>": "<global-img>"}
_SECTIONS = [8, 12, 12, 0]
_RIDGE, _N_SHADES = 1e-4, 6  # a stronger one shortens the embeddings, and rare colours are lost


def text_model(source: Path, kind: str, folder: Path) -> Path:
    """Return the text model for a kind of projector: SmolLM2 itself, or a copy with the tokens that
    idefics3 needs, or one whose positions have several axes, as in Qwen2-VL.
    """
    if kind == "idefics3":
        return _copied(source, folder / "smollm2-idefics3.gguf", renamed=_RENAMED)
    if kind == "qwen2vl_merger":
        return _copied(source, folder / "smollm2-qwen2vl.gguf", architecture="qwen2vl")
    return source


def _copied(
    source: Path, path: Path, architecture: str = "llama", renamed: dict[str, str] | None = None
) -> Path:
    if path.exists():
        return path
    reader = _reader(source)
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value, kind = field.contents(), field.types[0]
        if key == "tokenizer.ggml.tokens":
            value = [(renamed or {}).get(each, each) for each in value]
        key = key.replace("llama.", f"{architecture}.", 1) if key.startswith("llama.") else key
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kind)
    heads, kv = (
        reader.fields[f"llama.attention.head_count{end}"].contents() for end in ("", "_kv")
    )
    if architecture == "qwen2vl":
        writer.add_array("qwen2vl.rope.dimension_sections", _SECTIONS)
    for tensor in reader.tensors:
        data = tensor.data
        if architecture == "qwen2vl" and ("attn_q." in tensor.name or "attn_k." in tensor.name):
            data = _unpaired(data, heads if "attn_q." in tensor.name else kv)
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _unpaired(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Return the rows of queries or keys in the order of models that rotate the halves of a head,
    where they were in the order of models that rotate pairs of neighbours.
    """
    pairs = rows.reshape(n_heads, len(rows) // n_heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def flat(kind: str, colour: tuple[int, int, int]) -> np.ndarray:
    """Return a picture of one colour."""
    return projector_files.colours(kind, colour)


def fitted(path: Path, text: Path, kind: str) -> Path:
    """Write a projector that sees colours, for a text model, and return its path."""
    width, seen = WIDTHS.get(kind, 64), []
    n_out = int(_reader(text).fields[_width_key(text)].contents())

    def selecting(rows: int, columns: int) -> np.ndarray:
        seen.append(columns)
        return np.eye(rows, columns)

    probe = path.with_suffix(".probe.gguf")
    projector_files.write(probe, kind, n_out, width=width, final=selecting)
    config = EngineConfig(n_ctx=256, mmproj=str(probe), n_threads=1, n_gpu_layers=0)
    model, rng = open_model(text, config), np.random.default_rng(1)
    given, wanted = [], []
    for name, colour in COLOURS.items():
        caption = f" a picture. The whole picture is {name}, a plain {name} square"
        caption = f" {name}" if kind == "qwen2vl_merger" else caption
        ids = model.tokenizer.encode(caption, add_special=False)
        for i in range(_N_SHADES):
            shade = np.clip(np.array(colour) + (rng.integers(-8, 9, 3) if i else 0), 0, 255)
            tokens = model.eyes.read(picture(flat(kind, tuple(shade))))
            for place in tiles_in(tokens):
                tile = tile_of(tokens[place.start : place.stop])
                given.append(model.eyes.encode(tile)[:, : seen[0]].copy())
                wanted.append(_embeddings(text, (ids * len(place))[: len(place)]))
    model.close()
    probe.unlink()
    x, y = np.concatenate(given), np.concatenate(wanted)
    ridge = _RIDGE * len(x) * np.eye(seen[0])
    last = np.linalg.solve(x.T @ x + ridge, x.T @ y).T
    return projector_files.write(path, kind, n_out, width=width, final=lambda *_: last)


@functools.cache
def _reader(path: Path) -> gguf.GGUFReader:
    return gguf.GGUFReader(path)


def _width_key(text: Path) -> str:
    architecture = _reader(text).fields["general.architecture"].contents()
    return f"{architecture}.embedding_length"


@functools.cache
def _table(text: Path) -> gguf.ReaderTensor:
    tensors = _reader(text).tensors
    return next(tensor for tensor in tensors if tensor.name == "token_embd.weight")


def _embeddings(text: Path, ids: list[int]) -> np.ndarray:
    table = _table(text)
    rows = table.data.reshape(int(table.shape[1]), -1)[ids]
    return gguf.quants.dequantize(rows, table.tensor_type).astype(np.float32)
