"""The doctor: findings about what makes decoding slow on this device, and what would help."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..advice import command
from ..config import EngineConfig, RemoteConfig, SamplingParams, build
from ..errors import ConfigError, EdgeSpecError, EngineMissing, VerifierUnavailable
from ..loading.assembly import configured
from ..loading.connect import connected
from ..loading.drafts import ggufs_for_fork
from ..loading.library import choose
from ..loading.models import Reference, model_path
from .budget import Budget
from .findings import VERDICT, Finding
from .machine_checks import check_machine
from .model_checks import check_model
from .model_choice import models_to_take
from .verifier_checks import check_verifier

logger = logging.getLogger("edgespec.measure.doctor")

_TIMED = (VERDICT, "threads", "profile", "lookup", "draft")  # subjects judged by measured times


def diagnose(
    model: Reference | None = None,
    draft: Reference | None = "auto",
    *,
    draft_options: Mapping[str, Any] | None = None,
    temperature: float = 0.0,
    budget_s: float = 30.0,
    progress: Callable[[str], None] = logger.info,
    report: Callable[[Finding], None] = lambda finding: None,
    **options: Any,
) -> list[Finding]:
    """Return findings about this machine and build, and about a model and its draft. Without a
    model, return findings that recommend models to use here.

    If a model is given, the first finding says whether speculation is faster here. Arguments are
    those of `load`. budget_s: seconds that loading and measuring may take. Checks that do not fit
    are left out, but loading a model is never interrupted. progress: called with a description of
    each activity. report: called with each finding as soon as it is known. Nothing is written or
    downloaded. Raises ConfigError for impossible options; any other failure is a finding.
    """
    config = build(EngineConfig, options)
    SamplingParams(temperature=temperature)
    found: list[Finding] = []

    def add(finding: Finding) -> None:
        found.append(finding)
        report(finding)

    if model is not None:
        with contextlib.suppress(EdgeSpecError):  # check_model reports it
            path, spec = model_path(model), configured(None, draft)
            choose(ggufs_for_fork(model, path, draft, config, spec))

    def findings() -> Iterator[Finding]:
        busy = False
        for finding in check_machine(command("tune", model, draft)):
            busy |= finding.subject == "load"
            yield finding
        if model is None:
            yield from models_to_take()
            return
        budget, given = Budget(budget_s), draft_options or {}
        checks = check_model(model, draft, config, given, options, temperature, budget, busy)
        for finding in checks:
            progress(f"checking the model: {finding.subject} done")
            yield _less_certain(finding) if busy else finding

    try:
        for finding in findings() if model is None else verdict_first(findings()):
            add(finding)
    except EngineMissing as error:
        add(Finding("problem", "engine", str(error), broken=True))
    return found


def verdict_first(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Hold back findings until the verdict; yield the verdict first, then the others in their
    order. A finding that something is broken ends the wait, because there is no verdict then.
    """
    held: list[Finding] | None = []
    for finding in findings:
        if held is None:
            yield finding
        elif finding.subject == VERDICT:
            yield finding
            yield from held
            held = None
        else:
            held.append(finding)
            if finding.broken:
                yield from held
                held = None
    yield from held or ()


def _less_certain(finding: Finding) -> Finding:
    """Return a finding as a note if it rests on times measured while other programs ran.

    Return any other finding unchanged.
    """
    if finding.broken or finding.subject not in _TIMED:
        return finding
    if finding.subject == VERDICT and finding.remedy:
        return finding  # it was not measured
    if finding.subject == VERDICT:
        text = f"Other programs are running, so this is a guess: {finding.text}"
        return replace(finding, level="note", text=text)
    text = f"while other programs run: {finding.text}"
    if finding.subject != "threads":
        return replace(finding, level="note", text=text)
    remedy = "nothing: the number follows other programs by itself, unless -t or a setting fixes it"
    return replace(finding, level="note", text=text, remedy=finding.remedy and remedy)


def diagnose_verifier(
    remote: str | RemoteConfig, draft: Reference | None = None, **arguments: Any
) -> list[Finding]:
    """Return findings about this machine and about a target on another machine.

    Arguments are those of `connect`. Raises ConfigError for impossible options; any other failure
    is a finding.
    """
    remote = RemoteConfig(remote) if isinstance(remote, str) else remote
    findings: list[Finding] = []
    try:
        findings += check_machine(command("tune", arguments.get("local"), draft or "auto"))
        with connected(remote, draft, **arguments) as parts:
            return list(verdict_first([*findings, *check_verifier(parts, remote.url)]))
    except ConfigError:
        raise
    except VerifierUnavailable as error:
        remedy = "start it, or correct the address; with -m a local model would answer meanwhile"
        return [*findings, Finding("problem", "verifier", str(error), remedy, broken=True)]
    except EdgeSpecError as error:
        return [*findings, Finding("problem", "verifier", str(error), broken=True)]
