"""The results of tuning: candidates, choices, and the gain that drafting can bring."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..costs.curves import Curve
from ..costs.profiles import Profile
from ..device import BUSY
from .curve import UNSTEADY
from .formats import Format
from .gains import SHORT_CACHE, speedup, verdict


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value of a setting, with the median (ms) and the interquartile range (spread_ms) of its
    times.
    """

    value: Any
    label: str
    ms: float
    spread_ms: float
    n_repetitions: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidates for one setting (the default first), the chosen value and the reason.

    measured: a description of what was timed.
    """

    setting: str
    measured: str
    candidates: tuple[Candidate, ...]
    chosen: Any
    why: str

    @property
    def label(self) -> str:
        """The label of the chosen value."""
        return next(c.label for c in self.candidates if c.value == self.chosen)


@dataclass(frozen=True, slots=True)
class Tuning:
    """The settings and costs that `tune` has determined.

    options: the settings in which later loads will differ from the defaults. profile: the measured
    costs, None if t(n) was not measured. path: the file in which the options are saved, None if it
    could not be written or other programs disturbed the measurement. formats: every file of the
    model, if it is on disk both as GGUF and as ONNX. recommendation: which of these files to use;
    `tune` does not switch to it. others: how many cores other programs used, None if the system
    does not show it. left_out: the parts for which there was no time. refused: why measured times
    are not saved, "" if they are. passing: numbers of threads that are faster only while other
    programs run. They are not saved, because loaded models change to such numbers by themselves.
    """

    model: str
    draft: str | None
    choices: tuple[Choice, ...]
    options: dict[str, Any]
    profile: Profile | None
    seconds: float
    path: Path | None
    formats: tuple[Format, ...] = ()
    recommendation: str = ""
    others: float | None = None
    left_out: tuple[str, ...] = ()
    refused: str = ""
    passing: dict[str, Any] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """True if other programs used the CPUs, so that nothing was saved."""
        return self.path is None and self.others is not None and self.others > BUSY

    @property
    def disturbed(self) -> bool:
        """True if the same evaluation took very different times, but no other program was seen."""
        if self.profile is None or (self.others or 0.0) > BUSY:
            return False  # without a profile it is not known; other programs are reported anyway
        widest = [row[-1] for row in self.profile.target.seconds]
        if max(widest) > 3 * min(widest):
            return True
        defaults = [(choice.measured, choice.candidates[0]) for choice in self.choices]
        if any(c.n_repetitions > 3 and c.spread_ms > UNSTEADY * c.ms for _, c in defaults):
            return True
        times = {tokens_at_once(1): [1e3 * self.profile.target(1, SHORT_CACHE)]}
        for choice in self.choices:
            used = next(c for c in choice.candidates if c.value == choice.chosen)
            if used.n_repetitions:
                times.setdefault(choice.measured, []).append(used.ms)
        return any(max(same) > (1 + UNSTEADY) * min(same) for same in times.values())

    @property
    def verdict(self) -> str:
        """A sentence that says whether speculation is faster here, and why; "" if not known."""
        return verdict(self.profile.target, self.profile.draft)[1] if self.profile else ""

    @property
    def lookup_speedup(self) -> tuple[float, int] | None:
        """The speedup by drafts that cost nothing and are always right, and their best depth."""
        return speedup(self.profile.target) if self.profile else None

    @property
    def draft_speedup(self) -> tuple[float, int] | None:
        """The speedup by the draft model if it were always right, and its best depth."""
        if self.profile is None or self.profile.draft is None:
            return None
        return speedup(self.profile.target, self.profile.draft)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as data for JSON, with times in milliseconds."""
        profile = self.profile
        return {
            "model": self.model,
            "draft": self.draft,
            "choices": [asdict(choice) for choice in self.choices],
            "options": self.options,
            "passing": self.passing,
            "verdict": self.verdict,
            "target": _in_ms(profile.target) if profile else None,
            "draft_model": _in_ms(profile.draft) if profile and profile.draft else None,
            "lookup": _gain(self.lookup_speedup),
            "draft_speedup": _gain(self.draft_speedup),
            "disturbed": self.disturbed,
            "other_programs_cores": None if self.others is None else round(self.others, 2),
            "seconds": round(self.seconds, 1),
            "path": None if self.path is None else str(self.path),
            "formats": [one.to_dict() for one in self.formats],
            "recommendation": self.recommendation,
            "left_out": list(self.left_out),
            "refused": self.refused,
        }


def tokens_at_once(n: int) -> str:
    """Return the words that name an evaluation of n tokens."""
    return "one token" if n == 1 else f"{n} tokens at once"


def _gain(found: tuple[float, int] | None) -> dict[str, Any] | None:
    return found and {"speedup": round(found[0], 3), "depth": found[1]}


def _in_ms(curve: Curve) -> dict[str, Any]:
    """Return a curve as data for JSON: the times in ms, the ratios t(n)/t(1), and which times are
    guesses. Each table has a row for each cache length.
    """
    return {
        "lengths": curve.lengths,
        "widths": curve.widths,
        "ms": [[round(1e3 * s, 2) for s in row] for row in curve.seconds],
        "ratio": [[round(s / row[0], 2) for s in row] for row in curve.seconds],
        "guessed": curve.guessed,
    }
