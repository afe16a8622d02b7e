"""Heads on llama.cpp under test: what those of all kinds need."""

import contextlib
import signal
import subprocess
import sys
import textwrap

import numpy as np

from edgespec import EngineConfig
from edgespec.backends.features import Features

from . import libllama, tiny_models
from .gguf_files import TOKENS

llama_cpp = libllama.require()

from edgespec.backends.llama_cpp.library import lib  # noqa: E402

N_CTX = 256
TEXT = [3, 200, 17, 5, 5, 90, 250, 41, 8, 77]
LONG = [3 + (7 * i) % 250 for i in range(150)]
SETTINGS = {"n_ctx": N_CTX, "n_batch": 64, "n_threads": 1}
CONFIG = EngineConfig(**SETTINGS, flash_attn="on")
EXACT = EngineConfig(**SETTINGS, flash_attn="off", type_k="f32", type_v="f32")


class OtherEngine:
    """What a head needs to know of a target that another engine evaluates."""

    hidden_size, n_layer, vocab_size = tiny_models.WIDTH, tiny_models.N_LAYER, len(TOKENS)

    def __init__(self, **changed):
        vars(self).update(changed)


@contextlib.contextmanager
def tapped(folder, layers, config):
    """Open a target that gives the hidden states of these layers."""
    model = llama_cpp.LlamaCppModel(tiny_models.write(folder, "llama"), config)
    model.tap(layers)
    try:
        yield model
    finally:
        model.close()


@contextlib.contextmanager
def opening(folder, write):
    """Give a function that writes and opens heads, which are closed at the end."""
    made = []

    def opened(target=None, weights=None, config=EXACT, **changed):
        path = write(folder / f"head-{len(made)}.gguf", weights, **changed)
        made.append(llama_cpp.open_head(path, config, target or OtherEngine()))
        return made[-1]

    try:
        yield opened
    finally:
        for head in made:
            head.close()


def states_of(target, tokens):
    """Return the hidden states of a text."""
    target.truncate(0)
    return target.decode(tokens).hidden.copy()


def features_of(states, start=0):
    """Return the features of a head with these states from a position on."""
    found = Features()
    found.append(start, states)
    return found


def near(found, expected, most=1e-4):
    """Return True where rows differ by rounding, and are -inf in the same places."""
    finite = np.isfinite(expected)
    assert found.shape == expected.shape
    assert np.array_equal(np.isfinite(found), finite)
    off = np.abs(found[finite] - expected[finite]).max()
    assert off < most * np.abs(expected[finite]).max()
    return True


def press(monkeypatch, name="llama_decode", n=0):
    """Let Ctrl-C be pressed within the n-th call of a native function, 0: within each."""
    call, calls = getattr(lib, name), []

    def pressed(*args):
        calls.append(name)
        code = call(*args)
        if len(calls) == n or not n:
            signal.raise_signal(signal.SIGINT)
        return code

    monkeypatch.setattr(lib, name, pressed)


def cut(path, part):
    """Keep so much of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])
    return path


def lives(program):
    """Assert that a program of its own comes to its end, and prints nothing but "lives"."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "lives\n"
