"""Checks of a verifier on another machine."""

from __future__ import annotations

from collections.abc import Iterator

from ..costs.learning import ModelCurve
from ..costs.measuring import WIDTHS
from ..costs.profiles import Profile
from ..loading.connect import RemoteParts, profile_of
from ..verifiers.base import AsyncVerifier
from .findings import VERDICT, Finding
from .gains import LIKELY, break_even, conditions


def check_verifier(parts: RemoteParts, url: str) -> Iterator[Finding]:
    """Yield findings about a verifier: its name, its speed, and whether drafting for it helps."""
    remote = parts.remote
    if remote is None:
        yield Finding(
            "problem",
            "verifier",
            f"no server answers at {url}",
            "the local model answers meanwhile",
        )
        return
    profile = profile_of(parts)
    name = getattr(remote, "model", getattr(remote, "name", "a model"))
    trip = ""
    if isinstance(remote, AsyncVerifier):
        trip = f", {1e3 * remote.round_trip_s():.0f} ms there and back"
    yield Finding("ok", "verifier", f"{name} answers, {remote.n_ctx} tokens of context{trip}")
    token_s = profile.target(1)
    yield Finding(
        "ok", "remote speed", f"{1e3 * token_s:.0f} ms a token, {1 / token_s:.1f} tokens/s"
    )
    yield check_drafting(profile)
    if parts.local:
        local = ModelCurve(parts.local, WIDTHS)
        local.run(lambda: None)
        assert local.curve
        here = local.curve(1)
        which = "the local model" if here < token_s else "the server"
        yield Finding("ok", "local speed", f"{1e3 * here:.0f} ms a token: {which} decodes faster")


def check_drafting(profile: Profile) -> Finding:
    """Return the finding that says in one sentence whether drafting on this machine is faster."""
    likely = break_even(profile.target, profile.draft)
    source = "the draft model" if profile.draft else "prompt lookup"
    if likely is None:
        return Finding(
            "note",
            VERDICT,
            f"Speculation with {source} does not pay here, because it loses even if always right: "
            "the server decodes by itself.",
            "a nearer server, or a target that widens more cheaply (16-bit, on a GPU), would help",
        )
    text = f"Speculation with {source} {conditions(profile.target, profile.draft)}."
    return Finding("ok" if likely <= LIKELY else "note", VERDICT, text)
