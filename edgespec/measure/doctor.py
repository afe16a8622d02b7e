"""What stands in the way of speed on this device, and what would help."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from .. import backends
from ..backends import files
from ..backends.base import Backend, FileModel, Threaded
from ..config import EngineConfig, SamplingParams, build
from ..costs.profile import (
    QUICK,
    READING,
    Curve,
    Profile,
    curve_of,
    fill,
    folder,
    measure,
    stored,
    timed,
)
from ..device import available_memory, physical_cores, processor, thread_counts
from ..errors import (
    ConfigError,
    EdgeSpecError,
    EngineMissing,
    VerifierUnavailable,
    VocabularyMismatch,
)
from ..loading.local import (
    Reference,
    draft_path,
    load_draft,
    model_path,
    open_model,
    tuned_options,
)
from ..loading.remote import Reached, profile_of, reached
from ..verifiers.base import AsyncVerifier
from .inspection import ModelInfo, fitting_drafts, inspect
from .tuning import SHORT, break_even, race, speedup

STALE = 0.25  # a profile that is wrong by more than this share
STEEP = 0.5  # widening by a token should not cost more than this share of a token
LIKELY = 0.8  # few drafts are right more often than this
BUSY = 0.25  # share of the CPUs' time
HOT = 0.7  # temperatures above this lower acceptance
_LITTLE = 1 << 30  # bytes of memory
_MEASURED = ("threads", "profile", "lookup", "draft")  # findings that are about times

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: a sentence, and what to do about it if anything should be done.

    broken: nothing can run until this is repaired.
    """

    level: Level
    subject: str
    text: str
    remedy: str = ""
    broken: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def diagnose(
    model: Reference | None = None,
    draft: Reference | None = "auto",
    *,
    draft_options: Mapping[str, Any] | None = None,
    temperature: float = 0.0,
    **options: Any,
) -> list[Finding]:
    """Findings about this machine and build, and about a model and its draft if one is named.

    Arguments are those of `load`. Nothing is written, nothing is downloaded. Raises ConfigError
    for options that cannot be; whatever else goes wrong is a finding.
    """
    config = build(EngineConfig, options)
    SamplingParams(temperature=temperature)
    try:
        found = list(_machine())
        if model is not None:
            fields = dict(draft_options or {})
            about = _models(model, draft, config, fields, options, temperature)
            busy = any(finding.subject == "load" for finding in found)
            found += map(_doubted, about) if busy else about
    except EngineMissing as error:
        return [Finding("problem", "engine", str(error), broken=True)]
    return found


def diagnose_verifier(
    url: str, draft: Reference | None = None, *, local: Reference | None = None, **arguments: Any
) -> list[Finding]:
    """Findings about this machine and a target on another one. Arguments are those of `connect`.
    Raises ConfigError for options that cannot be; whatever else goes wrong is a finding.
    """
    try:
        found = list(_machine())
        with reached(url, draft, local=local, make_copy=False, **arguments) as there:
            return [*found, *_far(there, url)]
    except ConfigError:
        raise
    except VerifierUnavailable as error:
        remedy = "start it, or mend the address; with -m a local model would answer meanwhile"
        return [*found, Finding("problem", "verifier", str(error), remedy, broken=True)]
    except EdgeSpecError as error:
        return [*found, Finding("problem", "verifier", str(error), broken=True)]


def _far(there: Reached, url: str) -> Iterator[Finding]:
    """A target on another machine, and whether drafting for it pays."""
    if there.far is None:
        yield Finding(
            "problem", "verifier", f"nobody answers at {url}", "the local model answers meanwhile"
        )
        return
    profile = profile_of(there)
    name = getattr(there.far, "model", getattr(there.far, "name", "a model"))
    far = there.far
    away = (
        f", {1e3 * far.round_trip_s():.0f} ms there and back"
        if isinstance(far, AsyncVerifier)
        else ""
    )
    yield Finding("ok", "verifier", f"{name} answers, {there.far.n_ctx} tokens of context{away}")
    plain = profile.target(1)
    yield Finding("ok", "remote plain", f"{1e3 * plain:.0f} ms a token, {1 / plain:.1f} tokens/s")
    yield _gains(profile)
    if there.local:
        here = curve_of(there.local)(1)
        which = "the local model" if here < plain else "the server"
        yield Finding("ok", "local plain", f"{1e3 * here:.0f} ms a token: {which} decodes faster")


def _gains(profile: Profile) -> Finding:
    """What drafting on this machine gains over remote plain decoding."""
    likely = break_even(profile.target, profile.draft)
    source = "the draft model" if profile.draft else "lookup"
    if likely is None:
        return Finding(
            "note",
            "drafting",
            f"with {source} it loses even if always right: the server decodes by itself",
            "a nearer server, or a target that widens more cheaply (16-bit, on a GPU), would help",
        )
    most, depth = speedup(profile.target, profile.draft)
    return Finding(
        "ok" if likely <= LIKELY else "note",
        "drafting",
        f"with {source} it pays where tokens are right more often than {likely:.0%}, at most "
        f"{most:.2f} times ({depth} tokens, all right)",
    )


# --- the machine ------------------------------------------------------------------------------


def _machine() -> Iterator[Finding]:
    from .. import __version__

    engines = _engines()
    cpu = f"{processor()}, {_count(physical_cores(), 'physical core')}{_features(engines)}"
    yield Finding("ok", "processor", cpu)
    yield from _load(_busy_share())
    yield _memory(available_memory())
    built = ", ".join(
        f"{name} {version}"
        for engine in engines.values()
        for name, version in engine.versions().items()
    )
    python = platform.python_version()
    yield Finding("ok", "versions", f"edgespec {__version__}, {built}, Python {python}")
    if "llama_cpp" in engines:
        yield _llama_cpp(_has_nvidia())
    if "onnx" in engines:
        yield _onnx(_has_nvidia())
    yield _profiles(folder())


def _engines() -> dict[str, Backend]:
    """Return the backends that are installed. Raises EngineMissing where none is."""
    found = {}
    for name in backends.names():
        try:
            found[name] = backends.get(name)
        except EngineMissing as error:
            missing = error
    if not found:
        raise missing
    return found


def _features(engines: Mapping[str, Backend]) -> str:
    """Return what the build of llama.cpp uses of the processor, as the end of a line."""
    if "llama_cpp" not in engines:
        return ""
    from ..backends import llama_cpp

    return f", {' '.join(llama_cpp.features())}"


def _llama_cpp(nvidia: bool) -> Finding:
    from ..backends import llama_cpp

    return _gpu(llama_cpp.supports_gpu_offload(), llama_cpp.gpus(), nvidia)


def _onnx(nvidia: bool) -> Finding:
    from ..backends import onnx as engine

    try:
        engine.check_packages()
    except ConfigError as error:
        return Finding("problem", "onnxruntime", str(error))
    there = f"its providers: {', '.join(engine.all_providers())}"
    if nvidia and not engine.supports_gpu_offload():
        text = f"this machine has an NVIDIA GPU, but onnxruntime cannot use it; {there}"
        remedy = "uninstall onnxruntime and install edgespec[onnx-cuda], see docs/onnx.md"
        return Finding("note", "onnxruntime", text, remedy)
    return Finding("ok", "onnxruntime", there)


def _load(busy: float) -> Iterator[Finding]:
    if busy > BUSY:
        text = f"other programs take {busy:.0%} of the CPUs: what is measured now says little"
        yield Finding("note", "load", text, "look again while nothing else is running")


def _doubted(finding: Finding) -> Finding:
    """What was measured while other programs had the CPUs is no certain problem."""
    if finding.level != "problem" or finding.broken or finding.subject not in _MEASURED:
        return finding
    return replace(finding, level="note", text=f"beside other programs: {finding.text}")


def _busy_share(seconds: float = 0.3) -> float:
    """Share of the CPUs' time that others use while we sleep, 0 where nobody tells."""
    try:
        before = _cpu_times()
        time.sleep(seconds)
        spent = [after - then for after, then in zip(_cpu_times(), before, strict=True)]
    except OSError:
        return 0.0
    return 1 - (spent[3] + spent[4]) / max(1, sum(spent))  # idle and waiting for disks


def _cpu_times() -> list[int]:
    with open("/proc/stat", encoding="ascii") as file:
        return [int(word) for word in file.readline().split()[1:9]]


def _memory(free: int | None) -> Finding:
    if free is None:
        return Finding("note", "memory", "the system does not tell how much memory is free")
    text = f"{_gib(free)} are free"
    if free < _LITTLE:
        return Finding("note", "memory", text, "close other programs, or take a small model")
    return Finding("ok", "memory", text)


def _has_nvidia() -> bool:
    devices = any(Path("/dev").glob("nvidia*")) if Path("/dev").is_dir() else False
    return devices or shutil.which("nvidia-smi") is not None


def _gpu(offload: bool, gpus: list[dict[str, Any]], nvidia: bool) -> Finding:
    if gpus:
        listed = ", ".join(
            f"{gpu['name']} ({_gib(gpu['free'])} of {_gib(gpu['total'])} free)" for gpu in gpus
        )
        return Finding("ok", "GPU", f"this build offloads to {listed}")
    if offload:
        text = "this build can offload to a GPU, but finds none"
        return Finding("problem" if nvidia else "note", "GPU", text, "check the driver")
    if nvidia:
        return Finding(
            "problem",
            "GPU",
            "this machine has an NVIDIA GPU, but this build of llama.cpp cannot use it",
            "build it again with CMAKE_ARGS=-DGGML_CUDA=on, see docs/building.md",
        )
    return Finding("ok", "GPU", "this build computes on the CPU alone; no NVIDIA GPU is seen here")


def _profiles(path: Path) -> Finding:
    there = next(p for p in (path, *path.parents) if p.exists())
    if os.access(there, os.W_OK):
        return Finding("ok", "profiles", f"what is measured is kept in {path}")
    return Finding(
        "problem",
        "profiles",
        f"{path} cannot be written, so every load measures anew",
        "set EDGESPEC_PROFILES to a folder that can be written",
    )


# --- a model and its draft --------------------------------------------------------------------


def _models(
    model: Reference,
    draft: Reference | None,
    config: EngineConfig,
    draft_options: dict[str, Any],
    given: Mapping[str, Any],
    temperature: float,
) -> Iterator[Finding]:
    try:
        info = inspect(model)
        yield _file(info)
        yield from _fits(info, config, available_memory())
        path = model_path(model)
        config = replace(config, **tuned_options(path, config, given))
        target = open_model(path, config)
    except ConfigError:
        raise
    except EdgeSpecError as error:
        yield Finding("problem", "model", str(error), broken=True)
        return
    try:
        yield _placement(target)
        if isinstance(target, Threaded):
            yield from _threads(target)
        finding, curve = _profile(target, QUICK)
        yield finding
        yield from _widening(curve, info, target)
        wanted = draft_path(model, draft, config)
        yield from _drafting(wanted, model, target, curve, config, draft_options)
        yield from _temperature(temperature)
    except ConfigError:
        raise
    except EdgeSpecError as error:
        yield Finding("problem", "draft", str(error), broken=True)
    finally:
        target.close()


def _file(info: ModelInfo) -> Finding:
    size = f"{info.file_size / 1e9:.2f} GB"
    text = f"{info.name}, {info.architecture}, {info.quantisation}, {size}, {info.n_layer} layers"
    return Finding("ok", "model", text)


def _fits(info: ModelInfo, config: EngineConfig, free: int | None) -> Iterator[Finding]:
    n_ctx = config.n_ctx or min(info.n_ctx_train, 8192)
    needed = info.file_size + info.kv_bytes(n_ctx)
    if free is not None and free < 1.2 * needed:
        yield Finding(
            "problem" if free < needed else "note",
            "memory",
            f"the model with a context of {n_ctx} needs about {_gib(needed)}, "
            f"{_gib(free)} are free",
            "take a smaller context (-c), "
            + ("" if info.engine else "a quantised cache (-ctk q8_0 -ctv q8_0 -fa on) ")
            + "or a smaller file",
        )


def _placement(model: FileModel) -> Finding:
    went = ", ".join(f"{name} {size}" for name, size in model.placement.items())
    layers = model.placement.get("layers", "").split()  # offloaded 20/29 layers to GPU
    some, _, every = layers[1].partition("/") if len(layers) > 1 else ("", "", "")
    if some != every:
        remedy = "free memory on the GPU, or take a smaller context or quantisation"
        return Finding("note", "placement", f"not all layers are on the GPU: {went}", remedy)
    return Finding("ok", "placement", went)


def _threads(model: Threaded) -> Iterator[Finding]:
    """Against the numbers that `tune` tries."""
    now = model.n_threads
    counts = [now, *(n for n in thread_counts() if n != now)]

    def seconds(n: int) -> float:
        model.set_threads(n, model.n_threads_batch)
        timed(model, 1)
        return timed(model, 1)

    times = race([lambda n=n: seconds(n) for n in counts], budget_s=3.0)  # type: ignore[misc]
    model.set_threads(now, model.n_threads_batch)
    medians = [1e3 * statistics.median(t) for t in times if t]
    best = min(range(len(medians)), key=medians.__getitem__, default=0)
    if medians and medians[best] < 0.9 * medians[0]:
        yield Finding(
            "problem",
            "threads",
            f"{_count(now, 'thread')} a token takes {medians[0]:.1f} ms, with "
            f"{counts[best]} {medians[best]:.1f} ms",
            f"give -t {counts[best]}, or leave -t out and run `edgespec tune`",
        )
    else:
        yield Finding("ok", "threads", f"{_count(now, 'thread')}: no other number is faster")


def _profile(model: FileModel, widths: Sequence[int]) -> tuple[Finding, Curve]:
    """Whether what is kept is there and still right; and t(n), measured now if need be."""
    fill(model, min(SHORT, model.n_ctx // 2))
    timed(model, 1)
    now = statistics.median(timed(model, 1) for _ in range(5))
    curve = stored(model.fingerprint())
    if curve is None:
        text = f"{files.label(model.path)}: nothing is kept for these settings; a token takes"
        remedy = "run `edgespec tune`; until then the first load measures briefly"
        finding = Finding("note", "profile", f"{text} {1e3 * now:.1f} ms now", remedy)
        return finding, measure(model, widths=widths, budget_s=1)
    then = curve(1, SHORT)
    took = f"a token took {1e3 * then:.1f} ms then, {1e3 * now:.1f} ms now"
    text = f"{files.label(model.path)}: {took}"
    if abs(now / then - 1) > STALE:
        remedy = "run `edgespec tune` while nothing else is running"
        finding = Finding("problem", "profile", f"stale: {text}", remedy)
        return finding, measure(model, widths=widths, budget_s=1)
    return Finding("ok", "profile", f"fresh: {text}"), curve


def _widening(curve: Curve, info: ModelInfo, model: FileModel) -> Iterator[Finding]:
    """Whether drafts that cost nothing can pay."""
    most, depth = speedup(curve)
    likely = break_even(curve)
    if likely is None:
        text = "even drafts that are always right and cost nothing lose here"
        yield Finding("problem", "lookup", text, _wider(info, model) or "decode plainly")
        return
    text = (
        f"5 tokens at once take {curve(5, SHORT) / curve(1, SHORT):.1f} times one: prompt lookup "
        f"pays where tokens are right more often than {likely:.0%}, at most {most:.1f} times "
        f"({depth} tokens, all right)"
    )
    steep = curve(5, SHORT) / curve(1, SHORT) > 1 + 4 * STEEP
    if steep:
        text = f"t(n) is steep, so only nearly certain drafts pay: {text}"
    yield Finding("note" if steep else "ok", "lookup", text, _wider(info, model) if steep else "")


def _wider(info: ModelInfo, model: FileModel) -> str:
    """A way to make wide evaluations cheaper."""
    if info.quantisation in ("F16", "BF16", "F32", "Q8_0") or "layers" in model.placement:
        return ""
    if backends.name_of(model.path) != "llama_cpp":
        return ""
    return (
        f"on a plain CPU a Q8_0 or F16 file of the same model widens more cheaply than "
        f"{info.quantisation}, though a single token then takes longer"
    )


def _drafting(
    wanted: Path | None,
    reference: Reference,
    target: FileModel,
    curve: Curve,
    config: EngineConfig,
    draft_options: dict[str, Any],
) -> Iterator[Finding]:
    if wanted is None:
        yield Finding("ok", "draft", "no draft model: drafts come from prompt lookup alone")
        return
    try:
        draft = load_draft(wanted, config, draft_options, target, make_copy=False)
    except VocabularyMismatch as error:
        other = _other(reference, files.size_of(target.path))
        remedy = other or "leave it out: -md none"
        yield Finding("problem", "draft", str(error), remedy, broken=True)
        return
    assert draft is not None
    try:
        trained = min(draft.n_ctx, draft.n_ctx_train or draft.n_ctx)
        if trained < target.n_ctx:
            yield Finding(
                "note",
                "draft",
                f"its context of {trained} tokens is shorter than the target's {target.n_ctx}: "
                "in long conversations it sees only the end, and guesses worse",
                f"give -cd {target.n_ctx}" if draft.n_ctx == trained else "take another draft",
            )
        finding, drafting = _profile(draft, READING)
        yield finding
    finally:
        draft.close()
    yield _pays(Profile(curve, drafting), draft.path, reference)


def _pays(profile: Profile, draft: Path, reference: Reference) -> Finding:
    """Whether a draft model is fast enough."""
    assert profile.draft
    share = profile.draft(1, SHORT) / profile.target(1, SHORT)
    cost = f"{files.label(draft)} takes {share:.0%} of the target's time for a token"
    likely = break_even(profile.target, profile.draft)
    smaller = _other(reference, files.size_of(draft))
    if likely is None:
        remedy = smaller or "leave it out: -md none"
        return Finding("problem", "draft", f"{cost}: it loses even if always right", remedy)
    most, depth = speedup(profile.target, profile.draft)
    text = (
        f"{cost}: it pays where its tokens are right more often than {likely:.0%}, at most "
        f"{most:.2f} times ({depth} tokens, all right)"
    )
    if likely <= LIKELY:
        return Finding("ok", "draft", text)
    remedy = smaller or "leave it out (-md none): lookup drafts cost nothing"
    return Finding("note", "draft", f"too slow to pay often: {text}", remedy)


def _other(reference: Reference, size: int) -> str:
    """A draft on this disk that fits and is smaller than `size`, "" where there is none."""
    room = files.folder_of_neighbours(model_path(reference))
    for fit in fitting_drafts(reference):
        path = room / fit.reference  # of a model beside the target, or else of the catalogue
        path = path if path.exists() else model_path(fit.reference)
        if fit.fits and files.size_of(path) < size:
            return f"try another one: -md {fit.reference}"
    return ""


def _temperature(temperature: float) -> Iterator[Finding]:
    if temperature > HOT:
        yield Finding(
            "note",
            "temperature",
            f"at temperature {temperature:g} answers surprise more, and fewer drafts are accepted",
            f"where it does not matter, a temperature of at most {HOT:g} is faster",
        )


def _gib(n: int) -> str:
    return f"{n / 2**30:.1f} GiB"


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"
