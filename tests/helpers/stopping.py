"""Stopping native evaluations from within, without a clock."""

from edgespec.backends.llama_cpp.abort import AbortableDecode
from edgespec.backends.llama_cpp.library import lib


def stop_within(monkeypatch, n=1):
    """Let llama.cpp find, in the n-th evaluation from now on, that it is to stop."""
    call, left = AbortableDecode.__call__, [n]

    def counted(decode, batch, abort, evaluate=None):
        left[0] -= 1

        def stopped(context, batch):
            decode._stop()
            return (evaluate or lib.llama_decode)(context, batch)

        return call(decode, batch, abort or (lambda: None), evaluate if left[0] else stopped)

    monkeypatch.setattr(AbortableDecode, "__call__", counted)
