"""The composition root: the only module that names concrete classes."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import backends, hub
from ..backends import files
from ..backends.base import Backend, FileModel, Model, Tokenizer
from ..config import EngineConfig, SpeculativeConfig, build
from ..costs.profile import curve_of
from ..decoding.engine import Engine
from ..decoding.session import Session
from ..device import processor
from ..drafters.base import Drafter
from ..errors import ConfigError, EngineMissing, ModelError, ModelNotFound, VocabularyMismatch
from ..policies.base import Policy

if TYPE_CHECKING:
    from ..costs.profile import Profile

logger = logging.getLogger("edgespec.loading.local")

Reference = str | os.PathLike[str]
_CPU_SHARE = 5  # a draft model of more than so small a part of the target's bytes hardly pays
TUNABLE = ("n_threads", "n_threads_batch", "flash_attn", "use_extra_bufts")


def load(
    model: Reference,
    draft: Reference | None = "auto",
    *,
    speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
    draft_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Engine:
    """A model that is on disk, ready to answer.

    model: a catalogue name, "hf:org/repo/file.gguf" that was pulled before, or a path: of a
    GGUF, of an .onnx file or of a folder with one.
    draft: a draft model named in the same way; None for none; "auto" takes a suggested one
    that is on disk: on a GPU any, on CPUs, where time goes with bytes, one of at most a fifth
    of the target's size. A larger one would only take memory.
    speculative_config: a SpeculativeConfig or its fields. draft_options: fields of
    EngineConfig for the draft model, the target's by default. options: fields of EngineConfig;
    where none is given, what `tune` has chosen for this file on this device.

    Raises ModelNotFound (see `hub.pull`), ConfigError, VocabularyMismatch, EngineMissing
    and the other ModelErrors. Nothing is downloaded.
    """
    config = build(EngineConfig, options)
    spec = _spec(speculative_config, draft)
    path = model_path(model)
    config = replace(config, **tuned_options(path, config, options))
    wanted = draft_path(model, draft, config, spec)
    target = open_model(path, config)
    draft_model = None
    try:
        draft_model = load_draft(wanted, config, draft_options or {}, target)
        _warn(target, draft_model)
        return assemble(
            target,
            target.tokenizer,
            draft_model,
            spec,
            profile=None if spec.fixed else _profile(target, draft_model),
            on_busy=config.on_busy,
            description=_describe(target, draft_model),
        )
    except BaseException:
        target.close()
        if draft_model:
            draft_model.close()
        raise


def _warn(target: FileModel, draft: FileModel | None) -> None:
    """Of settings that do not do what they seem to."""
    for model, whose in ((target, ""), (draft, " of the draft model")):
        if model and _asks_in_vain(model):
            logger.warning(
                "n_gpu_layers=%d%s has no effect: the engine sees no GPU, `edgespec doctor` says "
                "more", model.config.n_gpu_layers, whose,
            )  # fmt: skip
            break
    config, trained = target.config, target.n_ctx_train
    if config.n_ctx > trained > 0:
        logger.warning(
            "n_ctx=%d is more than the %d tokens that %s was trained for; its context is %d",
            config.n_ctx, trained, files.label(target.path), target.n_ctx,
        )  # fmt: skip


def _asks_in_vain(model: FileModel) -> bool:
    """For layers on a GPU, where the engine has none."""
    return backend(model.path).ignores_gpu_layers(model.config)


@contextlib.contextmanager
def pair(
    model: Reference,
    draft: Reference,
    *,
    draft_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[tuple[FileModel, FileModel]]:
    """Target and draft model themselves, without an engine around them; closed at the end."""
    config = build(EngineConfig, options)
    target = open_model(model_path(model), config)
    try:
        drafting = load_draft(model_path(draft), config, draft_options or {}, target)
        assert drafting is not None
        try:
            yield target, drafting
        finally:
            drafting.close()
    finally:
        target.close()


def backend(path: Path) -> Backend:
    """Return the engine for a file. Raises EngineMissing."""
    return backends.of(path)


def open_model(path: Path, config: EngineConfig) -> FileModel:
    """A file under the engine that is for it. Raises EngineMissing, ModelError and its kinds."""
    return backend(path).open_model(path, config)


def open_draft(path: Path, config: EngineConfig, *, make_copy: bool = True) -> FileModel:
    """The same, or a copy that this device evaluates faster; without make_copy only if there is
    one already.
    """
    if config.requantize:
        from ..cache.requantization import discard, fastest, known

        copy = fastest(path, config, open_model) if make_copy else known(path, config) or path
        if copy != path:
            try:
                return open_model(copy, config)
            except ModelError as error:
                logger.warning("%s is left for the file itself: %s", copy, error)
                discard(copy)
    return open_model(path, config)


def assemble(
    target: Model,
    tokenizer: Tokenizer,
    draft_model: Model | None = None,
    speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
    *,
    profile: Profile | None = None,
    **options: Any,
) -> Engine:
    """An engine from models that are already there: the toy backend, or one of your own.

    draft_model: closed with the engine, at once where the method uses none.
    profile: what evaluations cost; None: measured now, where each step is to decide by it.
    options: `on_busy` and `description` of Engine.
    """
    from ..verifiers.local import LocalVerifier

    spec = _spec(speculative_config, None)
    if draft_model and not _uses_model(spec):
        draft_model.close()
        draft_model = None
    drafters = _drafters(spec, draft_model, target)
    policy: Policy
    if spec.fixed:
        from ..policies.fixed import FixedDepth

        policy = FixedDepth(spec.fixed[0], spec.min_speculative_tokens)
    else:
        from ..policies.adaptive import Adaptive

        policy = Adaptive(profile or _measured(target, draft_model))
    session = Session(LocalVerifier(target, spec.acceptance), drafters, policy)
    return Engine(
        session,
        tokenizer,
        n_ctx=target.n_ctx,
        speculation=_speculation(spec, drafters, draft_model),
        target=target,
        **options,
    )


def _measured(target: Model, draft: Model | None) -> Profile:
    """Costs of models that no file stands for: measured, not kept."""
    from ..costs.profile import QUICK, READING, Profile, measure

    curve = measure(target, widths=QUICK, budget_s=1)
    return Profile(curve, measure(draft, widths=READING, budget_s=1) if draft else None)


def _profile(target: FileModel, draft: FileModel | None) -> Profile:
    """Costs as kept for this device and these files, or measured now and kept."""
    from ..costs.profile import READING, Profile

    curve = curve_of(target)
    kept_as = tuple(model.fingerprint() for model in (target, draft) if model)
    return Profile(curve, curve_of(draft, READING) if draft else None, kept_as=kept_as)


def tuned_options(path: Path, config: EngineConfig, given: Iterable[str] = ()) -> dict[str, Any]:
    """What `tune` has chosen for this file on this device, without what is `given`."""
    from ..costs.profile import kept

    fixed = explicit(given)
    try:
        found = kept(tuning_key(path, config)).get("options", {})
        chosen = {name: found[name] for name in TUNABLE if name in found and name not in fixed}
        build(EngineConfig, chosen)
    except (ConfigError, OSError, TypeError):  # what cannot be read is the engine's to report
        return {}
    return chosen


def explicit(given: Iterable[str]) -> set[str]:
    """Tunable settings that a user has fixed: n_threads alone stands for both numbers."""
    fixed = set(given) & set(TUNABLE)
    return fixed | {"n_threads_batch"} if "n_threads" in fixed else fixed


def tuning_key(path: Path, config: EngineConfig) -> dict[str, Any]:
    """What the best settings depend on: none of them, and not the length of the context."""
    engine = backend(path)
    return engine.identity(path) | {
        "kind": "tuned",
        "n_gpu_layers": config.n_gpu_layers if engine.supports_gpu_offload() else 0,
        "type_k": config.type_k,
        "type_v": config.type_v,
        "provider": config.provider,
    }


def _spec(
    given: SpeculativeConfig | Mapping[str, Any] | None, draft: Reference | None
) -> SpeculativeConfig:
    """The configuration, with a draft named by `draft` in its `model`."""
    spec = given if isinstance(given, SpeculativeConfig) else build(SpeculativeConfig, given or {})
    if draft is None or draft == "auto" or spec.method in ("suffix", "ngram", "none"):
        return spec
    if spec.model and spec.model != os.fspath(draft):
        raise ConfigError(f"two draft models were named: {spec.model!r} and {draft!r}; name one")
    return replace(spec, model=os.fspath(draft))


def _uses_model(spec: SpeculativeConfig) -> bool:
    """Whether a draft model has anything to do."""
    depth, _ = spec.fixed or (1, None)
    return depth > 0 and spec.method not in ("suffix", "ngram", "none")


def _drafters(spec: SpeculativeConfig, draft_model: Model | None, target: Model) -> list[Drafter]:
    from ..drafters.cascade import sources
    from ..drafters.model import ModelDrafter
    from ..drafters.suffix import SuffixDrafter

    _, p_min = spec.fixed or (None, 0.0)
    if spec.fixed and not spec.fixed[0]:
        return []
    if spec.method == "draft_model" and draft_model is None:
        raise ConfigError(
            "method 'draft_model' needs a draft model, and none that the catalogue suggests is on "
            "this disk; name one (draft=…, or -md on the command line)"
        )
    lookup = model = None
    if spec.method in ("auto", "suffix", "ngram"):
        free = target.capabilities.min_tokens > 1
        lookup = SuffixDrafter(spec.prompt_lookup_min or (1 if free else 2), p_min)
    if draft_model is not None and spec.method in ("auto", "draft_model"):
        model = ModelDrafter(
            draft_model, target.vocab_size, p_min=p_min, acceptance=spec.acceptance
        )
    if spec.fixed:
        return [drafter for drafter in (lookup, model) if drafter]
    return sources(lookup, model)


def _speculation(spec: SpeculativeConfig, drafters: list[Drafter], draft: Model | None) -> str:
    if not drafters:
        return "off: not asked for"
    if spec.method == "draft_model":
        return "draft model"
    return "prompt lookup and draft model" if draft and spec.method == "auto" else "prompt lookup"


def model_path(reference: Reference) -> Path:
    """The file of a model that is on disk. Raises ModelNotFound."""
    path = hub.resolve(reference)
    if path is None:
        raise ModelNotFound(
            f"{os.fspath(reference)!r} is not on this disk; fetch it with "
            f"`edgespec pull {os.fspath(reference)}` or edgespec.hub.pull(…)"
        )
    return path


def draft_path(
    model: Reference,
    draft: Reference | None,
    config: EngineConfig,
    spec: SpeculativeConfig | None = None,
) -> Path | None:
    """The file of the draft model that `load` takes for these; None for none."""
    spec = _spec(spec, draft)
    if not _uses_model(spec):
        return None
    if spec.model:
        return model_path(spec.model)
    if spec.method != "draft_model" and draft != "auto":
        return None
    name = os.fspath(model).partition(":")[0].lower()
    suggested = hub.entries()[name].drafts if name in hub.entries() else ()
    path = model_path(model)
    there = [found for name in suggested if (found := _file_like(path, name))]
    wants_gpu = config.n_gpu_layers != 0 and config.provider.lower() != "cpu"
    on_gpu = wants_gpu and backend(path).supports_gpu_offload()
    if spec.method != "draft_model" and not on_gpu:
        largest = files.size_of(path) / _CPU_SHARE
        there = [path for path in there if files.size_of(path) <= largest]
    return there[0] if there else None


def _file_like(path: Path, name: str) -> Path | None:
    """The file of a catalogue model that is on disk; the same format as `path` if there is one,
    for two engines in one process take more memory.
    """
    listed = hub.entry(name).files
    found = [hub.resolve(name, quantisation=file.quantisation) for file in listed]
    there = [file for file in found if file and _runs(file)]
    alike = (file for file in there if backends.name_of(file) == backends.name_of(path))
    return next(alike, there[0] if there else None)


def _runs(path: Path) -> bool:
    """Whether the engine for a file is installed."""
    try:
        backend(path)
    except EngineMissing:
        return False
    return True


def load_draft(
    path: Path | None,
    config: EngineConfig,
    options: Mapping[str, Any],
    target: FileModel,
    *,
    make_copy: bool = True,
) -> FileModel | None:
    """A draft model for a target, its vocabulary checked. config: the target's; options:
    fields that differ. make_copy: a copy that may be faster is made if there is none yet.
    """
    if path is None:
        return None
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    fields["n_ctx"] = target.n_ctx
    fields["batch_invariant"] = False  # a guess may depend on how it was made
    settings = build(EngineConfig, fields | dict(options))
    if make_copy and settings.requantize:
        from ..cache.requantization import known

        if not known(path, settings):  # no copy is made of what cannot draft
            _fitting(open_model(path, settings), path, target).close()
    return _fitting(open_draft(path, settings, make_copy=make_copy), path, target)


def _fitting(draft: FileModel, path: Path, target: FileModel) -> FileModel:
    """The draft model, closed and refused where its vocabulary is another."""
    from ..drafters.model import check_vocabulary

    try:
        check_vocabulary(target.tokenizer, draft.tokenizer)
    except VocabularyMismatch as error:
        draft.close()
        raise VocabularyMismatch(
            f"{files.label(path)} cannot draft for {files.label(target.path)}: {error}"
        ) from None
    return draft


def _describe(target: FileModel, draft: FileModel | None) -> dict[str, Any]:
    def one(model: FileModel) -> dict[str, Any]:
        return {
            "file": files.label(model.path),
            "n_ctx": model.n_ctx,
            "n_threads": model.n_threads,
            "placement": model.placement,
        }

    return {
        "model": one(target),
        "draft": one(draft) if draft else None,
        "processor": processor(),
    }
