"""Checks of a draft model: whether it fits the target, and is fast enough to be worth its time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import backends
from ..backends import files
from ..backends.base import FileHead, FileModel
from ..config import EngineConfig
from ..costs.curves import Curve
from ..costs.measuring import READING
from ..costs.profiles import Profile
from ..errors import ConfigError, VocabularyMismatch
from ..loading import companions
from ..loading.drafts import SAME, is_same, load_draft
from ..loading.models import Reference, is_head, model_path
from .budget import Budget
from .findings import Finding
from .gains import LIKELY, SHORT_CACHE, break_even, conditions
from .inspection import fitting_drafts
from .profile_checks import check_profile


def check_draft(
    wanted: Path | None,
    reference: Reference,
    target: FileModel,
    curve: Curve,
    config: EngineConfig,
    options: Mapping[str, Any],
    budget: Budget,
    tune: str,
) -> Iterator[Finding]:
    """Yield findings about the draft model in the file `wanted`; None means that there is none.

    reference: the target as the user named it. curve, config: the target's t(n) and settings.
    options: fields of EngineConfig in which the draft model's settings differ. tune: as in
    `check_profile`.
    """
    if wanted is None:
        yield _check_none(reference, target.path, config)
        return
    try:
        draft = load_draft(wanted, config, options, target)
    except VocabularyMismatch as error:
        remedy = _smaller_draft(reference, files.size_of(target.path)) or "leave it out: -md none"
        yield Finding("problem", "draft", str(error), remedy, broken=True)
        return
    except ConfigError as error:
        if not is_head(wanted):
            raise  # an impossible option
        yield Finding("problem", "head", str(error), "leave it out: -md none", broken=True)
        return
    assert draft is not None
    try:
        if isinstance(draft, FileHead):
            yield _check_head(draft)
        elif is_same(wanted, target.path):
            remedy = _smaller_draft(reference, files.size_of(target.path))
            yield Finding("problem", "draft", SAME, remedy or "leave it out: -md none")
            return
        yield from _check_context(draft, target.n_ctx)
        finding, drafting = check_profile(draft, READING, budget, tune)
        yield finding
    finally:
        draft.close()
    if drafting:
        yield check_cost(Profile(curve, drafting), draft.path, reference)


def _check_none(reference: Reference, path: Path, config: EngineConfig) -> Finding:
    """Return the finding that no draft model is used, with one of the catalogue if any fits."""
    text = "no draft model: drafts come from prompt lookup alone"
    known = companions.suggestion(reference, path, config)
    return Finding("ok", "draft", text, f"edgespec pull {known} may help" if known else "")


def _check_head(head: FileHead) -> Finding:
    """Return a finding that describes a head."""
    backend = backends.of(head.path)
    facts = backend.head_facts(head.path)
    words = facts.in_words()
    text = (
        f"{files.label(head.path)}, {words['kind']}, {words['precision']}, "
        f"{facts.size / 1e6:.0f} MB, licence {words['licence']}; made for {words['target']}; reads "
        f"{words['reads']}; drafts {words['drafts']}"
    )
    return Finding("ok", "head", text)


def _check_context(draft: FileModel, needed: int) -> Iterator[Finding]:
    """Yield a note if the draft model's context is shorter than the target's."""
    trained = min(draft.n_ctx, draft.n_ctx_train or draft.n_ctx)
    if trained < needed:
        yield Finding(
            "note",
            "draft",
            f"its context of {trained} tokens is shorter than the target's {needed}: "
            "in long conversations it sees only the end, and guesses worse",
            f"give -cd {needed}" if draft.n_ctx == trained else "take another draft",
        )


def check_cost(profile: Profile, draft: Path, reference: Reference) -> Finding:
    """Return a finding that says whether a draft model is fast enough. reference: its target."""
    assert profile.draft
    share = profile.draft(1, SHORT_CACHE) / profile.target(1, SHORT_CACHE)
    cost = f"{files.label(draft)} takes {share:.0%} of the target's time for a token"
    likely = break_even(profile.target, profile.draft)
    smaller = _smaller_draft(reference, files.size_of(draft))
    if likely is None:
        remedy = smaller or "leave it out: -md none"
        return Finding("problem", "draft", f"{cost}: it loses even if always right", remedy)
    text = f"{cost}: it {conditions(profile.target, profile.draft)}"
    if likely <= LIKELY:
        return Finding("ok", "draft", text)
    remedy = smaller or "leave it out (-md none): lookup drafts cost nothing"
    return Finding("note", "draft", f"too slow to pay often: {text}", remedy)


def _smaller_draft(reference: Reference, size: int) -> str:
    """Return advice that names a fitting draft on this disk of fewer than `size` bytes, else ""."""
    folder = files.folder_of_neighbours(model_path(reference))
    for fit in fitting_drafts(reference):
        path = folder / fit.reference  # a model next to the target, or else one of the catalogue
        path = path if path.exists() else model_path(fit.reference)
        if fit.fits and files.size_of(path) < size:
            return f"try another one: -md {fit.reference}"
    return ""
