"""The doctor: what stands in the way of speed on this device, and what would help."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..config import EngineConfig, RemoteConfig, SamplingParams, build
from ..errors import ConfigError, EdgeSpecError, EngineMissing, VerifierUnavailable
from ..loading.connect import connected
from ..loading.models import Reference
from .findings import Finding
from .machine_checks import check_machine
from .model_checks import check_model
from .model_choice import models_to_take
from .verifier_checks import check_verifier

logger = logging.getLogger("edgespec.measure.doctor")

_TIMED = ("threads", "profile", "lookup", "draft")  # subjects that rest on measured times


def diagnose(
    model: Reference | None = None,
    draft: Reference | None = "auto",
    *,
    draft_options: Mapping[str, Any] | None = None,
    temperature: float = 0.0,
    progress: Callable[[str], None] = logger.info,
    **options: Any,
) -> list[Finding]:
    """Return findings about this machine and build, and about a model and its draft if named, or
    else which models to take here.

    Arguments are those of `load`. progress: is told what is done. Nothing is written, nothing is
    downloaded. Raises ConfigError for impossible options; whatever else goes wrong is a finding.
    """
    config = build(EngineConfig, options)
    SamplingParams(temperature=temperature)
    try:
        found = list(check_machine())
        if model is None:
            found += models_to_take()
        else:
            about = check_model(model, draft, config, draft_options or {}, options, temperature)
            busy = any(finding.subject == "load" for finding in found)
            for finding in about:
                progress(f"checking the model: {finding.subject} done")
                found.append(_less_certain(finding) if busy else finding)
    except EngineMissing as error:
        return [Finding("problem", "engine", str(error), broken=True)]
    return found


def _less_certain(finding: Finding) -> Finding:
    """Make a note of what rests on times that were measured while other programs were running."""
    if finding.broken or finding.subject not in _TIMED:
        return finding
    return replace(finding, level="note", text=f"beside other programs: {finding.text}")


def diagnose_verifier(
    remote: str | RemoteConfig, draft: Reference | None = None, **arguments: Any
) -> list[Finding]:
    """Return findings about this machine and about a target on another one.

    Arguments are those of `connect`. Raises ConfigError for impossible options; whatever else
    goes wrong is a finding.
    """
    remote = RemoteConfig(remote) if isinstance(remote, str) else remote
    found: list[Finding] = []
    try:
        found += check_machine()
        with connected(remote, draft, **arguments) as parts:
            return [*found, *check_verifier(parts, remote.url)]
    except ConfigError:
        raise
    except VerifierUnavailable as error:
        remedy = "start it, or correct the address; with -m a local model would answer meanwhile"
        return [*found, Finding("problem", "verifier", str(error), remedy, broken=True)]
    except EdgeSpecError as error:
        return [*found, Finding("problem", "verifier", str(error), broken=True)]
