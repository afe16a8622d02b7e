"""The target on another machine, behind `edgespec serve`."""

from .verifier import RemoteVerifier

__all__ = ["RemoteVerifier"]
