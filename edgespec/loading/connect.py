"""Connecting to a target on another machine, with drafts made on this machine."""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from .. import backends, verifiers
from ..backends import files
from ..backends.base import FileModel, Tokenizer
from ..config import EngineConfig, RemoteConfig, SamplingParams, SpeculativeConfig, build
from ..costs.curves import Curve
from ..costs.governed import GovernedModel
from ..costs.kept_curves import kept_curve
from ..costs.learning import Costed, ModelCurve
from ..costs.measuring import WIDTHS
from ..costs.profiles import Profile
from ..costs.threads import DraftGovernor, governor_of
from ..decoding.kept import Kept
from ..device import LoadMeter
from ..drafters.base import DrafterContext
from ..drafters.vocabulary import check_vocabulary
from ..engine import Engine
from ..errors import ConfigError
from ..sampling.base import Request
from ..sampling.defaults import SamplingDefaults
from ..sampling.randomness import SeededRandomness
from ..types import NO_DRAFT, Abort, Draft
from ..verifiers.base import AsyncVerifier, Verifier
from . import recommendations
from .assembly import assemble_with, configured, local_verifier
from .drafts import copying, open_draft
from .load import described, kept_for, known_costs
from .models import Reference, model_path, open_model, target_path

_PROBE = "Once upon a time there was a river, and by the river there stood a mill."
_ASSUMED_S = {1: 0.03, 32: 0.3}  # seconds by number of tokens, if a server does not tell them


def connect(
    remote: str | RemoteConfig,
    draft: Reference | None = None,
    *,
    speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
    draft_options: Mapping[str, Any] | None = None,
    sampling: Mapping[str, float] | None = None,
    **options: Any,
) -> Engine:
    """Connect to a target on another machine; return an engine that drafts on this machine.

    remote: a RemoteConfig, or only its URL. draft: a draft model as for `load`. options: fields of
    EngineConfig for `remote.local` and for `draft`. draft_options: fields that differ for `draft`.
    sampling: as for `load`; recommended settings come from `remote.local`, or from the catalogue's
    entry with the target's name. Learned tokens are never kept on disk, whatever `remember` says.

    Drawn tokens come from coupled sampling: the text depends only on the seed and the target.
    Raises VerifierUnavailable (never if there is a `remote.local`), VerifierRefused, ConfigError,
    ModelNotFound and the other ModelErrors.
    """
    remote = remote if isinstance(remote, RemoteConfig) else RemoteConfig(remote)
    config = build(EngineConfig, options)
    if config.n_slots > 1:
        raise ConfigError(
            f"n_slots is {config.n_slots}, but a target on another machine answers one request at "
            "a time; connect once for each"
        )
    spec = configured(speculative_config)
    draft = draft or spec.model
    meter = LoadMeter()
    with contextlib.ExitStack() as stack:
        parts = stack.enter_context(
            connected(remote, draft, draft_options=draft_options, **options)
        )
        costs, measuring = known_costs(_steps(parts), parts.draft)
        governor = governor_of(
            parts.draft, [parts.draft], meter, stoppable=False, kind=DraftGovernor
        )
        drafting = GovernedModel(parts.draft, governor) if parts.draft and governor else parts.draft
        engine = assemble_with(
            lambda _: parts.verifier,
            DrafterContext(
                spec,
                parts.tokenizer.vocab_size,
                tokenizer=parts.tokenizer,
                draft_model=drafting,
                max_leaves=parts.verifier.max_leaves,
            ),
            lambda: costs,
            governor,
            kept=_kept(spec, remote.url, parts, draft),
            on_busy=config.on_busy,
            sampling=_sampling(remote, parts).replaced(sampling or {}),
            description=_describe(remote.url, parts),
            works=([] if spec.fixed else measuring) + copying(parts.draft),
        )
        stack.callback(engine.idle_work.close)  # is closed before the models that it uses
        weakref.finalize(engine, stack.pop_all().close)
    return engine


@dataclass(frozen=True, slots=True)
class RemoteParts:
    """The parts that this device uses to decode with a target on another machine.

    verifier: verifies drafts. remote: the part of the verifier that talks to the other machine,
    None if the server is away. local, draft: the target and the draft model on this machine, None
    for none. tokenizer: this device's tokenizer.
    """

    verifier: Verifier
    remote: Verifier | None
    local: FileModel | None
    draft: FileModel | None
    tokenizer: Tokenizer


@contextlib.contextmanager
def connected(
    remote: RemoteConfig,
    draft: Reference | None = None,
    *,
    draft_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[RemoteParts]:
    """Make a verifier and its models without an engine; close them at the end.

    Arguments and errors are those of `connect`.
    """
    config = build(EngineConfig, options)
    remote = replace(remote, n_ctx=remote.n_ctx or config.n_ctx)
    with contextlib.ExitStack() as stack:
        target = small = None
        if remote.local is not None:
            target = open_model(target_path(remote.local), config)
            stack.callback(target.close)
        if draft is not None:
            fields = dict(options) | {"batch_invariant": False} | dict(draft_options or {})
            small = open_draft(model_path(draft), build(EngineConfig, fields))
            stack.callback(small.close)
        tokenizer = _tokenizer(target, small, remote.tokenizer, stack)
        reach = functools.partial(verifiers.connect, remote, tokenizer)
        verifier, remote_part = _verifier(reach, target)
        stack.callback(verifier.close)
        yield RemoteParts(verifier, remote_part, target, small, tokenizer)


def _tokenizer(
    target: FileModel | None,
    draft: FileModel | None,
    reference: Reference | None,
    stack: contextlib.ExitStack,
) -> Tokenizer:
    """Return this device's tokenizer. Raises VocabularyMismatch if it differs from the draft
    model's.
    """
    tokenizer: Tokenizer
    if reference is not None:
        path = model_path(reference)
        tokenizer = stack.enter_context(backends.of(path).vocabulary(path))
    elif target or draft:
        tokenizer = (target or draft).tokenizer  # type: ignore[union-attr]
    else:
        raise ConfigError(
            "the device needs the server's vocabulary: give a draft model, a local target, or a "
            "file of the same family as tokenizer"
        )
    if draft and draft.tokenizer is not tokenizer:
        check_vocabulary(tokenizer, draft.tokenizer)
    return tokenizer


def _verifier(
    reach: Callable[[], Verifier], target: FileModel | None
) -> tuple[Verifier, Verifier | None]:
    """Return the verifier, and its remote part, which is None if the server cannot be reached."""
    if target is None:
        remote = reach()
        return remote, remote
    from ..verifiers.fallback import Fallback

    name = files.label(target.path)
    both = Fallback(
        reach,
        local_verifier(target, governor_of(target, [target])),
        same=lambda remote: getattr(remote, "model", "") == name,
        local_s=curve(1) if (curve := kept_curve(target)) else None,
    )
    return both, both.remote


def profile_of(parts: RemoteParts) -> Profile:
    """Return the costs of steps with a remote verifier. Costs that are unknown are measured now."""
    costs, measuring = known_costs(_steps(parts), parts.draft)
    for work in measuring:
        work.run(lambda: None)
    return costs.profile


def _steps(parts: RemoteParts) -> Costed:
    """Return the costs of steps by the remote verifier, or by the local target without it."""
    if parts.remote is not None:
        return _RemoteCurve(parts.remote, parts.tokenizer)
    assert parts.local is not None
    return ModelCurve(parts.local, WIDTHS)


def _kept(
    spec: SpeculativeConfig, url: str, parts: RemoteParts, draft: Reference | None
) -> Kept | None:
    """Return a Kept that stores rates for later processes, None if the server is away."""
    if parts.remote is None:
        return None
    return kept_for(spec, _Served(url, parts.verifier), model_path(draft) if draft else None)


class _Served:
    """The identity of a remote target: the server's address without user and password, and the name
    of its model. While the server is away, the model is the last one that it named.
    """

    def __init__(self, url: str, verifier: Verifier) -> None:
        parts = urlsplit(url)
        self._address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._verifier, self._model = verifier, ""

    def __call__(self) -> str:
        """Return address and model as one text."""
        remote = getattr(self._verifier, "remote", self._verifier)
        self._model = _model_of(remote) or self._model
        return f"{self._address} {self._model}"


def _model_of(remote: Verifier | None) -> str:
    """Return the name that a server gives its model, "" if it gives none."""
    return getattr(remote, "model", "") or getattr(remote, "served", "")


class _RemoteCurve:
    """The seconds of steps with a remote verifier.

    edgespec's own server sends plain tokens without being asked, so only drafts wait for the round
    trip; other servers are asked for every step.
    """

    kept_as: tuple[dict[str, Any], ...] = ()
    replans = False

    def __init__(self, remote: Verifier, tokenizer: Tokenizer) -> None:
        self._remote, self._tokenizer = remote, tokenizer
        self.curve: Curve | None = None
        if isinstance(remote, AsyncVerifier):
            costs, trip = getattr(remote, "costs", None) or _ASSUMED_S, remote.round_trip_s()
            self.curve = _curve({n: s + (trip if n > 1 else 0.0) for n, s in costs.items()})

    @property
    def complete(self) -> bool:
        """True once the curve is known."""
        return self.curve is not None

    def run(self, abort: Abort) -> bool:
        """Measure a step without and a step with a draft on a server that is not edgespec's."""
        if not abort():
            self.curve = _curve(_timed(self._remote, self._tokenizer))
        return self.curve is not None


def _curve(steps: Mapping[int, float]) -> Curve:
    """Return the curve of steps from their seconds by number of tokens."""
    widths = tuple(sorted(steps))
    return Curve((64,), widths, (tuple(steps[n] for n in widths),))


def _timed(remote: Verifier, tokenizer: Tokenizer) -> dict[int, float]:
    """Measure the seconds of a step without a draft and of one with eight drafted tokens."""
    prompt = tokenizer.encode(_PROBE)
    for _ in remote.begin(Request(prompt, SamplingParams(), SeededRandomness(0))):
        pass
    remote.verify(NO_DRAFT)  # the first step reads the prompt
    seconds = {}
    for n in (1, 9):
        began = time.perf_counter()
        remote.verify(Draft(tuple(prompt[: n - 1])))
        seconds[n] = time.perf_counter() - began
    return {1: seconds[1], 9: max(seconds.values())}


def _sampling(remote: RemoteConfig, parts: RemoteParts) -> SamplingDefaults:
    served = remote.model or _model_of(parts.remote)
    return recommendations.remote_defaults(remote.url, served, parts.local, remote.local)


def _describe(url: str, parts: RemoteParts) -> dict[str, Any]:
    name = getattr(parts.remote, "model", getattr(parts.remote, "name", None))
    return {"verifier": {"url": url, "model": name}} | described(parts.local, parts.draft)
