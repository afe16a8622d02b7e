"""The results of tuning: candidates, choices, and the gain that drafting can bring."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..costs.curves import Curve
from ..costs.profiles import Profile
from ..device import BUSY
from .formats import Format
from .gains import SHORT_CACHE, speedup

_UNSTEADY = 0.3  # times of one thing that differ by more than this share were disturbed


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value of a setting: median and spread (between quartiles) of its repetitions."""

    value: Any
    label: str
    ms: float
    spread_ms: float
    n_repetitions: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidates for one setting, the default first, the chosen value and the reason.

    measured: what was timed, in words.
    """

    setting: str
    measured: str
    candidates: tuple[Candidate, ...]
    chosen: Any
    why: str

    @property
    def label(self) -> str:
        """The chosen value in words."""
        return next(c.label for c in self.candidates if c.value == self.chosen)


@dataclass(frozen=True, slots=True)
class Tuning:
    """The settings and costs that `tune` found.

    options: what later loads will use beside the defaults; path: where they are kept, None where
    nothing could be written or other programs disturbed the measurement: others is how many cores
    they used, None where the system does not show it. formats: where the model is on disk both as
    GGUF and as ONNX, every file of it, and recommendation: which to take. Nothing is switched.
    """

    model: str
    draft: str | None
    choices: tuple[Choice, ...]
    options: dict[str, Any]
    profile: Profile
    seconds: float
    path: Path | None
    formats: tuple[Format, ...] = ()
    recommendation: str = ""
    others: float | None = None

    @property
    def busy(self) -> bool:
        """True if other programs used the CPUs, so that nothing was kept."""
        return self.path is None and self.others is not None and self.others > BUSY

    @property
    def disturbed(self) -> bool:
        """True if the same thing took very different times: something else was running."""
        widest = [row[-1] for row in self.profile.target.seconds]
        if max(widest) > 3 * min(widest):
            return True
        defaults = [(choice.measured, choice.candidates[0]) for choice in self.choices]
        if any(c.n_repetitions > 3 and c.spread_ms > _UNSTEADY * c.ms for _, c in defaults):
            return True
        times = {tokens_at_once(1): [1e3 * self.profile.target(1, SHORT_CACHE)]}
        for measured, default in defaults:
            if default.n_repetitions:
                times.setdefault(measured, []).append(default.ms)
        return any(max(same) > (1 + _UNSTEADY) * min(same) for same in times.values())

    @property
    def lookup_speedup(self) -> tuple[float, int]:
        """The most that drafts can gain that cost nothing and are always right, and how deep."""
        return speedup(self.profile.target)

    @property
    def draft_speedup(self) -> tuple[float, int] | None:
        """The same of the draft model, if it were always right."""
        draft = self.profile.draft
        return speedup(self.profile.target, draft) if draft else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON, times in milliseconds."""
        profile = self.profile
        return {
            "model": self.model,
            "draft": self.draft,
            "choices": [asdict(choice) for choice in self.choices],
            "options": self.options,
            "target": _in_ms(profile.target),
            "draft_model": _in_ms(profile.draft) if profile.draft else None,
            "lookup": _gain(self.lookup_speedup),
            "draft_speedup": _gain(self.draft_speedup) if self.draft_speedup else None,
            "disturbed": self.disturbed,
            "other_programs_cores": None if self.others is None else round(self.others, 2),
            "seconds": round(self.seconds, 1),
            "path": None if self.path is None else str(self.path),
            "formats": [one.to_dict() for one in self.formats],
            "recommendation": self.recommendation,
        }


def tokens_at_once(n: int) -> str:
    """Return what is measured of an evaluation of n tokens, in words."""
    return "one token" if n == 1 else f"{n} tokens at once"


def _gain(found: tuple[float, int]) -> dict[str, Any]:
    return {"speedup": round(found[0], 3), "depth": found[1]}


def _in_ms(curve: Curve) -> dict[str, Any]:
    """Return a curve in ms, and as t(n)/t(1), a row for each cache length."""
    return {
        "lengths": curve.lengths,
        "widths": curve.widths,
        "ms": [[round(1e3 * s, 2) for s in row] for row in curve.seconds],
        "ratio": [[round(s / row[0], 2) for s in row] for row in curve.seconds],
    }
