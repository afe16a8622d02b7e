"""A verifier whose target is on another machine, served by `edgespec serve`."""

from .verifier import RemoteVerifier

__all__ = ["RemoteVerifier"]
