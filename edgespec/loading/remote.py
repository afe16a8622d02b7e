"""Engines whose target is on another machine: the composition root beside `loading`."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import verifiers
from ..backends import files
from ..backends.base import FileModel, Tokenizer
from ..config import EngineConfig, RemoteConfig, SamplingParams, SpeculativeConfig, build
from ..costs.profile import curve_of
from ..decoding.engine import Engine
from ..decoding.session import Session
from ..device import processor
from ..drafters.base import Drafter
from ..errors import ConfigError
from ..policies.base import Policy
from ..sampling.base import Request
from ..sampling.randomness import SeededRandomness
from ..types import NO_DRAFT, Draft
from ..verifiers.base import AsyncVerifier, Verifier
from .local import Reference, backend, model_path, open_draft, open_model

if TYPE_CHECKING:
    from ..costs.profile import Profile

_ASKED = "Once upon a time there was a river, and by the river there stood a mill."
_ASSUMED = ((1, 0.03), (32, 0.3))  # seconds, of a server that does not say what it takes


def connect(
    url: str,
    draft: Reference | None = None,
    *,
    local: Reference | None = None,
    tokenizer: Reference | None = None,
    api_key: str | None = None,
    model: str = "",
    timeout_s: float = 10.0,
    speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
    draft_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Engine:
    """A target on another machine, with drafts from this one.

    url: ws:// or wss:// of `edgespec serve`; sglang+http://, vllm+http:// or openai+http:// (and
    https) of the servers of others (docs/remote-engines.md). draft: a draft model as for `load`.
    local: a target to go on with while the server is away, or slower being the same model.
    tokenizer: a file whose vocabulary is the server's, where neither `local` nor `draft` is given;
    its weights are not read. model: the name that the server must have, "" for whatever it has.
    timeout_s: how long it may be silent. options: fields of EngineConfig for `local`, and for
    `draft` but for draft_options.

    Drawn tokens come from coupled sampling: text depends on the seed and the target alone.
    Raises VerifierUnavailable (never where there is a `local`), VerifierRefused, ConfigError,
    ModelNotFound and the other ModelErrors.
    """
    config = build(EngineConfig, options)
    given = speculative_config
    spec = given if isinstance(given, SpeculativeConfig) else build(SpeculativeConfig, given or {})
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(
            reached(
                url,
                draft or spec.model,
                local=local,
                tokenizer=tokenizer,
                api_key=api_key,
                model=model,
                timeout_s=timeout_s,
                draft_options=draft_options,
                **options,
            )
        )
        engine = Engine(
            Session(found.verifier, _drafters(spec, found), _policy(spec, found)),
            found.tokenizer,
            n_ctx=found.verifier.n_ctx,
            on_busy=config.on_busy,
            speculation=_speculation(spec, found.draft),
            description=_describe(url, found),
        )
        weakref.finalize(engine, stack.pop_all().close)
    return engine


@dataclass(frozen=True, slots=True)
class Reached:
    """What a device works with. verifier: judges drafts; far: the part of it on another machine,
    None while that is away; local, draft: models of this machine, if any.
    """

    verifier: Verifier
    far: Verifier | None
    local: FileModel | None
    draft: FileModel | None
    tokenizer: Tokenizer


@contextlib.contextmanager
def reached(
    url: str,
    draft: Reference | None = None,
    *,
    local: Reference | None = None,
    tokenizer: Reference | None = None,
    api_key: str | None = None,
    model: str = "",
    timeout_s: float = 10.0,
    draft_options: Mapping[str, Any] | None = None,
    make_copy: bool = True,
    **options: Any,
) -> Iterator[Reached]:
    """A verifier and models themselves, without an engine around them; closed at the end.
    Arguments and errors are those of `connect`; make_copy as in `loading.open_draft`.
    """
    config = build(EngineConfig, options)
    remote = RemoteConfig(url, api_key, model, timeout_s, local, tokenizer, config.n_ctx)
    with contextlib.ExitStack() as stack:
        target = small = None
        if local is not None:
            target = open_model(model_path(local), config)
            stack.callback(target.close)
        if draft is not None:
            fields = dict(options) | {"batch_invariant": False} | dict(draft_options or {})
            small = open_draft(model_path(draft), build(EngineConfig, fields), make_copy=make_copy)
            stack.callback(small.close)
        words = _words(target, small, tokenizer, stack)
        verifier, far = _verifier(lambda: verifiers.connect(remote, words), target)
        stack.callback(verifier.close)
        yield Reached(verifier, far, target, small, words)


def _words(
    target: FileModel | None,
    small: FileModel | None,
    tokenizer: Reference | None,
    stack: contextlib.ExitStack,
) -> Tokenizer:
    """The device's tokenizer. Raises VocabularyMismatch where a draft model has another one."""
    from ..drafters.model import check_vocabulary

    words: Tokenizer
    if tokenizer is not None:
        path = model_path(tokenizer)
        words = stack.enter_context(backend(path).vocabulary(path))
    elif target or small:
        words = (target or small).tokenizer  # type: ignore[union-attr]
    else:
        raise ConfigError(
            "the device needs the server's vocabulary: give a draft model, a local target, or a "
            "file of the same family as tokenizer"
        )
    if small and small.tokenizer is not words:
        check_vocabulary(words, small.tokenizer)
    return words


def _verifier(
    reach: Callable[[], Verifier], target: FileModel | None
) -> tuple[Verifier, Verifier | None]:
    """What judges drafts, and the part of it that is far away, if it is there."""
    if target is None:
        far = reach()
        return far, far
    from ..verifiers.fallback import Fallback
    from ..verifiers.local import LocalVerifier

    name = files.label(target.path)
    both = Fallback(
        reach,
        LocalVerifier(target),
        same=lambda remote: getattr(remote, "model", "") == name,
        local_s=curve_of(target)(1),
    )
    return both, both.remote


def _drafters(spec: SpeculativeConfig, found: Reached) -> list[Drafter]:
    from ..drafters.ahead import AheadDrafter
    from ..drafters.cascade import sources
    from ..drafters.model import ModelDrafter
    from ..drafters.suffix import SuffixDrafter

    if spec.fixed and not spec.fixed[0]:
        return []
    p_min = spec.fixed[1] if spec.fixed else 0.0
    lookup = model = None
    if spec.method in ("auto", "suffix", "ngram"):
        lookup = SuffixDrafter(spec.prompt_lookup_min or 2, p_min)
    if found.draft is not None and spec.method in ("auto", "draft_model"):
        n_vocab = found.tokenizer.vocab_size
        model = ModelDrafter(found.draft, n_vocab, p_min=p_min, acceptance="coupled")
    if model is None:
        return [lookup] if lookup else []
    ahead = AheadDrafter(model)
    if spec.fixed:
        return [lookup, ahead] if lookup else [ahead]
    return sources(lookup, ahead)


def _policy(spec: SpeculativeConfig, found: Reached) -> Policy:
    if spec.fixed:
        from ..policies.fixed import FixedDepth

        return FixedDepth(spec.fixed[0], spec.min_speculative_tokens)
    from ..policies.adaptive import Adaptive

    return Adaptive(profile_of(found))


def profile_of(found: Reached) -> Profile:
    """What a step costs. Of our own server a plain one comes by itself, and a draft goes there and
    back; others are asked for every step.
    """
    from ..costs.profile import READING, Curve, Profile

    far = found.far
    drafting = curve_of(found.draft, READING) if found.draft else None
    if far is None:
        assert found.local is not None
        return Profile(curve_of(found.local), drafting)
    if isinstance(far, AsyncVerifier):
        costs, trip = getattr(far, "costs", None) or dict(_ASSUMED), far.round_trip_s()
        steps = {n: seconds + (trip if n > 1 else 0.0) for n, seconds in costs.items()}
    else:
        steps = _asked(far, found.tokenizer)
    widths = tuple(sorted(steps))
    return Profile(Curve((64,), widths, (tuple(steps[n] for n in widths),)), drafting)


def _asked(far: Verifier, words: Tokenizer) -> dict[int, float]:
    """Seconds of a step without a draft and of one with eight tokens."""
    prompt = words.encode(_ASKED)
    for _ in far.begin(Request(prompt, SamplingParams(), SeededRandomness(0))):
        pass
    far.verify(NO_DRAFT)  # the first one reads the prompt
    found = {}
    for n in (1, 9):
        began = time.perf_counter()
        far.verify(Draft(tuple(prompt[: n - 1])))
        found[n] = time.perf_counter() - began
    return {1: found[1], 9: max(found.values())}


def _speculation(spec: SpeculativeConfig, small: FileModel | None) -> str:
    if spec.fixed and not spec.fixed[0]:
        return "off: not asked for"
    if small is None or spec.method in ("suffix", "ngram"):
        return "prompt lookup, verified far away"
    if spec.method == "draft_model":
        return "draft model, verified far away"
    return "prompt lookup and draft model, verified far away"


def _describe(url: str, found: Reached) -> dict[str, Any]:
    def one(model: FileModel | None) -> dict[str, Any] | None:
        if model is None:
            return None
        return {
            "file": files.label(model.path),
            "n_threads": model.n_threads,
            "placement": model.placement,
        }

    name = getattr(found.far, "model", getattr(found.far, "name", None))
    return {
        "verifier": {"url": url, "model": name},
        "model": one(found.local),
        "draft": one(found.draft),
        "processor": processor(),
    }
