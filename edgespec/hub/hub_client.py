"""Access to the hub through its client, `huggingface_hub`: its cache, its token, its mirrors."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from .. import kept_files
from ..backends.files import (
    EMBEDDING,
    VISION,
    has_folder,
    is_decoder,
    is_stage,
    split_parts,
    stage_names,
)
from ..errors import DownloadError, ModelNotFound
from . import partial_files
from .catalogue import HubSource, ModelFile
from .storage import Progress, models_dir, verify_or_delete

# The client is imported inside the functions that need it: `import edgespec` has to be quick.
log = logging.getLogger(__name__)
T = TypeVar("T")

_COMPANIONS = ("tokenizer.json", "config.json")  # files that an ONNX graph needs next to it
_OPTIONAL = (
    "tokenizer_config.json", "generation_config.json", "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
)  # fmt: skip
_FOR_PICTURES = ("preprocessor_config.json", "processor_config.json", "chat_template.json")
_LONGEST_REF = 256  # bytes
_TIMEOUT_S = 30  # seconds for a list of files
_CONTACT_TRIES = 2
_CONTACT_PAUSE_S = 1.0
_ASKING = "edgespec-hub"  # the name of threads whose request may remain unanswered
_TIMEOUTS = {"TimeoutException", "Timeout", "TimeoutError"}
_DATA, _MOST_DATA = ("_data", ".data"), 10


def sizes(repo: str, revision: str, token: str | None) -> dict[str, int]:
    """Ask the hub for the files of a repository; return their sizes in bytes by path."""
    import huggingface_hub

    try:
        info = huggingface_hub.model_info(
            repo, revision=revision, token=token, files_metadata=True, timeout=_TIMEOUT_S
        )
    except Exception as error:
        raise _hub_error(error, HubSource(repo, "", revision)) from error
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def is_off() -> bool:
    """Return True if HF_HUB_OFFLINE forbids asking the hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def answers(repo: str, timeout_s: float = 2.0) -> bool:
    """Ask the hub once, for at most `timeout_s`, and return whether it knows a repository."""
    import huggingface_hub

    return (
        _within(timeout_s, lambda: huggingface_hub.model_info(repo, timeout=timeout_s)) is not None
    )


def search(name: str, timeout_s: float = 3.0) -> list[str]:
    """Return the hub's repositories with GGUF models whose names match, the most downloaded first.

    The list is empty if the hub must not be asked or does not answer in time.
    """
    import huggingface_hub

    def ask() -> list[str]:
        models = huggingface_hub.list_models(search=name, filter="gguf", sort="downloads", limit=5)
        return [model.id for model in models]

    return [] if is_off() else _within(timeout_s, ask) or []


def _tells_no_retries(record: logging.LogRecord) -> bool:
    return record.threadName != _ASKING


def _within(timeout_s: float, ask: Callable[[], T]) -> T | None:
    """Return the result of `ask`, which asks the hub; None if it fails or takes longer.

    It runs in its own thread, because resolving a host name may take longer than any time limit of
    the client.
    """
    replies: queue.SimpleQueue[T | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            replies.put(ask())
        except Exception as error:  # the client's exceptions differ by version
            log.info("the hub does not answer: %s", _root(error))
            replies.put(None)

    threading.Thread(target=run, name=_ASKING, daemon=True).start()
    # the client prints its retries, which go on for a minute
    logging.getLogger("huggingface_hub.utils._http").addFilter(_tells_no_retries)
    try:
        return replies.get(timeout=timeout_s)
    except queue.Empty:
        return None


@functools.cache
def need_contact() -> None:
    """Raise DownloadError if the hub's host name cannot be resolved or it accepts no connection.

    The client itself would retry for half a minute. If the hub is only slow, nothing is raised.
    Proxies and the endpoint are taken from the environment. An exception is not cached: the next
    call asks again.
    """
    from huggingface_hub import constants

    utils: Any = importlib.import_module("huggingface_hub.utils")
    if is_off():
        return
    for number in range(1, _CONTACT_TRIES + 1):
        try:
            utils.get_session().head(constants.ENDPOINT, timeout=_TIMEOUT_S)
            return
        except Exception as error:  # the client's exceptions differ by version
            if not _is_unreachable(error):
                return
            if number == _CONTACT_TRIES:
                tried = f"{constants.ENDPOINT} was tried {number} times ({_root(error)})"
                raise DownloadError(f"{tried}: {_not_reached(error)}") from None
        time.sleep(_CONTACT_PAUSE_S)


def cached(source: HubSource) -> Path | None:
    """Return the file in the hub's cache, None if that or a file that it needs is missing."""
    beside = _COMPANIONS if has_folder(source.file) else split_parts(source.file)
    path = _in_cache(source)
    return path if all(_in_cache(replace(source, file=name)) for name in beside) else None


def refs(folder: Path) -> dict[str, str]:
    """Return the commits of a repository in the hub's cache, by branch or tag name.

    A ref that cannot be read or names no commit is left out, with a line in the log.
    """
    commits = {}
    for name, path in _ref_files(folder).items():
        try:
            commits[name] = _commit(path)
        except (OSError, ValueError) as error:
            kept_files.leave_out(path, error)
    return commits


def _ref_files(folder: Path) -> dict[str, Path]:
    """Return the files of a repository's refs by name, without those that are being written."""
    return {
        path.relative_to(refs).as_posix(): path
        for refs in kept_files.matching(folder, "refs")
        for path in kept_files.matching(refs, "**/*")
        if not (os.path.isdir(path) or re.search(r"^\.|\.[0-9a-f]{8}\.tmp$", path.name))
    }


def _commit(ref: Path) -> str:
    """Return the commit that a ref's file names. Raises OSError, or ValueError if it names none."""
    commit = kept_files.read(ref, _LONGEST_REF).decode()
    if not re.fullmatch("[0-9a-f]{40}", commit):
        raise ValueError("it names no commit")
    return commit


def _folder_of(repo: str) -> Path:
    """Return the folder of a repository in the hub's cache."""
    return cache_folder() / f"models--{repo.replace('/', '--')}"


def _in_cache(source: HubSource) -> Path | None:
    from huggingface_hub import hf_hub_url

    try:
        hf_hub_url(source.repo, source.file)  # raises for names that the hub does not allow
    except ValueError as error:
        raise ModelNotFound(f"the hub can have no {source.repo}/{source.file}: {error}") from None
    folder = _folder_of(source.repo)
    commit = refs(folder).get(source.revision, source.revision)
    path = folder / "snapshots" / commit / source.file
    return path if re.fullmatch("[0-9a-f]{40}", commit) and os.path.isfile(path) else None


def _prepare_cache(source: HubSource) -> None:
    """Delete damaged refs and the remains of killed downloads in a repository's folder.

    Raises DownloadError if the ref is not a regular file of this user, but for example a pipe.
    """
    from filelock import FileLock, Timeout

    folder = _folder_of(source.repo)
    for name, ref in _ref_files(folder).items():
        commit = kept_files.load(ref, _commit, "the hub is asked for it")
        if commit is None and name == source.revision and os.path.lexists(ref):
            raise DownloadError(f"{ref} is no file of this user that names a commit; delete it")
    for path in kept_files.matching(folder / "blobs", "*.incomplete"):
        # nobody resumes such a file of the client; a process that is writing to it holds the lock
        name, _, rest = path.name.partition(".")
        if re.fullmatch(r"[0-9a-f]{8}\.incomplete", rest):
            lock = FileLock(folder.parent / ".locks" / folder.name / f"{name}.lock")
            with contextlib.suppress(OSError, Timeout), lock.acquire(timeout=0):
                kept_files.remove(path)


def fetch(
    file: ModelFile,
    source: HubSource,
    progress: Progress,
    token: str | None,
    folder: Path | None = None,
) -> Path:
    """Fetch and check `file`; return its path in the hub's cache, or in `folder` if one is given.

    Raises ModelNotFound if the hub does not have it, DownloadError if it could not be fetched.
    """
    import huggingface_hub

    if folder is None:
        _prepare_cache(source)
    need_contact()
    if has_folder(source.file) and not is_stage(source.file):
        # the graph comes last: if it is there, its companions are too
        _fetch_companions(source, progress, token)
    first, *others = split_parts(source.file) or [""]
    for name in others if source.file == first else ():  # the first part comes last, likewise
        part = replace(source, file=name)
        fetch(ModelFile(name.rpartition("/")[2], "", (part,)), part, progress, token)
    try:
        with _hub_progress(file.filename, progress) as options, _hub_log(file.filename, progress):
            if folder or _in_cache(source) is None:
                partial_files.fetch(source, token, _folder_of(source.repo), folder, options)
            if folder:
                options["local_dir"] = folder
            path = huggingface_hub.hf_hub_download(
                source.repo, source.file, revision=source.revision, token=token, **options
            )
        snapshot = Path(path)
        if file.sha256 is None:
            file = replace(file, sha256=_hub_sha256(snapshot, source, token))
    except Exception as error:  # the client's exceptions differ by version
        raise _hub_error(error, source) from error
    verify_or_delete(snapshot, file, progress, _delete)
    return snapshot


def _delete(snapshot: Path) -> None:
    for path in own_files(snapshot):
        path.unlink(missing_ok=True)


def _fetch_companions(source: HubSource, progress: Progress, token: str | None) -> None:
    """Fetch the files next to a graph: its weights if they are separate, tokenizer and settings;
    for the decoder of a vision-language model, also its other graphs.
    """

    def missing(name: str) -> ModelNotFound | None:
        """Fetch a file of the repository; return the error if it is not there."""
        companion = replace(source, file=name)
        try:
            file = ModelFile(name.rpartition("/")[2], "", (companion,))
            fetch(file, companion, progress, token)
        except ModelNotFound as error:
            return error
        return None

    folder, _, decoder = source.file.rpartition("/")
    sees = is_decoder(decoder)
    _fetch_weights(source.file, missing)
    for stage in (EMBEDDING, VISION) if sees else ():
        for name in stage_names(decoder, stage):
            graph = f"{folder}/{name}".lstrip("/")
            _fetch_weights(graph, missing)
            if not missing(graph):
                break
    for name in (*_OPTIONAL, *(_FOR_PICTURES if sees else ())):
        missing(name)
    for name in _COMPANIONS:
        if error := missing(name):
            raise ModelNotFound(
                f"{source.repo} has no {name}, which {folder or 'the graph'} needs next to it: "
                f"{error}"
            )


def _fetch_weights(graph: str, missing: Callable[[str], object]) -> None:
    """Fetch the files with the weights of a graph. Numbered ones have no gaps."""
    for suffix in _DATA:
        missing(graph + suffix)
    for number in range(1, _MOST_DATA):
        if missing(f"{graph}_data_{number}"):
            return


def left_alone(graph: Path) -> list[Path]:
    """Return the tokenizer and the settings of a graph that was deleted from the hub's cache, [] if
    other files of its revision are left.
    """
    home = next(each for each in graph.parents if each.parent.name == "snapshots")
    left = [path for path in home.rglob("*") if not path.is_dir()]
    companions = {home / name for name in (*_COMPANIONS, *_OPTIONAL, *_FOR_PICTURES)}
    return left if companions.issuperset(left) else []


def own_files(path: Path) -> list[Path]:
    """Return the paths that make up a file of the hub's cache: snapshot, blob, any shared blob.

    Files outside the cache, to which a link may lead, are left out.
    """
    from huggingface_hub import constants

    home = next((p.parent for p in path.parents if p.name == "snapshots"), path.parent)
    inside = [Path(os.path.realpath(folder)) for folder in (constants.HF_HUB_CACHE, home)]
    chain = [path]
    while chain[-1].is_symlink():
        chain.append(chain[-1].parent / os.readlink(chain[-1]))
    real = [Path(os.path.realpath(each.parent), each.name) for each in chain]
    return [each for each in real if any(map(each.is_relative_to, inside))]


def _hub_sha256(snapshot: Path, source: HubSource, token: str | None) -> str | None:
    """Return the SHA-256 that the hub states as the etag of large files; None for small ones."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    if snapshot.is_symlink():  # to a blob that is named by its etag
        etag: str | None = os.path.basename(os.readlink(snapshot))
    else:
        url = hf_hub_url(source.repo, source.file, revision=source.revision)
        etag = get_hf_file_metadata(url, token=token).etag
    return etag if etag and re.fullmatch("[0-9a-f]{64}", etag) else None


@contextmanager
def _hub_log(filename: str, progress: Progress) -> Iterator[None]:
    """Report the client's warnings about retries as progress.

    Otherwise the client would print them, for up to half a minute.
    """
    tries = itertools.count(2)

    def hand_on(record: logging.LogRecord) -> bool:
        log.info("%s", record.getMessage())
        if record.getMessage().startswith("Retrying"):  # the line before it says why
            again = f"the hub does not answer; fetching {filename} again (try {next(tries)})"
            progress(again, 0, None)
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
    """Give options for hf_hub_download that make it report to `progress` and print nothing."""
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
    """Return a tqdm class that draws nothing and hands its count on to `progress`."""

    class Counter:
        monitor_interval = 0  # no monitoring thread, since the bar is not drawn

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})
            self.done = int(options.get("initial") or 0)
            self.whole = options.get("total")

        def update(self, n: float | None = 1) -> None:
            self.done += int(n or 0)
            progress(f"fetching {filename}", self.done, self.whole)

        # With these two methods the hub's client makes one bar, of bytes in the file, and no
        # second one of bytes on the wire.
        def update_transfer(self, n: float | None = 1) -> None:
            pass

        def set_transfer_postfix_str(self, *args: Any, **options: Any) -> None:
            pass

    return type("Bar", (Counter, importlib.import_module("tqdm").tqdm), {})


def _hub_error(error: Exception, source: HubSource) -> Exception:
    """Translate an exception of the hub's client into one of ours that says what to do."""
    from huggingface_hub import errors

    log_in = "log in with `hf auth login` (or huggingface-cli login) or set HF_TOKEN"
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
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(
        error, errors.LocalEntryNotFoundError
    ):
        return ModelNotFound(
            f"{source.repo} has no file {source.file!r} at {source.revision!r}; look at the "
            "repository's list of files"
        )
    answers = (getattr(cause, "response", None) for cause in _causes(error))
    status = next((answer.status_code for answer in answers if answer is not None), None)
    if status == 404:  # from a mirror that does not say what it lacks
        file = f" with a file {source.file}" if source.file else ""
        return ModelNotFound(f"the hub has no repository {source.repo}{file}; check the spelling")
    if status in (401, 403):
        return DownloadError(
            f"the hub refused with {status}: the token is missing, wrong or may not read "
            f"{source.repo}; {log_in}"
        )
    return DownloadError(_not_reached(error))


def _not_reached(error: Exception) -> str:
    """Return the message for a hub that was not asked or did not answer, or for a file that could
    not be written.
    """
    from huggingface_hub import errors

    if any(isinstance(cause, errors.OfflineModeIsEnabled) for cause in _causes(error)):
        return (
            "it is not in the hub's cache and HF_HUB_OFFLINE is set. Unset it and pull the model "
            f"once with a network, or copy the file into {models_dir()}"
        )
    if isinstance(error, OSError) and error.errno in kept_files.NOT_WRITTEN:
        return unwritten(error)
    endpoint = os.environ.get("HF_ENDPOINT")
    where = f" ({endpoint})" if endpoint else ""
    return (
        f"{_silence(error)}. Check the network, the proxy and HF_ENDPOINT{where}, and pull again; "
        "a file that is here already can be named by its path"
    )


def _silence(error: Exception) -> str:
    """Return a phrase that says how the hub failed to answer."""
    if _kinds(error) & _TIMEOUTS:
        return "the hub did not answer in time"
    if _is_unreachable(error):
        log.info("the hub cannot be reached: %s", _root(error))
        return "the hub cannot be reached"
    return f"the hub did not answer as it should ({_root(error)})"


def _is_unreachable(error: Exception) -> bool:
    """Return True if no connection could be made; False if connecting or answering timed out."""
    kinds = _kinds(error)
    return bool(kinds & {"ConnectError", "ConnectionError", "gaierror"}) and not kinds & _TIMEOUTS


def _kinds(error: Exception) -> set[str]:
    return {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}


def unwritten(error: OSError) -> str:
    """Return the message for a file that could not be written to the hub's cache, and a remedy."""
    return kept_files.unwritten(error, cache_folder(), "HF_HOME")


def cache_folder() -> Path:
    """Return the folder of the hub's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, then its cause, the cause's cause, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def _root(error: BaseException) -> str:
    """Return the type and first line of the exception at the root of the chain of causes."""
    root = list(_causes(error))[-1]
    text = str(root).strip()
    return f"{type(root).__name__}: {text.splitlines()[0]}" if text else type(root).__name__
